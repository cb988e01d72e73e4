//! One round: a request of a client, put to all nodes at once, and what follows from their answers.
//!
//! A [`Round`] is told what each node answered, and says what to send and what to tell the client.
//! The I/O around it sends each [`Message`] in its own time-out and passes on each answer, also
//! those that nobody waits for any more. Messages of one round to one node have to go out in the
//! order in which they come from here; they may be lost, late, or come in another order after all,
//! and one that was sent again may arrive twice.
//!
//! A majority is always one of the nodes that are *configured*: two halves of a divided network
//! must not both find one among the nodes that they reach.
//!
//! # What a node does
//!
//! A node keeps for each lock the owner, the token, the attempt and the lease of a hold. An attempt
//! is the name of the round by which the hold came about. The node also knows the highest token
//! that it has ever stored for any lock, whoever chose it.
//!
//! | message | answer |
//! |---|---|
//! | [`Vote`](Message::Vote) | a free lock is granted under `max(token, highest + 1)`: `Granted`. If this attempt holds it already: `Granted` with the stored token, and the lease starts again. Otherwise `Refused` |
//! | [`Settle`](Message::Settle) | if this attempt holds the lock under `from` or `to`, `to` becomes its token, even if that is lower, and the lease starts again: `Granted(to)`. Otherwise, *also if the lock is free*, `Refused` |
//! | [`Unvote`](Message::Unvote) | whatever this attempt holds is released, all holds of it, and the attempt has ended |
//! | [`Renew`](Message::Renew) | `Renewed` and the lease starts again, `NotYours` or `NoLock`. A hold that no round brought about is `NotYours` |
//! | [`Relock`](Message::Relock) | a free lock is granted under exactly this token and attempt, if less than `within` has passed on the node's clock since it said `NoLock` |
//! | [`Release`](Message::Release) | `Released`, and the attempt of the hold has ended; `NotYours` or `NoLock`. A hold that no round brought about is `NotYours` |
//!
//! `Vote` and `Relock` of an attempt that has ended are `Refused`.
//!
//! A node that may have lost what it stored says [`Failed`](Answer::Failed) to `Vote`, `Settle` and
//! `Relock` until the longest `ttl` in use is over, and begins again with its clock as its highest
//! token.
//!
//! **A lease that starts again never becomes shorter**: of its deadline and the new one, the later
//! one counts. A round that fails may have been carried out by any node; if it shortened leases, a
//! client would rely on an earlier answer that is no longer true.
//!
//! # Why nothing stays behind
//!
//! A node outside of the majority can hear of a release before it is told the token that counts, or
//! before the vote. It finds no hold under that token then. So a release goes on after its answer:
//! the nodes that ended the hold say by which attempt it came about. If a majority says the same, the
//! nodes that do not are asked to take back what this attempt holds. What comes later still is
//! `Refused`.
//!
//! # Why tokens rise
//!
//! A grant is told to the client when a majority stores one token, the highest that a majority
//! granted. The next majority has a node in common with this one, and grants a higher one there.
//!
//! No message that comes late may bring a token back after another owner had the lock, since a
//! renewal would then find a majority for it. A late `Vote` gets a new token, or one of a node that
//! the later owner's majority was not told of, and those are too few. A late `Settle` names the
//! token that it replaces, which a node grants only once. A late `Relock` is too late by the node's
//! own clock.
//!
//! A node that lost its state no longer knows what it granted. Tokens rise over that as long as none
//! of them is further ahead of the clocks than the node waited.

use super::attempt::Attempt;
use crate::lock::fence::Token;
use crate::lock::lease::Ttl;
use crate::lock::time::{SteadyMicros, UnixMillis};

/// The most nodes that a quorum can have. Each of them is asked for every lock, so more make it
/// slower and not safer.
pub(crate) const MAX_NODES: usize = 15;

/// How many nodes are configured: 1..=[`MAX_NODES`]. Each is known by its index below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes(usize);

impl Nodes {
    /// `None` when there are too few or too many.
    pub(crate) fn new(count: usize) -> Option<Self> {
        (1..=MAX_NODES).contains(&count).then_some(Self(count))
    }

    /// How many there are.
    pub(crate) fn count(self) -> usize {
        self.0
    }

    /// More than half of them, so that two majorities have a node in common. Of an even number, half
    /// is not enough.
    pub(crate) fn majority(self) -> usize {
        self.0 / 2 + 1
    }
}

/// How long a lock is surely held after a round, in milliseconds: `ttl - elapsed - (ttl / 100 + 2)`;
/// `None` if that is not at least 1.
///
/// `elapsed` is the time since the round began, in microseconds by a clock that nobody sets, and
/// counts in milliseconds, rounded up. The nodes' leases began no earlier than the round. What is
/// taken off is for clocks that do not run alike, 1 % of `ttl`, and for the precision with which
/// leases end, 2 ms.
pub(crate) fn validity(ttl: Ttl, elapsed: u64) -> Option<u64> {
    longest_validity(ttl)
        .checked_sub(elapsed.div_ceil(1_000))
        .filter(|left| *left > 0)
}

/// The validity if no time passed; 0 for a `ttl` that is too short for any.
fn longest_validity(ttl: Ttl) -> u64 {
    let ttl = ttl.millis();
    ttl.saturating_sub(ttl / 100 + 2)
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The lock, under this token or a higher one.
    Acquire {
        ttl: Ttl,
        /// The coordinator's time, as a token that it would mint.
        token: Token,
        /// A new one, also when a request is tried again.
        attempt: Attempt,
    },
    /// A lease of `ttl` from now, of one very grant if a token is given.
    Renew { ttl: Ttl, token: Option<Token> },
    /// The end of the hold, of one very grant if a token is given.
    ///
    /// Without one, a message that comes late can end a later hold of the same owner. So either
    /// the token is known, or the owner is another with every hold.
    Release { token: Option<Token> },
}

impl Request {
    /// How long the lease is to be that depends on the round.
    fn ttl(&self) -> Option<Ttl> {
        match *self {
            Self::Acquire { ttl, .. } | Self::Renew { ttl, .. } => Some(ttl),
            Self::Release { .. } => None,
        }
    }
}

/// What is sent to a node, beside the key, the owner, the mode and the `ttl` of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Grant the lock, under this token or a higher one.
    Vote { token: Token, attempt: Attempt },
    /// The hold that you granted to this attempt under `from` has the token `to`.
    Settle {
        attempt: Attempt,
        from: Token,
        to: Token,
    },
    /// The attempt has failed: release what it holds.
    Unvote { attempt: Attempt },
    /// Start the lease again.
    Renew { token: Option<Token> },
    /// A majority holds the lock under this token; you said that you do not. Grant it, if less
    /// than `within` milliseconds have passed since `at`.
    Relock {
        token: Token,
        attempt: Attempt,
        /// What the node itself gave as its time.
        at: UnixMillis,
        within: u64,
    },
    /// End the hold.
    Release { token: Option<Token> },
}

/// What a node answered. An answer that does not fit the message counts as [`Failed`](Self::Failed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The attempt holds the lock there under this token.
    Granted(Token),
    /// Somebody else holds the lock there, or waits for it, or the hold is gone.
    Refused,
    /// The lease has started again, of a hold under this token that this attempt brought about.
    Renewed { token: Token, attempt: Attempt },
    /// The hold that this attempt brought about has ended.
    Released(Attempt),
    /// Somebody else holds the lock there, or the owner holds it by another grant.
    NotYours,
    /// Nobody holds the lock there.
    NoLock {
        /// The time of the node's own clock by which its leases end.
        at: UnixMillis,
    },
    /// An error, after which it is certain that nothing was done.
    Failed,
    /// None in time. It may have been carried out, or may still be.
    Unknown,
}

/// What the nodes have said, one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Did what was asked for. Of renewals: as many as agree on a hold.
    pub(crate) agreed: usize,
    /// Answered, and did not.
    pub(crate) refused: usize,
    /// [`Answer::Failed`].
    pub(crate) failed: usize,
    /// [`Answer::Unknown`], or no answer by the time that the validity was used up.
    pub(crate) unknown: usize,
    /// Were still asked when there was no need to wait for them.
    pub(crate) unheard: usize,
}

impl Counts {
    /// How many nodes there are.
    pub(crate) fn all(self) -> usize {
        self.agreed + self.refused + self.failed + self.unknown + self.unheard
    }
}

/// What the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The lock is held for so many milliseconds from now, at least 1.
    Acquired { token: Token, validity: u64 },
    /// It is not: a majority answered, and some refused it. Others have it or ask for it at the same
    /// time. Nothing is left of the attempt but what lapses by itself. Another one may succeed after a
    /// random delay.
    NotAcquired,
    /// The lock is held for so many milliseconds from now, at least 1.
    Renewed { token: Token, validity: u64 },
    /// A majority ended the hold.
    Released,
    /// There is no such hold on a majority, and somebody else was found to hold the lock.
    NotYours,
    /// There is no such hold on a majority.
    NoLock,
    /// So many nodes failed or did not answer in time that there was no majority, or that it is not
    /// known whether there was. What a client was told before stays true.
    NoQuorum(Counts),
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a message to the node of this index.
    Send { node: usize, message: Message },
    /// Tell the client. Of each round once, unless the client has gone before.
    Answer(Outcome),
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// Its answer to the first message is awaited.
    Asked,
    /// It granted another token and has been told the one that counts.
    Settling,
    /// Its last answer.
    Said(Answer),
}

/// How far a round has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Asking.
    Open,
    /// A majority has granted the lock, and has to store this token.
    Settling(Token),
    /// The client was told that it has the lock, under this token and attempt.
    Held(Token, Attempt),
    /// The client was told that a majority ended the hold of this attempt.
    Ended(Attempt),
    /// Whatever comes now changes nothing.
    Over,
}

/// One request of a client, on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(super) request: Request,
    pub(super) nodes: Nodes,
    /// When the first message was sent, at the earliest.
    pub(super) start: SteadyMicros,
    /// One for each node.
    pub(super) members: Vec<Member>,
    pub(super) stage: Stage,
}

impl Round {
    /// Begins a round; nothing may be sent before `now`.
    pub(crate) fn new(request: Request, nodes: Nodes, now: SteadyMicros) -> (Self, Vec<Step>) {
        let round = Self {
            request,
            nodes,
            start: now,
            members: vec![Member::Asked; nodes.count()],
            stage: Stage::Open,
        };
        let message = match request {
            Request::Acquire { token, attempt, .. } => Message::Vote { token, attempt },
            Request::Renew { token, .. } => Message::Renew { token },
            Request::Release { token } => Message::Release { token },
        };
        let steps = round.to_all(message);
        (round, steps)
    }

    /// Takes note of what a node answered, or that it did not in time ([`Answer::Unknown`]).
    ///
    /// Only the first answer to a message counts, and answers to messages that need none are
    /// harmless.
    pub(crate) fn answered(&mut self, node: usize, answer: Answer, now: SteadyMicros) -> Vec<Step> {
        let Some(member) = self.members.get_mut(node) else {
            return Vec::new();
        };
        let answer = match *member {
            Member::Said(_) => return Vec::new(),
            Member::Asked => self.request.fitting(answer),
            Member::Settling => match (answer, self.stage) {
                (Answer::Granted(token), Stage::Settling(settled)) if token == settled => answer,
                (Answer::Refused | Answer::Unknown, _) => answer,
                _ => Answer::Failed,
            },
        };
        *member = Member::Said(answer);
        match self.stage {
            Stage::Open | Stage::Settling(_) => self.advance(now),
            Stage::Held(token, attempt) => self.told_late(node, token, attempt, now),
            Stage::Ended(attempt) => self.ended_late(node, attempt),
            Stage::Over => Vec::new(),
        }
    }

    /// Ends a round whose validity is used up; to be called at [`Round::deadline`].
    pub(crate) fn passed(&mut self, now: SteadyMicros) -> Vec<Step> {
        match self.stage {
            Stage::Open | Stage::Settling(_) => self.advance(now),
            _ => Vec::new(),
        }
    }

    /// Takes back a lock that nobody is left to be told of: the client has gone before it got the
    /// answer. Nobody is told anything after this.
    ///
    /// Renewals and releases go on, since what they do was wanted.
    pub(crate) fn client_gone(&mut self) -> Vec<Step> {
        match self.request {
            Request::Acquire { attempt, .. } if self.stage != Stage::Over => {
                self.stage = Stage::Over;
                self.to_all(Message::Unvote { attempt })
            }
            _ => Vec::new(),
        }
    }

    /// Whether a node failed, or gave no answer in time.
    pub(crate) fn is_in_trouble(&self, node: usize) -> bool {
        let member = self.members.get(node);
        matches!(member, Some(Member::Said(Answer::Failed | Answer::Unknown)))
    }

    /// When to call [`Round::passed`]; `None`: no more.
    pub(crate) fn deadline(&self) -> Option<SteadyMicros> {
        if !matches!(self.stage, Stage::Open | Stage::Settling(_)) {
            return None;
        }
        let longest = longest_validity(self.request.ttl()?).saturating_mul(1_000);
        Some(SteadyMicros(self.start.0.saturating_add(longest)))
    }

    /// Whether no answer brings up another step. Until a client is told of its lock,
    /// [`Round::client_gone`] still may.
    #[cfg(test)]
    pub(crate) fn is_done(&self) -> bool {
        match self.stage {
            Stage::Open | Stage::Settling(_) => false,
            Stage::Held(..) | Stage::Ended(_) => !self.members.contains(&Member::Asked),
            Stage::Over => true,
        }
    }

    /// Decides, if that can be done by now.
    fn advance(&mut self, now: SteadyMicros) -> Vec<Step> {
        let elapsed = now.0.saturating_sub(self.start.0);
        let valid = self.request.ttl().map(|ttl| validity(ttl, elapsed));
        if valid == Some(None) {
            for member in &mut self.members {
                if !matches!(member, Member::Said(_)) {
                    *member = Member::Said(Answer::Unknown);
                }
            }
        }
        match self.request {
            Request::Acquire { attempt, .. } => self.acquire(attempt, valid.flatten()),
            Request::Renew { .. } => self.renew(valid.flatten()),
            Request::Release { .. } => self.release(),
        }
    }

    /// Decides an acquire of which so much validity is left.
    fn acquire(&mut self, attempt: Attempt, valid: Option<u64>) -> Vec<Step> {
        let majority = self.nodes.majority();
        let Some(validity) = valid else {
            return self.fail(attempt);
        };
        if self.stage == Stage::Open {
            let granted = || self.members.iter().filter_map(Member::granted);
            if granted().count() >= majority
                && let Some(highest) = granted().max()
            {
                self.stage = Stage::Settling(highest);
            }
        }
        let Stage::Settling(token) = self.stage else {
            return self.fail_if_clear(attempt);
        };
        let mut steps = Vec::new();
        if self.count(|member| member.granted() == Some(token)) >= majority {
            self.stage = Stage::Held(token, attempt);
            steps.push(Step::Answer(Outcome::Acquired { token, validity }));
        } else if self.count(Member::may_grant) < majority {
            return self.fail_if_clear(attempt);
        }
        for (node, member) in self.members.iter_mut().enumerate() {
            if let Some(from) = member.granted().filter(|granted| *granted != token) {
                *member = Member::Settling;
                let message = Message::Settle {
                    attempt,
                    from,
                    to: token,
                };
                steps.push(Step::Send { node, message });
            }
        }
        steps
    }

    /// Gives up an acquire that no majority can grant any more, once it is clear whether that is
    /// because others have the lock.
    fn fail_if_clear(&mut self, attempt: Attempt) -> Vec<Step> {
        let majority = self.nodes.majority();
        let counts = self.counts(self.count(|member| member.granted().is_some()));
        let answered = counts.agreed + counts.refused;
        let is_clear = answered >= majority || answered + counts.unheard < majority;
        if self.count(Member::may_grant) < majority && is_clear {
            self.fail(attempt)
        } else {
            Vec::new()
        }
    }

    /// Gives up an acquire: the nodes are asked to release what they may have granted, all of them,
    /// since nobody knows which have.
    fn fail(&mut self, attempt: Attempt) -> Vec<Step> {
        self.stage = Stage::Over;
        let counts = self.counts(self.count(|member| member.granted().is_some()));
        let mut steps = self.to_all(Message::Unvote { attempt });
        // A majority that granted the lock did so too late.
        let majority = self.nodes.majority();
        let is_refused = counts.agreed < majority && counts.agreed + counts.refused >= majority;
        steps.push(Step::Answer(if is_refused {
            Outcome::NotAcquired
        } else {
            Outcome::NoQuorum(counts)
        }));
        steps
    }

    /// Decides a renewal of which so much validity is left. One that fails releases nothing: the
    /// client may still hold the lock by an earlier answer.
    fn renew(&mut self, valid: Option<u64>) -> Vec<Step> {
        let (agreed, hold) = most_frequent(&self.members.iter().filter_map(Member::renewed));
        let (Some((token, attempt)), true) = (hold, agreed >= self.nodes.majority()) else {
            return self.end_without(agreed);
        };
        let Some(validity) = valid else {
            self.stage = Stage::Over;
            return vec![Step::Answer(Outcome::NoQuorum(self.counts(agreed)))];
        };
        self.stage = Stage::Held(token, attempt);
        let mut steps = vec![Step::Answer(Outcome::Renewed { token, validity })];
        steps.extend(
            self.members
                .iter()
                .enumerate()
                .filter_map(|(node, member)| member.told(node, token, attempt, validity)),
        );
        steps
    }

    /// Decides a release.
    fn release(&mut self) -> Vec<Step> {
        let (agreed, attempt) = most_frequent(&self.members.iter().filter_map(Member::released));
        let (Some(attempt), true) = (attempt, agreed >= self.nodes.majority()) else {
            return self.end_without(agreed);
        };
        self.stage = Stage::Ended(attempt);
        let members = self.members.iter().enumerate();
        let ends = members.filter_map(|(node, member)| member.ended(node, attempt));
        [Step::Answer(Outcome::Released)]
            .into_iter()
            .chain(ends)
            .collect()
    }

    /// Goes on with a release when a node answers after the client was told.
    fn ended_late(&self, node: usize, attempt: Attempt) -> Vec<Step> {
        let member = self.members.get(node);
        Vec::from_iter(member.and_then(|member| member.ended(node, attempt)))
    }

    /// Ends a renewal or release that so many agreed on, too few, if that can be said by now.
    fn end_without(&mut self, agreed: usize) -> Vec<Step> {
        let Some(outcome) = self.conclude(agreed) else {
            return Vec::new();
        };
        self.stage = Stage::Over;
        vec![Step::Answer(outcome)]
    }

    /// What a renewal or release that no majority agrees on comes to, if the nodes that were heard
    /// say so, or if no node that was not heard could change it.
    fn conclude(&self, agreed: usize) -> Option<Outcome> {
        let counts = self.counts(agreed);
        let majority = self.nodes.majority();
        let unclear = agreed + counts.failed + counts.unknown;
        if unclear + counts.unheard < majority {
            Some(if self.members.contains(&Member::Said(Answer::NotYours)) {
                Outcome::NotYours
            } else {
                Outcome::NoLock
            })
        } else if agreed + counts.unheard < majority && unclear >= majority {
            Some(Outcome::NoQuorum(counts))
        } else {
            None
        }
    }

    /// Tells a node that answered after the client was told what the majority has. Only while the
    /// majority surely has it: later, another owner may have had the lock in between.
    fn told_late(
        &self,
        node: usize,
        token: Token,
        attempt: Attempt,
        now: SteadyMicros,
    ) -> Vec<Step> {
        let elapsed = now.0.saturating_sub(self.start.0);
        let valid = self.request.ttl().and_then(|ttl| validity(ttl, elapsed));
        let (Some(validity), Some(member)) = (valid, self.members.get(node)) else {
            return Vec::new();
        };
        Vec::from_iter(member.told(node, token, attempt, validity))
    }

    /// What the nodes have said, where so many `agreed`.
    fn counts(&self, agreed: usize) -> Counts {
        let failed = self.count(|member| *member == Member::Said(Answer::Failed));
        let unknown = self.count(|member| *member == Member::Said(Answer::Unknown));
        let unheard = self.count(|member| !matches!(member, Member::Said(_)));
        let others = agreed + failed + unknown + unheard;
        Counts {
            agreed,
            refused: self.nodes.count().saturating_sub(others),
            failed,
            unknown,
            unheard,
        }
    }

    /// The number of nodes of which something is true.
    fn count(&self, is: impl Fn(&Member) -> bool) -> usize {
        self.members.iter().filter(|member| is(member)).count()
    }

    /// One message to every node.
    fn to_all(&self, message: Message) -> Vec<Step> {
        (0..self.nodes.count())
            .map(|node| Step::Send { node, message })
            .collect()
    }
}

impl Request {
    /// An answer to its first message, if that can be one.
    fn fitting(&self, answer: Answer) -> Answer {
        let fits = match answer {
            Answer::Granted(_) | Answer::Refused => matches!(self, Self::Acquire { .. }),
            Answer::Renewed { .. } => matches!(self, Self::Renew { .. }),
            Answer::Released(_) => matches!(self, Self::Release { .. }),
            Answer::NotYours | Answer::NoLock { .. } => !matches!(self, Self::Acquire { .. }),
            Answer::Failed | Answer::Unknown => true,
        };
        if fits { answer } else { Answer::Failed }
    }
}

impl Member {
    /// The token that it granted, if it has not been told another.
    fn granted(&self) -> Option<Token> {
        match self {
            Self::Said(Answer::Granted(token)) => Some(*token),
            _ => None,
        }
    }

    /// Whether it has granted the lock, or may yet say so.
    fn may_grant(&self) -> bool {
        !matches!(self, Self::Said(_)) || self.granted().is_some()
    }

    /// The hold that it renewed.
    fn renewed(&self) -> Option<(Token, Attempt)> {
        match self {
            Self::Said(Answer::Renewed { token, attempt }) => Some((*token, *attempt)),
            _ => None,
        }
    }

    /// The attempt whose hold it ended.
    fn released(&self) -> Option<Attempt> {
        match self {
            Self::Said(Answer::Released(attempt)) => Some(*attempt),
            _ => None,
        }
    }

    /// What it has to be told when a release ended the hold of this attempt elsewhere: nothing if it
    /// did so too, or may yet say that it did.
    fn ended(&self, node: usize, attempt: Attempt) -> Option<Step> {
        let is_left = matches!(self, Self::Said(_)) && self.released() != Some(attempt);
        let message = Message::Unvote { attempt };
        is_left.then_some(Step::Send { node, message })
    }

    /// What it has to be told when a majority has the lock under this token and attempt for so many
    /// milliseconds.
    fn told(&self, node: usize, token: Token, attempt: Attempt, validity: u64) -> Option<Step> {
        let settle = |from| {
            (from != token).then_some(Message::Settle {
                attempt,
                from,
                to: token,
            })
        };
        let message = match *self {
            Self::Said(Answer::Granted(from)) => settle(from),
            Self::Said(Answer::Renewed {
                token: from,
                attempt: renewed,
            }) if renewed == attempt => settle(from),
            Self::Said(Answer::NoLock { at }) => Some(Message::Relock {
                token,
                attempt,
                at,
                within: validity,
            }),
            _ => None,
        }?;
        Some(Step::Send { node, message })
    }
}

/// What comes up most often, and how often. Of several the last one counts.
fn most_frequent<T: Copy + PartialEq>(
    items: &(impl Iterator<Item = T> + Clone),
) -> (usize, Option<T>) {
    let count = |item| items.clone().filter(|other| *other == item).count();
    items
        .clone()
        .map(|item| (count(item), Some(item)))
        .max_by_key(|(count, _)| *count)
        .unwrap_or_default()
}
