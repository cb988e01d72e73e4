//! A node, as the commands of a server have to behave, for one lock. Time is in milliseconds.

use crate::lock::fence::Token;
use crate::lock::time::UnixMillis;
use crate::quorum::round::{Answer, Attempt, Message};

/// Rules that a wrong node does not follow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// `Settle` grants a free lock, and is not particular about the token that it replaces.
    pub(super) settles_anything: bool,
    /// `Relock` is never too late.
    pub(super) relocks_at_any_time: bool,
    /// A lease that starts again can become shorter.
    pub(super) shortens: bool,
    /// A token that is stored because a coordinator said so does not count as seen.
    pub(super) sees_only_own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) owner: u8,
    pub(super) attempt: Attempt,
    pub(super) token: Token,
    /// The last moment of the lease.
    pub(super) until: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) hold: Option<Hold>,
    pub(super) highest: u64,
    /// It has lost what it stored, and waits for leases that it may have granted to lapse.
    pub(super) restarting_until: Option<u32>,
}

impl Node {
    pub(super) fn handle(
        &mut self,
        message: Message,
        owner: u8,
        ttl: u32,
        now: u32,
        faults: Faults,
    ) -> Answer {
        let held = self.hold.map(|hold| (hold.owner == owner, hold));
        let no_lock = Answer::NoLock {
            at: UnixMillis(now.into()),
        };
        let is_by = |hold: &Hold, token: Option<Token>| token.is_none_or(|it| it == hold.token);
        match message {
            Message::Vote { .. } | Message::Settle { .. } | Message::Relock { .. }
                if self.restarting_until.is_some() =>
            {
                Answer::Failed
            }
            Message::Vote { token, attempt } => match held {
                None => {
                    let token = Token::new(token.get().max(self.highest + 1)).expect("small");
                    self.store(owner, attempt, token, now + ttl, faults);
                    Answer::Granted(token)
                }
                Some((true, hold)) if hold.attempt == attempt => {
                    self.store(owner, attempt, hold.token, now + ttl, faults);
                    Answer::Granted(hold.token)
                }
                Some(_) => Answer::Refused,
            },
            Message::Settle { attempt, from, to } => match held {
                Some((true, hold))
                    if hold.attempt == attempt
                        && (faults.settles_anything || [from, to].contains(&hold.token)) =>
                {
                    self.store(owner, attempt, to, now + ttl, faults);
                    Answer::Granted(to)
                }
                None if faults.settles_anything => {
                    self.store(owner, attempt, to, now + ttl, faults);
                    Answer::Granted(to)
                }
                _ => Answer::Refused,
            },
            Message::Unvote { attempt } => match held {
                Some((true, hold)) if hold.attempt == attempt => {
                    self.hold = None;
                    Answer::Released
                }
                Some(_) => Answer::NotYours,
                None => no_lock,
            },
            Message::Renew { token } => match held {
                Some((true, hold)) if is_by(&hold, token) => {
                    self.store(owner, hold.attempt, hold.token, now + ttl, faults);
                    Answer::Renewed {
                        token: hold.token,
                        attempt: hold.attempt,
                    }
                }
                Some(_) => Answer::NotYours,
                None => no_lock,
            },
            Message::Relock {
                token,
                attempt,
                at,
                within,
            } => {
                let passed = (i64::from(now) - at.0).unsigned_abs();
                if held.is_some() || (passed > within && !faults.relocks_at_any_time) {
                    return Answer::Refused;
                }
                self.store(owner, attempt, token, now + ttl, faults);
                Answer::Granted(token)
            }
            Message::Release { token } => match held {
                Some((true, hold)) if is_by(&hold, token) => {
                    self.hold = None;
                    Answer::Released
                }
                Some(_) => Answer::NotYours,
                None => no_lock,
            },
        }
    }

    fn store(&mut self, owner: u8, attempt: Attempt, token: Token, until: u32, faults: Faults) {
        let is_own = match self.hold {
            None => true,
            Some(hold) => hold.token == token,
        };
        if is_own || !faults.sees_only_own {
            self.highest = self.highest.max(token.get());
        }
        let before = self.hold.filter(|_| !faults.shortens);
        self.hold = Some(Hold {
            owner,
            attempt,
            token,
            until: before.map_or(until, |hold| hold.until.max(until)),
        });
    }
}
