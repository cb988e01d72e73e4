//! What a node does with the messages of a coordinator.
//!
//! A node grants its part of a quorum's lock as it would a lock of its own, with these differences:
//!
//! - The token of a vote is the coordinator's, if that is higher than all that the node has minted
//!   or seen. So the nodes agree on a token without being asked twice.
//! - The attempt stays with the hold. A message of another attempt finds no hold of its own, even
//!   if it is the same owner's.
//! - A lease that starts again never becomes shorter: of its deadline and the new one, the later
//!   one counts. The coordinator may have told its client of the earlier answer.
//!
//! - An attempt that has ended is granted nothing any more: its messages may come late.
//!
//! A re-entry of the owner's keeps the attempt. What a node is told about the hold is then true of
//! all of its holds, and to take a vote back ends all.

use super::attempt::{Attempt, AttemptId};
use super::ended::EndedAttempts;
use crate::lock::fence::{Fence, Token};
use crate::lock::lease::{Deadline, Ttl};
use crate::lock::record::{Owner, Record, RequestId};
use crate::lock::rules::{
    Acquire, Layout, LockState, Mode, Put, Remainder, Write, grant_under, lease,
};
use crate::lock::time::{UnixMicros, UnixMillis};

/// For whom a coordinator asks, and as what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ballot<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) ttl: Ttl,
    attempt: Attempt,
    id: AttemptId,
    is_shared: bool,
}

impl<'a> Ballot<'a> {
    /// A request of one attempt.
    pub(crate) fn new(owner: Owner<'a>, ttl: Ttl, attempt: Attempt, is_shared: bool) -> Self {
        Self {
            owner,
            ttl,
            attempt,
            id: attempt.id(),
            is_shared,
        }
    }

    /// The same as a request for a lock.
    pub(crate) fn asked(&self) -> Acquire<'_> {
        Acquire {
            owner: self.owner,
            ttl: self.ttl,
            request: self.id.as_request(),
            mode: if self.is_shared {
                Mode::Shared { limit: None }
            } else {
                Mode::Exclusive { reentrant: false }
            },
        }
    }

    /// Whether the lock can be granted. `is_queued` says whether somebody waits for it.
    fn has_room(&self, state: &LockState<'_>, is_queued: bool, ended: &EndedAttempts) -> bool {
        !is_queued
            && !ended.contains(self.attempt)
            && match state {
                LockState::Free => true,
                LockState::Exclusive(_) => false,
                LockState::Shared(shares) => self.is_shared && shares.own.is_none(),
            }
    }

    /// The hold of this very attempt, in the mode that it asks for.
    fn hold(&self, state: &LockState<'_>) -> Option<Held> {
        match state {
            LockState::Exclusive(hold) if !self.is_shared && hold.is_of(self.owner) => {
                let Layout::Module { token, request } = hold.layout else {
                    return None;
                };
                is_by(request, self.attempt).then_some(Held {
                    token,
                    deadline: hold.deadline,
                    holds: hold.holds,
                })
            }
            LockState::Shared(shares) if self.is_shared => {
                let own = shares.own.filter(|own| own.is_repeated)?;
                Some(Held {
                    token: own.token?,
                    deadline: Some(own.deadline),
                    holds: 1,
                })
            }
            _ => None,
        }
    }

    /// When the lease of a hold ends that starts again; `None`: never.
    fn again(&self, held: &Held, now: UnixMicros) -> Option<Deadline> {
        later(held.deadline, self.ttl, self.is_shared, now)
    }
}

/// A hold of an attempt.
struct Held {
    token: Token,
    deadline: Option<Deadline>,
    holds: u64,
}

/// Whether a request id is that of an attempt.
fn is_by(request: Option<RequestId<'_>>, attempt: Attempt) -> bool {
    request.and_then(Attempt::of_request) == Some(attempt)
}

/// The later one of a deadline, which may be never, and that of a lease that begins now.
fn later(
    deadline: Option<Deadline>,
    ttl: Ttl,
    is_shared: bool,
    now: UnixMicros,
) -> Option<Deadline> {
    let lease = lease(is_shared, ttl, now.as_millis());
    deadline.map(|deadline| deadline.max(lease))
}

/// The answer to a vote, or to what follows one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Voted {
    /// The attempt holds the lock on this node once `Write` is done.
    Granted(Token, Write),
    /// It holds it already. The lease ends at this deadline once that is written; `None`: never.
    Kept(Token, Option<Deadline>),
    /// It holds it already, and has this token once `Write` is done.
    Settled(Token, Write),
    /// Somebody else holds it or waits for it, or the hold is gone.
    Refused,
    /// No token is left to mint.
    NoTokenLeft,
}

/// Decides a vote: a lock that has room is granted under `token`, or a higher one if the node has
/// seen that. A vote that comes again starts the lease again.
pub(crate) fn vote(
    state: &LockState<'_>,
    ballot: &Ballot<'_>,
    token: Token,
    is_queued: bool,
    ended: &EndedAttempts,
    now: UnixMicros,
    fence: &mut Fence,
) -> Voted {
    if let Some(held) = ballot.hold(state) {
        return Voted::Kept(held.token, ballot.again(&held, now));
    }
    if !ballot.has_room(state, is_queued, ended) {
        return Voted::Refused;
    }
    match fence.mint_from(token) {
        Some(token) => Voted::Granted(token, grant_under(token, &ballot.asked(), now)),
        None => Voted::NoTokenLeft,
    }
}

/// Decides what a quorum has settled: the hold of this attempt under `from` has the token `to` from
/// now on, which may be lower.
///
/// A lock that is free, or that the attempt holds under yet another token, stays as it is: the
/// message is late, and another owner may have had the lock since.
pub(crate) fn settle(
    state: &LockState<'_>,
    ballot: &Ballot<'_>,
    (from, to): (Token, Token),
    now: UnixMicros,
    fence: &mut Fence,
) -> Voted {
    let Some(held) = ballot.hold(state) else {
        return Voted::Refused;
    };
    let deadline = ballot.again(&held, now);
    if held.token == to {
        return Voted::Kept(to, deadline);
    }
    if held.token != from {
        return Voted::Refused;
    }
    fence.observe(to, now);
    let write = match deadline {
        Some(deadline) if ballot.is_shared => Write::Share(deadline),
        _ => Write::Record(Put {
            value: Record {
                token: to,
                holds: held.holds,
                request: ballot.id.as_request(),
                owner: ballot.owner,
            }
            .encode(),
            deadline,
        }),
    };
    Voted::Settled(to, write)
}

/// For how long a node that had lost a lock may take it up again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// When it said that it has no such lock, by its own clock.
    pub(crate) at: UnixMillis,
    /// Milliseconds from then.
    pub(crate) within: u64,
}

impl Window {
    /// Whether it is not over: at its end, another owner can have the lock already. A clock that was
    /// set back tells nothing, and so ends it as well.
    fn is_open(&self, now: UnixMillis) -> bool {
        now.0.abs_diff(self.at.0) < self.within
    }
}

/// Decides whether a node takes up a lock that a majority holds under `token`: only if it has room,
/// and if the window is open.
#[allow(
    clippy::too_many_arguments,
    reason = "each is another thing that it depends on"
)]
pub(crate) fn relock(
    state: &LockState<'_>,
    ballot: &Ballot<'_>,
    token: Token,
    window: Window,
    is_queued: bool,
    ended: &EndedAttempts,
    now: UnixMicros,
    fence: &mut Fence,
) -> Voted {
    if !window.is_open(now.as_millis()) || !ballot.has_room(state, is_queued, ended) {
        return Voted::Refused;
    }
    fence.observe(token, now);
    Voted::Granted(token, grant_under(token, &ballot.asked(), now))
}

/// Decides to take a vote back: the token of the hold if the owner has one by this attempt, and
/// what is left of the lock. All holds of it end.
pub(crate) fn unvote(
    state: &LockState<'_>,
    owner: Owner<'_>,
    attempt: Attempt,
) -> Option<(Option<Token>, Remainder)> {
    match state {
        LockState::Free => None,
        LockState::Exclusive(hold) => match hold.layout {
            Layout::Module { token, request } if hold.is_of(owner) && is_by(request, attempt) => {
                Some((Some(token), Remainder::Free))
            }
            _ => None,
        },
        LockState::Shared(shares) => {
            let own = shares.own.filter(|own| own.is_repeated)?;
            Some((own.token, Remainder::OtherShares))
        }
    }
}

/// The answer to a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// The lease of the hold under this token, which this attempt brought about, ends at this
    /// deadline once that is written; `None`: never.
    Until(Token, Attempt, Option<Deadline>),
    /// Somebody else holds the lock, or the owner holds it by another grant, or by no attempt.
    NotYours,
    /// Nobody holds the lock at this time of the node's clock.
    NoLock(UnixMillis),
}

/// Decides a renewal, of one very grant if a token is given. `of_share` is the request that the
/// owner's share was granted to.
pub(crate) fn extend(
    state: &LockState<'_>,
    owner: Owner<'_>,
    of_share: Option<RequestId<'_>>,
    token: Option<Token>,
    ttl: Ttl,
    now: UnixMicros,
) -> Extended {
    if *state == LockState::Free {
        return Extended::NoLock(now.as_millis());
    }
    match part(state, owner, of_share, token) {
        Some((token, attempt, deadline)) => {
            let deadline = later(deadline, ttl, state.is_shared(), now);
            Extended::Until(token, attempt, deadline)
        }
        None => Extended::NotYours,
    }
}

/// The answer to a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PartEnded {
    /// The hold under this token, which this attempt brought about, has ended, with all holds of it.
    By(Token, Attempt, Remainder),
    /// Somebody else holds the lock, or the owner holds it by another grant, or by no attempt.
    NotYours,
    /// Nobody holds the lock.
    NoLock,
}

/// Decides a release, of one very grant if a token is given. `of_share` is the request that the
/// owner's share was granted to.
pub(crate) fn end_part(
    state: &LockState<'_>,
    owner: Owner<'_>,
    of_share: Option<RequestId<'_>>,
    token: Option<Token>,
) -> PartEnded {
    let remainder = match state {
        LockState::Free => return PartEnded::NoLock,
        LockState::Exclusive(_) => Remainder::Free,
        LockState::Shared(_) => Remainder::OtherShares,
    };
    part(state, owner, of_share, token).map_or(PartEnded::NotYours, |(token, attempt, _)| {
        PartEnded::By(token, attempt, remainder)
    })
}

/// The token, the attempt and the deadline of what an owner holds by an attempt, of one very grant
/// if a token is given. `of_share` is the request that the owner's share was granted to.
fn part(
    state: &LockState<'_>,
    owner: Owner<'_>,
    of_share: Option<RequestId<'_>>,
    token: Option<Token>,
) -> Option<(Token, Attempt, Option<Deadline>)> {
    let request = match state {
        LockState::Free => None,
        LockState::Exclusive(hold) => match hold.layout {
            Layout::Module { request, .. } => request,
            Layout::Plain | Layout::Hash => None,
        },
        LockState::Shared(_) => of_share,
    };
    let own = state.own(owner).filter(|own| own.is_by(token))?;
    let attempt = request.and_then(Attempt::of_request)?;
    Some((own.token?, attempt, own.deadline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::rules::{Asker, Hold, Share, Shares};
    use crate::lock::share::MAX_DEADLINE;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn token(value: u64) -> Token {
        Token::new(value).expect("in range")
    }

    /// What a key holds: a record, or shares by owner.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    enum Key {
        #[default]
        None,
        Record(Vec<u8>, Option<Deadline>),
        Set(BTreeMap<u8, (Token, Vec<u8>, Deadline)>),
    }

    impl Key {
        /// What `state()` of a server's key does.
        fn state(&self, owner: u8, request: Option<RequestId<'_>>) -> LockState<'_> {
            match self {
                Self::None => LockState::Free,
                Self::Record(value, deadline) => {
                    LockState::Exclusive(Hold::of_string(value, *deadline))
                }
                Self::Set(shares) => LockState::Shared(Shares {
                    own: shares.get(&owner).map(|(token, id, deadline)| Share {
                        token: Some(*token),
                        deadline: *deadline,
                        is_repeated: request.is_some_and(|request| request.bytes() == id),
                    }),
                    count: None,
                    next_lapse: shares
                        .values()
                        .map(|(.., deadline)| *deadline)
                        .min()
                        .unwrap_or(MAX_DEADLINE),
                }),
            }
        }

        fn request_of_share(&self, owner: u8) -> Option<RequestId<'_>> {
            match self {
                Self::Set(shares) => RequestId::new(&shares.get(&owner)?.1),
                _ => None,
            }
        }

        fn grant(&mut self, owner: u8, request: RequestId<'_>, token: Token, write: &Write) {
            match write {
                Write::Record(put) => *self = Self::Record(put.value.to_vec(), put.deadline),
                Write::Share(deadline) => {
                    if !matches!(self, Self::Set(_)) {
                        *self = Self::Set(BTreeMap::new());
                    }
                    if let Self::Set(shares) = self {
                        shares.insert(owner, (token, request.bytes().to_vec(), *deadline));
                    }
                }
            }
        }

        fn move_deadline(&mut self, owner: u8, to: Option<Deadline>) {
            match self {
                Self::None => panic!("nothing to renew"),
                Self::Record(_, deadline) => *deadline = to,
                Self::Set(shares) => {
                    let share = shares.get_mut(&owner).expect("a share to renew");
                    share.2 = to.expect("a share ends");
                }
            }
        }

        fn end(&mut self, owner: u8, remainder: &Remainder) {
            match (remainder, &mut *self) {
                (Remainder::Free, Self::Record(..)) => *self = Self::None,
                (Remainder::OtherShares, Self::Set(shares)) => {
                    shares.remove(&owner).expect("a share to end");
                    if shares.is_empty() {
                        *self = Self::None;
                    }
                }
                other => panic!("{other:?}"),
            }
        }

        fn expire(&mut self, now: UnixMillis) {
            match self {
                Self::None => {}
                Self::Record(_, deadline) => {
                    if deadline.is_some_and(|deadline| deadline.has_lapsed(now)) {
                        *self = Self::None;
                    }
                }
                Self::Set(shares) => {
                    shares.retain(|_, (.., deadline)| !deadline.has_lapsed(now));
                    if shares.is_empty() {
                        *self = Self::None;
                    }
                }
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    struct ModelHold {
        is_shared: bool,
        attempt: u64,
        token: u64,
        /// The last millisecond of the lease.
        until: i64,
    }

    /// A node as the table of the round describes it.
    #[derive(Debug, Default)]
    struct Model {
        holds: BTreeMap<u8, ModelHold>,
        highest: u64,
        ended: BTreeSet<u64>,
    }

    impl Model {
        fn has_room(&self, step: &Step) -> bool {
            !self.ended.contains(&step.attempt)
                && (self.holds.is_empty()
                    || step.is_shared
                        && !self.holds.contains_key(&step.owner)
                        && self.holds.values().all(|hold| hold.is_shared))
        }

        /// The owner's hold, by one grant if a token is given.
        fn own(&self, owner: u8, token: Option<u64>) -> Option<ModelHold> {
            let hold = self.holds.get(&owner).copied();
            hold.filter(|hold| token.is_none_or(|token| token == hold.token))
        }

        /// The hold of an attempt in the mode that is asked for.
        fn of_attempt(&self, step: &Step) -> Option<ModelHold> {
            self.own(step.owner, None)
                .filter(|hold| (hold.is_shared, hold.attempt) == (step.is_shared, step.attempt))
        }

        fn store(&mut self, owner: u8, hold: ModelHold) -> u64 {
            self.highest = self.highest.max(hold.token);
            self.holds.insert(owner, hold);
            hold.token
        }

        fn end(&mut self, owner: u8, hold: Option<ModelHold>) -> u64 {
            hold.map_or(0, |hold| {
                self.holds.remove(&owner);
                hold.token
            })
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Message {
        Vote { token: u64 },
        Settle { from: u64, to: u64 },
        Unvote,
        Extend { token: Option<u64> },
        Relock { token: u64, ago: i64, within: u64 },
        Release { token: Option<u64> },
    }

    #[derive(Clone, Copy, Debug)]
    struct Step {
        message: Message,
        owner: u8,
        attempt: u64,
        is_shared: bool,
        ttl: i64,
        /// Milliseconds that pass before.
        passed: i64,
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || 1..12_u64;
        let message = prop_oneof![
            4 => number().prop_map(|token| Message::Vote { token }),
            3 => (number(), number()).prop_map(|(from, to)| Message::Settle { from, to }),
            1 => Just(Message::Unvote),
            2 => prop::option::of(number()).prop_map(|token| Message::Extend { token }),
            2 => (number(), -3..4_i64, 0..3_u64)
                .prop_map(|(token, ago, within)| Message::Relock { token, ago, within }),
            1 => prop::option::of(number()).prop_map(|token| Message::Release { token }),
        ];
        (
            message,
            0..3_u8,
            0..8_u64,
            prop::bool::weighted(0.6),
            1..30_i64,
            0..8_i64,
        )
            .prop_map(|(message, owner, attempt, is_shared, ttl, passed)| Step {
                message,
                owner,
                attempt,
                is_shared,
                ttl,
                passed,
            })
    }

    /// Plays a message on a key, and says what the node answers: a token, 0 for no.
    fn play(
        key: &mut Key,
        fence: &mut Fence,
        ended: &mut EndedAttempts,
        step: &Step,
        now: UnixMillis,
    ) -> u64 {
        let name = [step.owner];
        let owner = Owner::new(&name).expect("in range");
        let ttl = Ttl::from_millis(step.ttl).expect("in range");
        let attempt = Attempt(step.attempt);
        let ballot = Ballot::new(owner, ttl, attempt, step.is_shared);
        let id = attempt.id();
        let request = id.as_request();
        let micros = now.as_micros();
        let before = key.clone();
        let state = before.state(step.owner, request);
        assert_eq!(ballot.asked().asker().request, request);
        let voted = match step.message {
            Message::Vote { token: it } => {
                vote(&state, &ballot, token(it), false, ended, micros, fence)
            }
            Message::Settle { from, to } => {
                settle(&state, &ballot, (token(from), token(to)), micros, fence)
            }
            Message::Relock {
                token: it,
                ago,
                within,
            } => {
                let at = UnixMillis(now.0 - ago);
                let window = Window { at, within };
                relock(
                    &state,
                    &ballot,
                    token(it),
                    window,
                    false,
                    ended,
                    micros,
                    fence,
                )
            }
            Message::Unvote => {
                ended.insert(attempt);
                let unvoted = unvote(&state, owner, attempt);
                if let Some((_, remainder)) = &unvoted {
                    key.end(step.owner, remainder);
                }
                return unvoted.map_or(0, |(token, _)| token.expect("a token").get());
            }
            Message::Extend { token: it } => {
                let of_share = before.request_of_share(step.owner);
                let state = before.state(step.owner, Asker::of(owner).request);
                return match extend(&state, owner, of_share, it.map(token), ttl, micros) {
                    Extended::Until(token, of, deadline) => {
                        key.move_deadline(step.owner, deadline);
                        token.get() * 100 + of.0
                    }
                    Extended::NotYours => 0,
                    Extended::NoLock(at) => {
                        assert_eq!(at, now);
                        0
                    }
                };
            }
            Message::Release { token: it } => {
                let of_share = before.request_of_share(step.owner);
                let state = before.state(step.owner, Asker::of(owner).request);
                return match end_part(&state, owner, of_share, it.map(token)) {
                    PartEnded::By(token, of, remainder) => {
                        ended.insert(of);
                        key.end(step.owner, &remainder);
                        token.get() * 100 + of.0
                    }
                    PartEnded::NotYours | PartEnded::NoLock => 0,
                };
            }
        };
        match voted {
            Voted::Granted(token, write) | Voted::Settled(token, write) => {
                key.grant(step.owner, request.expect("an id"), token, &write);
                token.get()
            }
            Voted::Kept(token, deadline) => {
                key.move_deadline(step.owner, deadline);
                token.get()
            }
            Voted::Refused => 0,
            Voted::NoTokenLeft => panic!("far from the end"),
        }
    }

    /// The same for the model.
    fn expect(model: &mut Model, step: &Step, now: i64) -> u64 {
        let &Step { owner, attempt, .. } = step;
        let until = now + step.ttl;
        let new = |token| ModelHold {
            is_shared: step.is_shared,
            attempt,
            token,
            until,
        };
        let again = |hold: ModelHold, token| ModelHold {
            token,
            until: hold.until.max(until),
            ..hold
        };
        match step.message {
            Message::Vote { token } => match model.of_attempt(step) {
                Some(hold) => model.store(owner, again(hold, hold.token)),
                None if model.has_room(step) => {
                    let token = token.max(model.highest + 1);
                    model.store(owner, new(token))
                }
                None => 0,
            },
            Message::Settle { from, to } => match model.of_attempt(step) {
                Some(hold) if [from, to].contains(&hold.token) => {
                    model.store(owner, again(hold, to))
                }
                _ => 0,
            },
            Message::Relock { token, ago, within } => {
                if ago.unsigned_abs() < within && model.has_room(step) {
                    model.store(owner, new(token))
                } else {
                    0
                }
            }
            Message::Unvote => {
                model.ended.insert(attempt);
                let hold = model.own(owner, None);
                model.end(owner, hold.filter(|hold| hold.attempt == attempt))
            }
            Message::Extend { token } => model.own(owner, token).map_or(0, |hold| {
                model.store(owner, again(hold, hold.token)) * 100 + hold.attempt
            }),
            Message::Release { token } => {
                let Some(hold) = model.own(owner, token) else {
                    return 0;
                };
                model.ended.insert(hold.attempt);
                model.end(owner, Some(hold)) * 100 + hold.attempt
            }
        }
    }

    proptest! {
        #[test]
        fn a_node_does_what_the_table_says(steps in prop::collection::vec(step(), 1..80)) {
            let (mut key, mut fence, mut model) = (Key::default(), Fence::default(), Model::default());
            let mut ended = EndedAttempts::default();
            let mut now = 0;
            for step in steps {
                now += step.passed;
                key.expire(UnixMillis(now));
                model.holds.retain(|_, hold| hold.until >= now);
                let expected = expect(&mut model, &step, now);
                prop_assert_eq!(play(&mut key, &mut fence, &mut ended, &step, UnixMillis(now)), expected, "{:?}", step);
                for owner in 0..3 {
                    let name = [owner];
                    let name = Owner::new(&name).expect("in range");
                    let own = key.state(owner, None).own(name);
                    let own = own.map(|own| (own.token.map(Token::get), own.deadline));
                    let hold = model.holds.get(&owner);
                    let hold = hold.map(|hold| (Some(hold.token), Some(Deadline(hold.until))));
                    prop_assert_eq!(own, hold, "{:?}", step);
                }
            }
        }
    }

    fn ballot(is_shared: bool) -> Ballot<'static> {
        let owner = Owner::new(b"o").expect("in range");
        Ballot::new(
            owner,
            Ttl::from_millis(10).expect("in range"),
            Attempt(7),
            is_shared,
        )
    }

    /// The hold of `o` by the request `id`, with so many holds and no deadline.
    fn record(id: Option<&[u8]>, holds: u64) -> Vec<u8> {
        let record = Record {
            token: token(5),
            holds,
            request: id.map(|id| RequestId::new(id).expect("in range")),
            owner: Owner::new(b"o").expect("in range"),
        };
        record.encode().to_vec()
    }

    const ID: &[u8] = b"q:0000000000000007";
    const NOW: UnixMicros = UnixMicros(1_000_000);

    #[test]
    fn whoever_waits_is_not_overtaken() {
        let mut fence = Fence::default();
        let window = Window {
            at: NOW.as_millis(),
            within: 1,
        };
        for is_shared in [false, true] {
            let ballot = ballot(is_shared);
            let free = LockState::Free;
            let none = EndedAttempts::default();
            let voted = vote(&free, &ballot, token(5), true, &none, NOW, &mut fence);
            assert_eq!(voted, Voted::Refused);
            let voted = relock(
                &free,
                &ballot,
                token(5),
                window,
                true,
                &none,
                NOW,
                &mut fence,
            );
            assert_eq!(voted, Voted::Refused);
        }
    }

    #[test]
    fn a_hold_by_no_attempt_is_not_the_attempts() {
        let mut fence = Fence::default();
        let ballot = ballot(false);
        for value in [
            record(None, 1),
            record(Some(b"7"), 1),
            record(Some(b"q:7"), 1),
            record(Some(b"q:0000000000000008"), 1),
            b"o".to_vec(),
            b"q:0000000000000007".to_vec(),
        ] {
            let hold = Hold::of_string(&value, None);
            let is_attempt = value.ends_with(b"8:o");
            let state = LockState::Exclusive(hold);
            let voted = vote(
                &state,
                &ballot,
                token(9),
                false,
                &EndedAttempts::default(),
                NOW,
                &mut fence,
            );
            assert_eq!(voted, Voted::Refused);
            let voted = settle(&state, &ballot, (token(5), token(9)), NOW, &mut fence);
            assert_eq!(voted, Voted::Refused);
            assert_eq!(unvote(&state, ballot.owner, Attempt(7)), None);
            let extended = extend(&state, ballot.owner, None, None, ballot.ttl, NOW);
            if is_attempt {
                assert_eq!(extended, Extended::Until(token(5), Attempt(8), None));
            } else {
                assert_eq!(extended, Extended::NotYours);
            }
        }
    }

    #[test]
    fn a_reentered_hold_keeps_its_holds_and_goes_at_once() {
        let mut fence = Fence::default();
        let ballot = ballot(false);
        let value = record(Some(ID), 3);
        let state = LockState::Exclusive(Hold::of_string(&value, Some(Deadline(1_005))));
        let settled = settle(&state, &ballot, (token(5), token(4)), NOW, &mut fence);
        let Voted::Settled(to, Write::Record(put)) = settled else {
            panic!("{settled:?}");
        };
        assert_eq!((to, put.deadline), (token(4), Some(Deadline(1_010))));
        assert_eq!(put.value.as_slice(), b"lk1r:4:3:18:q:0000000000000007:o");
        let unvoted = unvote(&state, ballot.owner, Attempt(7));
        assert_eq!(unvoted, Some((Some(token(5)), Remainder::Free)));
    }

    #[test]
    fn a_lease_without_an_end_gets_none() {
        let mut fence = Fence::default();
        let ballot = ballot(false);
        let value = record(Some(ID), 1);
        let state = LockState::Exclusive(Hold::of_string(&value, None));
        let voted = vote(
            &state,
            &ballot,
            token(9),
            false,
            &EndedAttempts::default(),
            NOW,
            &mut fence,
        );
        assert_eq!(voted, Voted::Kept(token(5), None));
        let extended = extend(&state, ballot.owner, None, None, ballot.ttl, NOW);
        assert_eq!(extended, Extended::Until(token(5), Attempt(7), None));
    }

    #[test]
    fn a_window_is_open_for_as_long_as_it_says_to_both_sides() {
        let window = Window {
            at: UnixMillis(100),
            within: 5,
        };
        for (now, is_open) in [
            (95, false),
            (96, true),
            (100, true),
            (104, true),
            (105, false),
        ] {
            assert_eq!(window.is_open(UnixMillis(now)), is_open, "{now}");
        }
        let window = Window {
            at: UnixMillis(i64::MAX),
            within: 0,
        };
        assert!(!window.is_open(UnixMillis(-1)));
    }
}
