//! Random histories of several locks with queues, against a model made of plain lists.
//!
//! `Server` does with the wait table what the module does with it; the keyspace is a map. `Model`
//! keeps its waiters in a `Vec` and walks all of it for every question.

use crate::lock::deadlock::{Holders, Keys, circle};
use crate::lock::fence::{Fence, Token};
use crate::lock::lease::{Deadline, Ttl};
use crate::lock::queue::{Full, HandOver, Limits, LockName, Settled, Ticket, WaitTable, Waiter};
use crate::lock::record::{Owner, OwnerBuf, RequestId, RequestIdBuf};
use crate::lock::rules::{
    Acquired, Asker, Hold, LockState, Mode, Released, Remainder, Share, Shares, Write, acquire,
    grant_under, release,
};
use crate::lock::time::{Now, SteadyMillis, UnixMicros, UnixMillis};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

const LOCKS: u8 = 3;
const OWNERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const LIMITS: Limits = Limits {
    total: 7,
    per_lock: 5,
};

/// What became of a request, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Granted(u32),
    InVain(u32),
}

/// What a request wants.
#[derive(Clone, Debug)]
struct Wish {
    /// One lock, or several for an exclusive request without `reentrant`.
    locks: Vec<u8>,
    owner: &'static str,
    ttl: i64,
    mode: Mode,
    request: Option<u8>,
}

#[derive(Clone, Debug)]
enum Op {
    Ask(Wish, Option<u16>),
    /// One of the holders of a lock ends one hold.
    Release(u8, prop::sample::Index),
    /// The lease of one of the holders is set anew.
    Renew(u8, prop::sample::Index, u16),
    /// Somebody deletes the key.
    Delete(u8),
    /// Somebody sets the key without the module's knowledge.
    Set(u8, u16),
    /// One of the waiters goes away.
    Leave(prop::sample::Index),
    /// Time passes.
    Pass(u16),
    /// Somebody sets the wall clock.
    SetClock(i16),
}

fn wish() -> impl Strategy<Value = Wish> {
    let mode = prop_oneof![
        3 => any::<bool>().prop_map(|reentrant| Mode::Exclusive { reentrant }),
        3 => prop::option::of(1..4u32)
            .prop_map(|limit| Mode::Shared { limit: limit.and_then(NonZeroU32::new) }),
    ];
    let one = (0..LOCKS, mode, prop::option::weighted(0.2, 0..2u8))
        .prop_map(|(lock, mode, request)| (vec![lock], mode, request));
    let several = prop::sample::subsequence((0..LOCKS).collect::<Vec<u8>>(), 2..=3)
        .prop_map(|locks| (locks, Mode::Exclusive { reentrant: false }, None));
    (
        prop_oneof![3 => one, 1 => several],
        prop::sample::select(OWNERS.to_vec()),
        1..40i64,
    )
        .prop_map(|((locks, mode, request), owner, ttl)| Wish {
            locks,
            owner,
            ttl,
            mode,
            request,
        })
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    let lock = || 0..LOCKS;
    prop_oneof![
        9 => (wish(), prop::option::of(0..60u16)).prop_map(|(wish, until)| Op::Ask(wish, until)),
        6 => (lock(), index()).prop_map(|(lock, holder)| Op::Release(lock, holder)),
        1 => (lock(), index(), 1..40u16).prop_map(|(lock, holder, ttl)| Op::Renew(lock, holder, ttl)),
        1 => lock().prop_map(Op::Delete),
        1 => (lock(), 1..40u16).prop_map(|(lock, ttl)| Op::Set(lock, ttl)),
        2 => index().prop_map(Op::Leave),
        4 => (0..30u16).prop_map(Op::Pass),
        1 => (-20..20i16).prop_map(Op::SetClock),
    ]
}

fn name(lock: u8) -> LockName {
    LockName {
        db: 0,
        key: [lock].as_slice().into(),
    }
}

fn owner(text: &str) -> Owner<'_> {
    Owner::new(text.as_bytes()).expect("in range")
}

/// What a key holds.
#[derive(Clone, Debug)]
enum Value {
    Record(Vec<u8>, Deadline),
    Shares(Vec<ShareRow>),
}

#[derive(Clone, Debug)]
struct ShareRow {
    owner: OwnerBuf,
    token: Token,
    request: Option<RequestIdBuf>,
    deadline: Deadline,
}

/// The module, with a map for a keyspace.
#[derive(Default)]
struct Server {
    waits: WaitTable<u32>,
    fence: Fence,
    keys: BTreeMap<u8, Value>,
    tickets: BTreeMap<u32, Ticket>,
    outcomes: Vec<Outcome>,
    /// The token of the last grant of each lock.
    last_tokens: BTreeMap<u8, Token>,
}

fn state_of<'k>(keys: &'k BTreeMap<u8, Value>, lock: u8, asker: Asker<'_>) -> LockState<'k> {
    match keys.get(&lock) {
        None => LockState::Free,
        Some(Value::Record(value, deadline)) => {
            LockState::Exclusive(Hold::of_string(value, Some(*deadline)))
        }
        Some(Value::Shares(rows)) => {
            let own = rows.iter().find(|row| row.owner.as_owner() == asker.owner);
            LockState::Shared(Shares {
                own: own.map(|row| Share {
                    token: Some(row.token),
                    deadline: row.deadline,
                    is_repeated: asker.request.is_some()
                        && row.request.as_ref().map(RequestIdBuf::as_request) == asker.request,
                }),
                count: asker.counts.then_some(rows.len()),
                next_lapse: rows
                    .iter()
                    .map(|row| row.deadline)
                    .min()
                    .expect("a set has shares"),
            })
        }
    }
}

impl Keys for &BTreeMap<u8, Value> {
    fn holders(&mut self, lock: &LockName) -> Holders {
        match self.get(&lock.key[0]) {
            None => Holders::Nobody,
            Some(Value::Record(value, _)) => Owner::new(&Hold::of_string(value, None).owner)
                .map_or(Holders::Nobody, |owner| Holders::One(OwnerBuf::from(owner))),
            Some(Value::Shares(rows)) => Holders::Sharing(rows.len()),
        }
    }

    fn sharing_among(
        &mut self,
        lock: &LockName,
        owners: &mut dyn Iterator<Item = &OwnerBuf>,
    ) -> Vec<OwnerBuf> {
        let sharing = self.sharing(lock);
        owners
            .filter(|owner| sharing.contains(owner))
            .cloned()
            .collect()
    }

    fn sharing(&mut self, lock: &LockName) -> Vec<OwnerBuf> {
        match self.get(&lock.key[0]) {
            Some(Value::Shares(rows)) => rows.iter().map(|row| row.owner.clone()).collect(),
            _ => Vec::new(),
        }
    }
}

impl Server {
    fn expire(&mut self, now: Now) {
        let now = now.wall.as_millis();
        self.keys.retain(|_, value| match value {
            Value::Record(_, deadline) => !deadline.has_lapsed(now),
            Value::Shares(rows) => {
                rows.retain(|row| !row.deadline.has_lapsed(now));
                !rows.is_empty()
            }
        });
    }

    fn write(
        &mut self,
        lock: u8,
        owner: Owner<'_>,
        request: Option<RequestId<'_>>,
        token: Token,
        write: Write,
    ) {
        let last = self.last_tokens.insert(lock, token);
        assert!(
            last.is_none_or(|last| last < token),
            "tokens of a lock rise"
        );
        match write {
            Write::Record(put) => {
                let deadline = put.deadline.expect("a grant has a deadline");
                self.keys
                    .insert(lock, Value::Record(put.value.to_vec(), deadline));
            }
            Write::Share(deadline) => {
                let row = ShareRow {
                    owner: OwnerBuf::from(owner),
                    token,
                    request: request.map(RequestIdBuf::from),
                    deadline,
                };
                match self.keys.get_mut(&lock) {
                    Some(Value::Shares(rows)) => rows.push(row),
                    _ => {
                        self.keys.insert(lock, Value::Shares(vec![row]));
                    }
                }
            }
        }
    }

    /// Settles a lock; `is_free` says that its last holder is about to be taken out.
    fn settle(&mut self, lock: u8, now: Now) {
        while let Some(head) = self.waits.head(&name(lock)) {
            let state = state_of(&self.keys, lock, head.asked().asker());
            let outcome = self
                .waits
                .settle(&name(lock), &state, now.wall, &mut self.fence)
                .expect("tokens are left");
            match outcome {
                Settled::Waiting => break,
                Settled::Passed(hand_over) => self.hand_over(hand_over),
                Settled::Several(ticket) => {
                    let wanted = |looked_at| self.waits.wanted(ticket, looked_at);
                    let locks: Vec<LockName> = (0..).map_while(wanted).cloned().collect();
                    let held = locks
                        .iter()
                        .position(|lock| self.keys.contains_key(&lock.key[0]));
                    if let Some(held) = held {
                        self.waits.found_held(ticket, held);
                        assert_eq!(self.waits.wanted(ticket, 0), Some(&locks[held]));
                        break;
                    }
                    let passed = self.waits.pass_all(ticket, now.wall, &mut self.fence);
                    let Settled::Passed(hand_over) = passed.expect("tokens are left") else {
                        panic!("the head of its queues is there");
                    };
                    assert_eq!(hand_over.locks.len(), locks.len());
                    self.hand_over(hand_over);
                }
            }
        }
    }

    fn hand_over(&mut self, hand_over: HandOver<u32>) {
        let first = hand_over.granted.first().expect("somebody is granted");
        let (owner, request) = (first.waiter.owner.clone(), first.waiter.request.clone());
        for passed in hand_over.locks {
            let request = request.as_ref().map(RequestIdBuf::as_request);
            self.write(
                passed.name.key[0],
                owner.as_owner(),
                request,
                hand_over.token,
                passed.write,
            );
        }
        for granted in hand_over.granted {
            self.tickets.remove(&granted.waiter.client);
            self.outcomes.push(Outcome::Granted(granted.waiter.client));
        }
    }

    fn ask(&mut self, id: u32, locks: &[u8], waiter: Waiter<u32>, now: Now) -> Result<(), Refusal> {
        for lock in locks {
            self.settle(*lock, now);
        }
        let asked = waiter.asked();
        let is_queued = locks
            .iter()
            .any(|lock| self.waits.waiting_for(0, &[*lock]) > 0);
        let mut next_lapses = Vec::new();
        if let [lock] = locks {
            let state = state_of(&self.keys, *lock, asked.asker());
            next_lapses.push((name(*lock), state.next_lapse()));
            match acquire(&state, &asked, is_queued, now.wall, &mut self.fence) {
                Acquired::Granted(token, write) => {
                    self.write(*lock, asked.owner, asked.request, token, write);
                    self.outcomes.push(Outcome::Granted(id));
                    return Ok(());
                }
                Acquired::Reentered(_, put) => {
                    let deadline = put.deadline.expect("a grant has a deadline");
                    self.keys
                        .insert(*lock, Value::Record(put.value.to_vec(), deadline));
                    self.outcomes.push(Outcome::Granted(id));
                    return Ok(());
                }
                Acquired::Repeated(_) => {
                    self.outcomes.push(Outcome::Granted(id));
                    return Ok(());
                }
                Acquired::Busy => {}
                refused => panic!("{refused:?}"),
            }
        } else {
            let states: Vec<LockState<'_>> = locks
                .iter()
                .map(|lock| state_of(&self.keys, *lock, asked.asker()))
                .collect();
            if !is_queued && states.iter().all(|state| *state == LockState::Free) {
                drop(states);
                let token = self.fence.mint(now.wall).expect("tokens are left");
                for lock in locks {
                    let write = grant_under(token, &asked, now.wall);
                    self.write(*lock, asked.owner, None, token, write);
                }
                self.outcomes.push(Outcome::Granted(id));
                return Ok(());
            }
            next_lapses.extend(
                locks
                    .iter()
                    .zip(states)
                    .map(|(lock, state)| (name(*lock), state.next_lapse())),
            );
        }
        let names: Vec<LockName> = locks.iter().map(|lock| name(*lock)).collect();
        if circle(
            &self.waits,
            asked.owner,
            &names,
            asked.mode,
            &mut &self.keys,
        )
        .is_some()
        {
            return Err(Refusal::Deadlock);
        }
        self.waits
            .check_room(&names, LIMITS)
            .map_err(Refusal::Full)?;
        let ticket = self.waits.join(next_lapses, waiter);
        self.tickets.insert(id, ticket);
        Ok(())
    }

    /// One hold ends: the rest is what a release does.
    fn release(&mut self, lock: u8, owner: Owner<'_>, now: Now) -> Released {
        let state = state_of(&self.keys, lock, Asker::of(owner));
        let decision = release(&state, owner, None);
        match &decision {
            Released::Ended(_, Remainder::Free) => {
                self.keys.remove(&lock);
            }
            Released::Ended(_, Remainder::Record(put)) => {
                let deadline = put.deadline.expect("kept");
                self.keys
                    .insert(lock, Value::Record(put.value.to_vec(), deadline));
            }
            Released::Ended(_, Remainder::OtherShares) => {
                if let Some(Value::Shares(rows)) = self.keys.get_mut(&lock) {
                    rows.retain(|row| row.owner.as_owner() != owner);
                    if rows.is_empty() {
                        self.keys.remove(&lock);
                    }
                }
            }
            _ => {}
        }
        self.settle(lock, now);
        decision
    }

    fn renew(&mut self, lock: u8, owner: Owner<'_>, until: Deadline) {
        match self.keys.get_mut(&lock) {
            Some(Value::Record(_, deadline)) => *deadline = until,
            Some(Value::Shares(rows)) => rows
                .iter_mut()
                .filter(|row| row.owner.as_owner() == owner)
                .for_each(|row| row.deadline = until),
            None => {}
        }
        let next = state_of(&self.keys, lock, Asker::of(owner)).next_lapse();
        self.waits.note_deadline(&name(lock), next);
    }

    fn mark(&mut self, lock: u8) {
        if let Some(name) = self.waits.name(0, &[lock]) {
            self.waits.mark(name);
        }
    }

    fn do_what_is_due(&mut self, now: Now) {
        for waiter in self.waits.take_timed_out(now.steady) {
            self.tickets.remove(&waiter.client);
            self.outcomes.push(Outcome::InVain(waiter.client));
        }
        for lock in self.waits.due(now.wall.as_millis()) {
            self.waits.unmark(&lock);
            self.settle(lock.key[0], now);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Deadlock,
    Full(Full),
}

#[derive(Clone, Debug)]
struct ModelHolder {
    owner: &'static str,
    holds: u32,
    request: Option<u8>,
    until: i64,
    is_shared: bool,
}

#[derive(Clone, Debug)]
struct ModelWaiter {
    id: u32,
    wish: Wish,
    until: Option<u64>,
}

#[derive(Default)]
struct Model {
    holders: BTreeMap<u8, Vec<ModelHolder>>,
    /// In order of arrival.
    waiters: Vec<ModelWaiter>,
    outcomes: Vec<Outcome>,
}

/// How many stuck holders keep a request of a mode stuck.
fn stuck_needed(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive { .. } => 1,
        Mode::Shared { limit } => limit.map_or(usize::MAX, |limit| limit.get() as usize),
    }
}

impl Model {
    fn of(&self, lock: u8) -> &[ModelHolder] {
        self.holders.get(&lock).map_or(&[], Vec::as_slice)
    }

    fn has_room(&self, wish: &Wish, lock: u8) -> bool {
        let holders = self.of(lock);
        match wish.mode {
            Mode::Exclusive { .. } => holders.is_empty(),
            Mode::Shared { limit } => {
                holders
                    .iter()
                    .all(|holder| holder.is_shared && holder.owner != wish.owner)
                    && limit.is_none_or(|limit| holders.len() < limit.get() as usize)
            }
        }
    }

    fn give(&mut self, id: u32, wish: &Wish, wall: i64) {
        for lock in &wish.locks {
            self.holders.entry(*lock).or_default().push(ModelHolder {
                owner: wish.owner,
                holds: 1,
                request: wish.request,
                until: wall + wish.ttl,
                is_shared: matches!(wish.mode, Mode::Shared { .. }),
            });
        }
        self.outcomes.push(Outcome::Granted(id));
    }

    /// Whether the request is a repetition or a re-entry of what its owner holds.
    fn try_again(&mut self, id: u32, wish: &Wish, wall: i64) -> bool {
        let [lock] = wish.locks.as_slice() else {
            return false;
        };
        let wants_share = matches!(wish.mode, Mode::Shared { .. });
        let Some(holder) = self.holders.get_mut(lock).and_then(|holders| {
            holders.iter_mut().find(|holder| {
                holder.owner == wish.owner && holder.holds > 0 && holder.is_shared == wants_share
            })
        }) else {
            return false;
        };
        if wish.request.is_none() || wish.request != holder.request {
            if wish.mode != (Mode::Exclusive { reentrant: true }) {
                return false;
            }
            holder.holds += 1;
            holder.request = wish.request.or(holder.request);
            holder.until = holder.until.max(wall + wish.ttl);
        }
        self.outcomes.push(Outcome::Granted(id));
        true
    }

    fn expire(&mut self, wall: i64) {
        for holders in self.holders.values_mut() {
            holders.retain(|holder| wall <= holder.until);
        }
    }

    fn queue(&self, lock: u8) -> impl Iterator<Item = &ModelWaiter> {
        self.waiters
            .iter()
            .filter(move |waiter| waiter.wish.locks.contains(&lock))
    }

    fn settle(&mut self, lock: u8, wall: i64) {
        loop {
            let Some(head) = self.queue(lock).next().cloned() else {
                return;
            };
            let is_next = head.wish.locks.iter().all(|lock| {
                self.queue(*lock)
                    .next()
                    .is_some_and(|first| first.id == head.id)
            });
            let has_room = head
                .wish
                .locks
                .iter()
                .all(|lock| self.has_room(&head.wish, *lock));
            if !is_next || !has_room {
                return;
            }
            self.waiters.retain(|waiter| waiter.id != head.id);
            self.give(head.id, &head.wish, wall);
            for lock in &head.wish.locks {
                for waiter in self.waiters.clone() {
                    if waiter.wish.owner == head.wish.owner
                        && waiter.wish.locks == [*lock]
                        && self.try_again(waiter.id, &waiter.wish, wall)
                    {
                        self.waiters.retain(|other| other.id != waiter.id);
                    }
                }
            }
        }
    }

    /// Whether those who are stuck keep a request from a lock.
    fn is_blocked(
        &self,
        asker: &str,
        stuck: &BTreeSet<&str>,
        who: &Wish,
        lock: u8,
        place: Option<u32>,
    ) -> bool {
        let waits_elsewhere = |owner: &str| {
            self.waiters.iter().any(|waiter| {
                waiter.wish.owner == owner && waiter.wish.locks.iter().any(|other| *other != lock)
            })
        };
        let holders = self.of(lock);
        let holders_stuck = holders
            .iter()
            .filter(|holder| stuck.contains(holder.owner))
            .filter(|holder| {
                !holder.is_shared || holder.owner == asker || waits_elsewhere(holder.owner)
            })
            .count();
        let needed = if holders.iter().any(|holder| holder.is_shared) {
            let before = self
                .queue(lock)
                .take_while(|waiter| place.is_none_or(|place| waiter.id < place));
            let alone = before.filter(|waiter| matches!(waiter.wish.mode, Mode::Exclusive { .. }));
            let head = self.queue(lock).next();
            alone
                .chain(head)
                .map(|waiter| stuck_needed(waiter.wish.mode))
                .chain([stuck_needed(who.mode)])
                .min()
                .expect("at least its own")
        } else {
            1
        };
        holders_stuck >= needed
            || self
                .queue(lock)
                .take_while(|waiter| place.is_none_or(|place| waiter.id < place))
                .any(|waiter| {
                    let owner = waiter.wish.owner;
                    waiter.wish.locks.len() > 1
                        && owner != who.owner
                        && owner != asker
                        && stuck.contains(owner)
                })
    }

    /// Whether the request is kept from its locks by those who can't go on: all who wait, but for
    /// those who can because enough of the others can.
    fn is_stuck(&self, wish: &Wish, asker_goes_on: bool) -> bool {
        let mut stuck: BTreeSet<&str> = self
            .waiters
            .iter()
            .map(|waiter| waiter.wish.owner)
            .collect();
        stuck.insert(wish.owner);
        let is_kept = |stuck: &BTreeSet<&str>| {
            let mut locks = wish.locks.iter();
            locks.any(|lock| self.is_blocked(wish.owner, stuck, wish, *lock, None))
        };
        if asker_goes_on {
            stuck.remove(wish.owner);
        }
        loop {
            let still: BTreeSet<&str> = stuck
                .iter()
                .copied()
                .filter(|owner| {
                    if *owner == wish.owner {
                        // What the asker waits for already does not count.
                        return is_kept(&stuck);
                    }
                    self.waiters.iter().any(|waiter| {
                        waiter.wish.owner == *owner
                            && waiter.wish.locks.iter().any(|lock| {
                                let place = Some(waiter.id);
                                self.is_blocked(wish.owner, &stuck, &waiter.wish, *lock, place)
                            })
                    })
                })
                .collect();
            if still == stuck {
                return is_kept(&stuck);
            }
            stuck = still;
        }
    }

    /// Whether the request would close a circle, if only by waiting for what its owner holds.
    fn is_deadlock(&self, wish: &Wish) -> bool {
        let mut locks = wish.locks.iter();
        locks.any(|lock| {
            let mut holders = self.of(*lock).iter();
            holders.any(|holder| holder.owner == wish.owner)
        }) || self.is_stuck(wish, false) && !self.is_stuck(wish, true)
    }

    fn ask(&mut self, waiter: ModelWaiter, wall: i64) -> Result<(), Refusal> {
        let wish = &waiter.wish;
        for lock in &wish.locks {
            self.settle(*lock, wall);
        }
        let is_queued = wish.locks.iter().any(|lock| self.count(*lock) > 0);
        if self.try_again(waiter.id, wish, wall) {
            Ok(())
        } else if !is_queued && wish.locks.iter().all(|lock| self.has_room(wish, *lock)) {
            self.give(waiter.id, wish, wall);
            Ok(())
        } else if self.is_deadlock(wish) {
            Err(Refusal::Deadlock)
        } else if self.waiters.len() >= LIMITS.total {
            Err(Refusal::Full(Full::Total))
        } else if wish
            .locks
            .iter()
            .any(|lock| self.count(*lock) >= LIMITS.per_lock)
        {
            Err(Refusal::Full(Full::PerLock))
        } else {
            self.waiters.push(waiter);
            Ok(())
        }
    }

    fn count(&self, lock: u8) -> usize {
        self.queue(lock).count()
    }

    fn do_what_is_due(&mut self, wall: i64, steady: u64) {
        let mut timed_out: Vec<_> = self
            .waiters
            .iter()
            .filter_map(|waiter| Some((waiter.until.filter(|until| *until <= steady)?, waiter.id)))
            .collect();
        timed_out.sort_unstable();
        for (_, id) in timed_out {
            self.waiters.retain(|waiter| waiter.id != id);
            self.outcomes.push(Outcome::InVain(id));
        }
        for lock in 0..LOCKS {
            self.settle(lock, wall);
        }
    }

    /// Milliseconds to the next moment at which something happens by itself.
    fn next_event(&self, wall: i64, steady: u64) -> Option<u64> {
        let leases = (0..LOCKS)
            .filter(|lock| self.count(*lock) > 0)
            .flat_map(|lock| self.of(lock))
            .map(|holder| u64::try_from(holder.until + 1 - wall).unwrap_or(0));
        let timeout = self
            .waiters
            .iter()
            .filter_map(|waiter| Some(waiter.until?.saturating_sub(steady)));
        leases.chain(timeout).min()
    }

    /// What must hold between any two steps.
    fn check(&self) -> Result<(), TestCaseError> {
        for holders in self.holders.values() {
            let alone = holders.iter().any(|holder| !holder.is_shared);
            prop_assert!(
                !alone || holders.len() == 1,
                "a writer beside others: {holders:?}"
            );
        }
        Ok(())
    }
}

fn waiter(id: u32, wish: &Wish, now: Now, until: Option<u64>) -> Waiter<u32> {
    let request = wish.request.map(|id| [id]);
    Waiter {
        owner: OwnerBuf::from(owner(wish.owner)),
        ttl: Ttl::from_millis(wish.ttl).expect("in range"),
        request: request
            .as_ref()
            .map(|id| RequestIdBuf::from(RequestId::new(id).expect("in range"))),
        mode: wish.mode,
        watch: false,
        since: now.steady,
        until: until.map(SteadyMillis),
        client: id,
    }
}

/// Each of so many owners has a share of lock 0 and waits for lock 1, which as many others share, who
/// wait for lock 2. Counts how many of them it is asked for.
struct Crowd {
    size: usize,
    asked_for: usize,
}

impl Crowd {
    fn owner(lock: u8, number: usize) -> OwnerBuf {
        OwnerBuf::from(owner(&format!("{lock}:{number}")))
    }

    /// All of them in their queues.
    fn table(&self) -> WaitTable<u32> {
        let mut table = WaitTable::default();
        let limit = NonZeroU32::new(u32::try_from(self.size).expect("few"));
        for (lock, mode) in [
            (0, Mode::Shared { limit }),
            (1, Mode::Exclusive { reentrant: false }),
        ] {
            for number in 0..self.size {
                let waiter = Waiter {
                    owner: Self::owner(lock, number),
                    ttl: Ttl::from_millis(1).expect("in range"),
                    request: None,
                    mode,
                    watch: false,
                    since: SteadyMillis(0),
                    until: None,
                    client: 0,
                };
                table.join([(name(lock + 1), None)], waiter);
            }
        }
        table
    }
}

impl Keys for Crowd {
    fn holders(&mut self, lock: &LockName) -> Holders {
        match lock.key[0] {
            2 => Holders::One(OwnerBuf::from(owner("last"))),
            _ => Holders::Sharing(self.size),
        }
    }

    fn sharing_among(
        &mut self,
        lock: &LockName,
        owners: &mut dyn Iterator<Item = &OwnerBuf>,
    ) -> Vec<OwnerBuf> {
        let prefix = [b'0' + lock.key[0], b':'];
        let is_holder = |owner: &&OwnerBuf| owner.as_owner().bytes().starts_with(&prefix);
        owners
            .inspect(|_| self.asked_for += 1)
            .filter(is_holder)
            .cloned()
            .collect()
    }

    fn sharing(&mut self, lock: &LockName) -> Vec<OwnerBuf> {
        self.asked_for += self.size;
        (0..self.size)
            .map(|number| Self::owner(lock.key[0], number))
            .collect()
    }
}

/// Those who hold a lock are looked up once for all who wait for it.
#[test]
fn a_search_for_a_deadlock_takes_as_many_steps_as_there_are_waits() {
    let mut crowd = Crowd {
        size: 500,
        asked_for: 0,
    };
    let table = crowd.table();
    let mode = Mode::Exclusive { reentrant: false };
    let writer = owner("writer");
    assert_eq!(circle(&table, writer, &[name(0)], mode, &mut crowd), None);
    assert!(crowd.asked_for < 10 * crowd.size, "{}", crowd.asked_for);

    // The last holder closes a circle: all others wait for it, one behind the other.
    let last = owner("last");
    let found = circle(&table, last, &[name(0)], mode, &mut crowd).expect("a circle");
    let locks: Vec<u8> = found.iter().map(|step| step.lock.key[0]).collect();
    assert_eq!(locks, [0, 1, 2]);
    assert!(crowd.asked_for < 20 * crowd.size, "{}", crowd.asked_for);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_table_does_what_the_model_does(ops in prop::collection::vec(op(), 1..120)) {
        let mut server = Server::default();
        let mut model = Model::default();
        let (mut wall, mut steady) = (1_000_000i64, 0u64);
        let mut wanted: BTreeMap<u32, Vec<u8>> = BTreeMap::new();

        for (id, op) in (0u32..).zip(ops) {
            let now = Now {
                wall: UnixMicros(wall.unsigned_abs() * 1_000),
                steady: SteadyMillis(steady),
            };
            match op {
                Op::Ask(wish, timeout) => {
                    let until = timeout.map(|ms| steady + u64::from(ms));
                    let waiter = waiter(id, &wish, now, until);
                    wanted.insert(id, wish.locks.clone());
                    prop_assert_eq!(
                        server.ask(id, &wish.locks, waiter, now),
                        model.ask(ModelWaiter { id, wish, until }, wall)
                    );
                }
                Op::Release(lock, index) => {
                    server.settle(lock, now);
                    model.settle(lock, wall);
                    let holders = model.holders.entry(lock).or_default();
                    if !holders.is_empty() {
                        let index = index.index(holders.len());
                        let holder = &mut holders[index];
                        let decision = server.release(lock, owner(holder.owner), now);
                        prop_assert!(matches!(decision, Released::Ended(..)), "{:?}", decision);
                        if holder.holds > 1 {
                            holder.holds -= 1;
                        } else {
                            holders.remove(index);
                        }
                        model.settle(lock, wall);
                    }
                }
                Op::Renew(lock, index, ttl) => {
                    server.settle(lock, now);
                    model.settle(lock, wall);
                    let holders = model.holders.entry(lock).or_default();
                    if !holders.is_empty() {
                        let index = index.index(holders.len());
                        let holder = &mut holders[index];
                        holder.until = wall + i64::from(ttl);
                        server.renew(lock, owner(holder.owner), Deadline(holder.until));
                    }
                }
                Op::Delete(lock) => {
                    server.keys.remove(&lock);
                    server.mark(lock);
                    model.holders.remove(&lock);
                }
                Op::Set(lock, ttl) => {
                    let until = wall + i64::from(ttl);
                    server.keys.insert(lock, Value::Record(b"z".to_vec(), Deadline(until)));
                    server.mark(lock);
                    model.holders.insert(lock, vec![ModelHolder {
                        owner: "z", holds: 0, request: None, until, is_shared: false,
                    }]);
                }
                Op::Leave(index) => {
                    if !model.waiters.is_empty() {
                        let index = index.index(model.waiters.len());
                        let waiter = model.waiters.remove(index);
                        let ticket = server.tickets.remove(&waiter.id).expect("it waits");
                        let left = server.waits.leave(ticket);
                        prop_assert_eq!(left.map(|waiter| waiter.client), Some(waiter.id));
                        prop_assert!(server.waits.leave(ticket).is_none());
                    }
                }
                Op::Pass(ms) => {
                    steady += u64::from(ms);
                    wall += i64::from(ms);
                }
                Op::SetClock(ms) => wall += i64::from(ms),
            }

            // What lapses is deleted, and what is due by now happens now, as the alarm would see to.
            let now = Now {
                wall: UnixMicros(wall.unsigned_abs() * 1_000),
                steady: SteadyMillis(steady),
            };
            server.expire(now);
            model.expire(wall);
            model.do_what_is_due(wall, steady);
            while server.waits.next_wake(now) == Some(0) {
                server.do_what_is_due(now);
            }
            // In the same order for each lock; among different locks there is no order.
            for lock in 0..LOCKS {
                let of_lock = |outcomes: &[Outcome]| -> Vec<Outcome> {
                    outcomes.iter().copied().filter(|outcome| {
                        let (Outcome::Granted(id) | Outcome::InVain(id)) = outcome;
                        wanted[id].contains(&lock)
                    }).collect()
                };
                prop_assert_eq!(of_lock(&server.outcomes), of_lock(&model.outcomes));
            }
            model.check()?;

            // Never late, and asleep for ever only when there is nothing to wait for.
            let wake = server.waits.next_wake(now);
            match model.next_event(wall, steady) {
                Some(next) => {
                    let next = next * 1_000;
                    prop_assert!(wake.is_some_and(|wake| wake <= next), "{wake:?} > {next}");
                }
                None => prop_assert!(model.waiters.is_empty() || wake.is_none()),
            }
            for lock in 0..LOCKS {
                let queue: Vec<u32> = server.waits
                    .queue_of(0, &[lock])
                    .map(|waiter| waiter.client)
                    .collect();
                let expected: Vec<u32> = model.queue(lock).map(|waiter| waiter.id).collect();
                prop_assert_eq!(&queue, &expected);
                // A lock is never free while somebody waits for it, unless the first one wants
                // others too.
                let head_wants_one = model.queue(lock).next()
                    .is_some_and(|head| head.wish.locks.len() == 1);
                prop_assert!(!head_wants_one || server.keys.contains_key(&lock));
            }
        }

        // Nothing is left behind by those who are gone.
        for ticket in server.tickets.into_values() {
            server.waits.leave(ticket);
        }
        prop_assert!(server.waits.holds_nothing());
    }
}

/// The clock that a server expires keys by can stand still behind the wall clock, so a lease can
/// have lapsed here while its key is still there. It is due once each time that one asks.
#[test]
fn a_lapsed_lease_that_the_server_still_shows_is_due_again_and_not_over_and_over() {
    let mut server = Server::default();
    let deadline = Deadline(1_000);
    let now = Now {
        wall: UnixMicros(1_001_000),
        steady: SteadyMillis(0),
    };
    let lock = name(0);
    let wish = Wish {
        locks: vec![0],
        owner: "b",
        ttl: 10,
        mode: Mode::Exclusive { reentrant: false },
        request: None,
    };
    server.waits.join(
        [(lock.clone(), Some(deadline))],
        waiter(1, &wish, now, None),
    );
    let state = LockState::Exclusive(Hold::of_string(b"a", Some(deadline)));
    for _ in 0..3 {
        assert_eq!(server.waits.next_wake(now), Some(0));
        assert_eq!(
            server.waits.due(UnixMillis(1_001)),
            std::slice::from_ref(&lock)
        );
        server.waits.unmark(&lock);
        let settled = server
            .waits
            .settle(&lock, &state, now.wall, &mut server.fence);
        assert!(matches!(settled, Ok(Settled::Waiting)));
    }
}
