//! Random histories of several locks with queues, against a model made of plain lists.
//!
//! `Server` does with the wait table what the module does with it; the keyspace is a map. `Model`
//! keeps its waiters in a `Vec` and walks all of it for every question.

use crate::lock::deadlock::circle;
use crate::lock::fence::Fence;
use crate::lock::lease::{Deadline, Ttl};
use crate::lock::queue::{Full, Limits, LockName, Ticket, WaitTable, Waiter};
use crate::lock::record::{Owner, OwnerBuf, RequestId, RequestIdBuf};
use crate::lock::rules::{Acquire, Acquired, Hold, Released, Remainder, acquire, release};
use crate::lock::time::{Now, SteadyMillis, UnixMicros};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const LOCKS: u8 = 3;
const OWNERS: [&str; 4] = ["a", "b", "c", "d"];
const LIMITS: Limits = Limits {
    total: 6,
    per_lock: 4,
};

/// What became of a request, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Granted(u32),
    InVain(u32),
}

#[derive(Clone, Debug)]
enum Op {
    Ask {
        lock: u8,
        owner: &'static str,
        ttl: u16,
        timeout: Option<u16>,
        request: Option<u8>,
        reentrant: bool,
    },
    /// The holder of a lock ends one hold.
    Release(u8),
    /// The holder's lease is set anew, by a renewal or by `PEXPIRE`.
    Renew { lock: u8, ttl: u16 },
    /// Somebody deletes the key.
    Delete(u8),
    /// Somebody sets the key without the module's knowledge.
    Set { lock: u8, ttl: u16 },
    /// One of the waiters goes away.
    Leave(prop::sample::Index),
    /// Time passes.
    Pass(u16),
    /// Somebody sets the wall clock.
    SetClock(i16),
}

fn op() -> impl Strategy<Value = Op> {
    let lock = || 0..LOCKS;
    let ttl = || 1..40u16;
    prop_oneof![
        8 => (
            lock(),
            prop::sample::select(OWNERS.to_vec()),
            ttl(),
            prop::option::of(0..60u16),
            prop::option::weighted(0.2, 0..2u8),
            any::<bool>(),
        ).prop_map(|(lock, owner, ttl, timeout, request, reentrant)| {
            Op::Ask { lock, owner, ttl, timeout, request, reentrant }
        }),
        6 => lock().prop_map(Op::Release),
        1 => (lock(), ttl()).prop_map(|(lock, ttl)| Op::Renew { lock, ttl }),
        1 => lock().prop_map(Op::Delete),
        1 => (lock(), ttl()).prop_map(|(lock, ttl)| Op::Set { lock, ttl }),
        2 => any::<prop::sample::Index>().prop_map(Op::Leave),
        4 => (0..30u16).prop_map(Op::Pass),
        1 => (-20..20i16).prop_map(Op::SetClock),
    ]
}

fn name(lock: u8) -> LockName {
    LockName {
        db: i32::from(lock % 2),
        key: [lock].as_slice().into(),
    }
}

/// Locks in the order in which the table looks at those that are due together.
fn locks_in_order() -> Vec<u8> {
    let mut locks: Vec<u8> = (0..LOCKS).collect();
    locks.sort_by_key(|lock| name(*lock));
    locks
}

/// The module, with a map for a keyspace.
#[derive(Default)]
struct Server {
    waits: WaitTable<u32>,
    fence: Fence,
    keys: BTreeMap<u8, (Vec<u8>, Deadline)>,
    tickets: BTreeMap<u32, Ticket>,
    outcomes: Vec<Outcome>,
}

impl Server {
    fn expire(&mut self, now: Now) {
        self.keys
            .retain(|_, (_, deadline)| !deadline.has_lapsed(now.wall.as_millis()));
    }

    fn settle(&mut self, lock: u8, now: Now) {
        let hold = self
            .keys
            .get(&lock)
            .map(|(value, deadline)| Hold::of_string(value, Some(*deadline)));
        let hand_over = self
            .waits
            .settle(&name(lock), hold.as_ref(), now.wall, &mut self.fence)
            .expect("tokens are left");
        if let Some(hand_over) = hand_over {
            let deadline = hand_over.put.deadline.expect("a grant has a deadline");
            self.keys
                .insert(lock, (hand_over.put.value.to_vec(), deadline));
            for granted in hand_over.granted {
                self.tickets.remove(&granted.waiter.client);
                self.outcomes.push(Outcome::Granted(granted.waiter.client));
            }
        }
    }

    fn ask(&mut self, id: u32, lock: u8, waiter: Waiter<u32>, now: Now) -> Result<(), Refusal> {
        self.settle(lock, now);
        let name = name(lock);
        let asked = Acquire {
            owner: waiter.owner.as_owner(),
            ttl: waiter.ttl,
            request: waiter.request.as_ref().map(RequestIdBuf::as_request),
            reentrant: waiter.reentrant,
        };
        let hold = self
            .keys
            .get(&lock)
            .map(|(value, deadline)| Hold::of_string(value, Some(*deadline)));
        match acquire(hold.as_ref(), &asked, now.wall, &mut self.fence) {
            Acquired::Granted(_, put) | Acquired::Reentered(_, put) => {
                let deadline = put.deadline.expect("a grant has a deadline");
                self.keys.insert(lock, (put.value.to_vec(), deadline));
                self.outcomes.push(Outcome::Granted(id));
            }
            Acquired::Repeated(_) => self.outcomes.push(Outcome::Granted(id)),
            Acquired::Busy => {
                let deadline = hold.and_then(|hold| hold.deadline);
                let keys = &self.keys;
                let circle = circle(&self.waits, waiter.owner.as_owner(), name.clone(), |lock| {
                    let (value, _) = keys.get(&lock.key[0])?;
                    Owner::new(&Hold::of_string(value, None).owner).map(OwnerBuf::from)
                });
                if circle.is_some() {
                    return Err(Refusal::Deadlock);
                }
                self.waits
                    .check_room(name.db, &name.key, LIMITS)
                    .map_err(Refusal::Full)?;
                let ticket = self.waits.join(name.db, &name.key, deadline, waiter);
                self.tickets.insert(id, ticket);
            }
            refused => panic!("{refused:?}"),
        }
        Ok(())
    }

    fn mark(&mut self, lock: u8) {
        if let Some(name) = self.waits.name(name(lock).db, &[lock]) {
            self.waits.mark(name);
        }
    }

    fn do_what_is_due(&mut self, now: Now) {
        for waiter in self.waits.take_timed_out(now.steady) {
            self.tickets.remove(&waiter.client);
            self.outcomes.push(Outcome::InVain(waiter.client));
        }
        for lock in self.waits.due(now.wall.as_millis()) {
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
}

#[derive(Clone, Debug)]
struct ModelWaiter {
    id: u32,
    lock: u8,
    owner: &'static str,
    ttl: i64,
    request: Option<u8>,
    reentrant: bool,
    until: Option<u64>,
}

#[derive(Default)]
struct Model {
    holders: BTreeMap<u8, ModelHolder>,
    /// In order of arrival.
    waiters: Vec<ModelWaiter>,
    outcomes: Vec<Outcome>,
}

impl Model {
    /// Whether the request is granted at once, given that nobody may overtake.
    fn try_grant(&mut self, waiter: &ModelWaiter, wall: i64) -> bool {
        match self.holders.get_mut(&waiter.lock) {
            None => {
                let holder = ModelHolder {
                    owner: waiter.owner,
                    holds: 1,
                    request: waiter.request,
                    until: wall + waiter.ttl,
                };
                self.holders.insert(waiter.lock, holder);
            }
            Some(holder) if holder.owner != waiter.owner || holder.holds == 0 => return false,
            Some(holder) if waiter.request.is_some() && waiter.request == holder.request => {}
            Some(_) if !waiter.reentrant => return false,
            Some(holder) => {
                holder.holds += 1;
                holder.request = waiter.request.or(holder.request);
                holder.until = holder.until.max(wall + waiter.ttl);
            }
        }
        self.outcomes.push(Outcome::Granted(waiter.id));
        true
    }

    fn expire(&mut self, wall: i64) {
        self.holders.retain(|_, holder| wall <= holder.until);
    }

    fn settle(&mut self, lock: u8, wall: i64) {
        if self.holders.contains_key(&lock) {
            return;
        }
        let Some(head) = self.waiters.iter().position(|waiter| waiter.lock == lock) else {
            return;
        };
        let head = self.waiters.remove(head);
        self.try_grant(&head, wall);
        for waiter in self.waiters.clone() {
            if waiter.lock == lock && waiter.owner == head.owner && self.try_grant(&waiter, wall) {
                self.waiters.retain(|other| other.id != waiter.id);
            }
        }
    }

    /// Whether following holders from `lock` on can reach `asker`.
    fn is_circle(&self, asker: &str, lock: u8) -> bool {
        let mut reachable = BTreeSet::from([lock]);
        loop {
            let holders: Vec<&str> = reachable
                .iter()
                .filter_map(|lock| self.holders.get(lock))
                .map(|holder| holder.owner)
                .collect();
            if holders.contains(&asker) {
                return true;
            }
            let before = reachable.len();
            reachable.extend(
                self.waiters
                    .iter()
                    .filter(|waiter| holders.contains(&waiter.owner))
                    .map(|waiter| waiter.lock),
            );
            if reachable.len() == before {
                return false;
            }
        }
    }

    fn ask(&mut self, waiter: ModelWaiter, wall: i64) -> Result<(), Refusal> {
        self.settle(waiter.lock, wall);
        if self.try_grant(&waiter, wall) {
            Ok(())
        } else if self.is_circle(waiter.owner, waiter.lock) {
            Err(Refusal::Deadlock)
        } else if self.waiters.len() >= LIMITS.total {
            Err(Refusal::Full(Full::Total))
        } else if self.count(waiter.lock) >= LIMITS.per_lock {
            Err(Refusal::Full(Full::PerLock))
        } else {
            self.waiters.push(waiter);
            Ok(())
        }
    }

    fn count(&self, lock: u8) -> usize {
        self.waiters
            .iter()
            .filter(|waiter| waiter.lock == lock)
            .count()
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
        for lock in locks_in_order() {
            if self.count(lock) > 0 {
                self.settle(lock, wall);
            }
        }
    }

    /// Milliseconds to the next moment at which something happens by itself.
    fn next_event(&self, wall: i64, steady: u64) -> Option<u64> {
        let leases = self
            .holders
            .iter()
            .filter(|(lock, _)| self.count(**lock) > 0)
            .map(|(_, holder)| u64::try_from(holder.until + 1 - wall).unwrap_or(0));
        let timeout = self
            .waiters
            .iter()
            .filter_map(|waiter| Some(waiter.until?.saturating_sub(steady)));
        leases.chain(timeout).min()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_table_does_what_the_model_does(ops in prop::collection::vec(op(), 1..120)) {
        let mut server = Server::default();
        let mut model = Model::default();
        let (mut wall, mut steady) = (1_000_000i64, 0u64);

        for (id, op) in (0u32..).zip(ops) {
            let now = Now {
                wall: UnixMicros(wall.unsigned_abs() * 1_000),
                steady: SteadyMillis(steady),
            };
            match op {
                Op::Ask { lock, owner, ttl, timeout, request, reentrant } => {
                    let until = timeout.map(|ms| steady + u64::from(ms));
                    let bytes = request.map(|id| [id]);
                    let waiter = Waiter {
                        owner: OwnerBuf::from(Owner::new(owner.as_bytes()).expect("in range")),
                        ttl: Ttl::from_millis(ttl.into()).expect("in range"),
                        request: bytes.as_ref().map(|id| {
                            RequestIdBuf::from(RequestId::new(id).expect("in range"))
                        }),
                        reentrant,
                        watch: false,
                        since: SteadyMillis(steady),
                        until: until.map(SteadyMillis),
                        client: id,
                    };
                    let model_waiter = ModelWaiter {
                        id, lock, owner, ttl: ttl.into(), request, reentrant, until,
                    };
                    prop_assert_eq!(
                        server.ask(id, lock, waiter, now),
                        model.ask(model_waiter, wall)
                    );
                }
                Op::Release(lock) => {
                    server.settle(lock, now);
                    model.settle(lock, wall);
                    if let Some(holder) = model.holders.get_mut(&lock) {
                        let (value, deadline) = &server.keys[&lock];
                        let hold = Hold::of_string(value, Some(*deadline));
                        let owner = Owner::new(holder.owner.as_bytes()).expect("in range");
                        let decision = release(Some(&hold), owner, None);
                        if holder.holds > 1 {
                            holder.holds -= 1;
                            let Released::Ended(Remainder::Record(put)) = decision else {
                                return Err(TestCaseError::fail(format!("{decision:?}")));
                            };
                            let deadline = put.deadline.expect("kept");
                            server.keys.insert(lock, (put.value.to_vec(), deadline));
                        } else {
                            prop_assert_eq!(decision, Released::Ended(Remainder::Free));
                            server.keys.remove(&lock);
                            server.settle(lock, now);
                            model.holders.remove(&lock);
                            model.settle(lock, wall);
                        }
                    }
                }
                Op::Renew { lock, ttl } => {
                    server.settle(lock, now);
                    model.settle(lock, wall);
                    if let Some(holder) = model.holders.get_mut(&lock) {
                        holder.until = wall + i64::from(ttl);
                        let deadline = Deadline(holder.until);
                        if let Some(key) = server.keys.get_mut(&lock) {
                            key.1 = deadline;
                        }
                        server.waits.note_deadline(&name(lock), Some(deadline));
                    }
                }
                Op::Delete(lock) => {
                    server.keys.remove(&lock);
                    server.mark(lock);
                    model.holders.remove(&lock);
                }
                Op::Set { lock, ttl } => {
                    let until = wall + i64::from(ttl);
                    server.keys.insert(lock, (b"z".to_vec(), Deadline(until)));
                    server.mark(lock);
                    model.holders.insert(lock, ModelHolder {
                        owner: "z", holds: 0, request: None, until,
                    });
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
            prop_assert_eq!(&server.outcomes, &model.outcomes);

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
                let lock_name = name(lock);
                let queue: Vec<u32> = server.waits
                    .queue_of(lock_name.db, &lock_name.key)
                    .map(|waiter| waiter.client)
                    .collect();
                let expected: Vec<u32> = model.waiters
                    .iter()
                    .filter(|waiter| waiter.lock == lock)
                    .map(|waiter| waiter.id)
                    .collect();
                prop_assert_eq!(&queue, &expected);
                // A lock is never free while somebody waits for it.
                prop_assert!(queue.is_empty() || server.keys.contains_key(&lock));
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
    let waiter = Waiter {
        owner: OwnerBuf::from(Owner::new(b"b").expect("in range")),
        ttl: Ttl::from_millis(10).expect("in range"),
        request: None,
        reentrant: false,
        watch: false,
        since: SteadyMillis(0),
        until: None,
        client: 1,
    };
    server
        .waits
        .join(lock.db, &lock.key, Some(deadline), waiter);
    let hold = Hold::of_string(b"a", Some(deadline));
    for _ in 0..3 {
        assert_eq!(server.waits.next_wake(now), Some(0));
        assert_eq!(
            server.waits.due(now.wall.as_millis()),
            std::slice::from_ref(&lock)
        );
        server.waits.unmark(&lock);
        let settled = server
            .waits
            .settle(&lock, Some(&hold), now.wall, &mut server.fence);
        assert!(settled.expect("tokens are left").is_none());
    }
}
