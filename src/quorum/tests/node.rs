//! A node, as the commands of a server have to behave, for one lock. Time is in milliseconds.

use crate::lock::fence::Token;
use crate::lock::time::UnixMillis;
use crate::quorum::attempt::Attempt;
use crate::quorum::round::{Answer, Message};

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// What a client was told counts for the whole lease.
    IgnoresValidity,
    /// Coordinators tell no node of a token to settle on, and take it as done.
    SettlesNothing,
    /// `Settle` grants a free lock, and is not particular about the token that it replaces.
    SettlesAnything,
    /// `Relock` is never too late.
    RelocksAtAnyTime,
    /// A lease that starts again can become shorter.
    Shortens,
    /// A node grants to attempts that have ended.
    ForgetsEnds,
    /// A release ends with its answer.
    ReleasesOnce,
    /// A token that is stored because a coordinator said so does not count as seen.
    SeesOnlyOwn,
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
    /// The attempts that have ended, a bit for each.
    pub(super) ended: u64,
}

impl Node {
    pub(super) fn handle(
        &mut self,
        message: Message,
        owner: u8,
        ttl: u32,
        now: u32,
        fault: Option<Fault>,
    ) -> Answer {
        let held = self.hold.map(|hold| (hold.owner == owner, hold));
        let no_lock = Answer::NoLock {
            at: UnixMillis(now.into()),
        };
        let bit = |attempt: Attempt| 1 << (attempt.0 % 64);
        let ended = self.ended;
        let has_ended = |attempt| ended & bit(attempt) != 0 && fault != Some(Fault::ForgetsEnds);
        let is_by = |hold: &Hold, token: Option<Token>| token.is_none_or(|it| it == hold.token);
        match message {
            Message::Vote { .. } | Message::Settle { .. } | Message::Relock { .. }
                if self.restarting_until.is_some() =>
            {
                Answer::Failed
            }
            Message::Vote { token, attempt } => match held {
                None if has_ended(attempt) => Answer::Refused,
                None => {
                    let token = Token::new(token.get().max(self.highest + 1)).expect("small");
                    self.store(owner, attempt, token, now + ttl, fault);
                    Answer::Granted(token)
                }
                Some((true, hold)) if hold.attempt == attempt => {
                    self.store(owner, attempt, hold.token, now + ttl, fault);
                    Answer::Granted(hold.token)
                }
                Some(_) => Answer::Refused,
            },
            Message::Settle { attempt, from, to } => match held {
                Some((true, hold))
                    if hold.attempt == attempt
                        && ([from, to].contains(&hold.token)
                            || fault == Some(Fault::SettlesAnything)) =>
                {
                    self.store(owner, attempt, to, now + ttl, fault);
                    Answer::Granted(to)
                }
                None if fault == Some(Fault::SettlesAnything) => {
                    self.store(owner, attempt, to, now + ttl, fault);
                    Answer::Granted(to)
                }
                _ => Answer::Refused,
            },
            Message::Unvote { attempt } => {
                self.ended |= bit(attempt);
                match held {
                    Some((true, hold)) if hold.attempt == attempt => {
                        self.hold = None;
                        Answer::Released(attempt)
                    }
                    Some(_) => Answer::NotYours,
                    None => no_lock,
                }
            }
            Message::Renew { token } => match held {
                Some((true, hold)) if is_by(&hold, token) => {
                    self.store(owner, hold.attempt, hold.token, now + ttl, fault);
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
                if held.is_some()
                    || has_ended(attempt)
                    || (passed >= within && fault != Some(Fault::RelocksAtAnyTime))
                {
                    return Answer::Refused;
                }
                self.store(owner, attempt, token, now + ttl, fault);
                Answer::Granted(token)
            }
            Message::Release { token } => match held {
                Some((true, hold)) if is_by(&hold, token) => {
                    self.ended |= bit(hold.attempt);
                    self.hold = None;
                    Answer::Released(hold.attempt)
                }
                Some(_) => Answer::NotYours,
                None => no_lock,
            },
        }
    }

    fn store(
        &mut self,
        owner: u8,
        attempt: Attempt,
        token: Token,
        until: u32,
        fault: Option<Fault>,
    ) {
        let is_own = match self.hold {
            None => true,
            Some(hold) => hold.token == token,
        };
        if is_own || fault != Some(Fault::SeesOnlyOwn) {
            self.highest = self.highest.max(token.get());
        }
        let before = self.hold.filter(|_| fault != Some(Fault::Shortens));
        self.hold = Some(Hold {
            owner,
            attempt,
            token,
            until: before.map_or(until, |hold| hold.until.max(until)),
        });
    }
}
