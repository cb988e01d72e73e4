//! Waiting: a fair queue for every lock that somebody waits for, and nothing for all others.
//!
//! A request that finds its lock held [joins](WaitTable::join) the queue of that lock in the same
//! step. Whoever changes the lock's key then [settles](WaitTable::settle) the queue with what the
//! key holds: when that is nothing, the head of the queue is granted, and its record is the next
//! value of the key. So a lock is never free while somebody waits for it, nobody overtakes, and
//! there is no wake-up that could be lost.
//!
//! A waiter leaves by its [`Ticket`], whatever the reason, or when its time is over. The table
//! says when it has to be looked at [next](WaitTable::next_wake): a lapsed lease, a wait whose
//! time is over, or a key that was [marked](WaitTable::mark) because somebody else changed it.
//!
//! Every operation is O(log n) in the number of waiters; a hand-over also looks at each request of
//! the new holder that waits for the same lock.

use super::fence::{Fence, Token};
use super::lease::{Deadline, Ttl};
use super::record::{OwnerBuf, RequestIdBuf};
use super::rules::{Acquire, Acquired, Hold, Put, acquire};
use super::time::{Now, SteadyMillis, UnixMicros, UnixMillis};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// Which lock: the number of its database, and its key. Clones share the key's bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockName {
    pub(crate) db: i32,
    pub(crate) key: Rc<[u8]>,
}

/// A place in a queue. Tickets are numbered in the order of arrival and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// A request that waits. `C` is what the caller needs to answer its client.
#[derive(Debug)]
pub(crate) struct Waiter<C> {
    pub(crate) owner: OwnerBuf,
    pub(crate) ttl: Ttl,
    pub(crate) request: Option<RequestIdBuf>,
    pub(crate) reentrant: bool,
    /// Whether the watchdog is to renew the lease once it is granted.
    pub(crate) watch: bool,
    /// When it began to wait.
    pub(crate) since: SteadyMillis,
    /// The last moment at which it is still content to wait; `None`: for ever.
    pub(crate) until: Option<SteadyMillis>,
    pub(crate) client: C,
}

impl<C> Waiter<C> {
    /// What it asked for. The lease counts from the grant.
    fn asked(&self) -> Acquire<'_> {
        Acquire {
            owner: self.owner.as_owner(),
            ttl: self.ttl,
            request: self.request.as_ref().map(RequestIdBuf::as_request),
            reentrant: self.reentrant,
        }
    }
}

/// The waiters of one lock, in order of arrival.
#[derive(Debug)]
struct Queue<C> {
    waiters: BTreeMap<Ticket, Waiter<C>>,
    /// The deadline of the present holder, as far as it is known.
    deadline: Option<Deadline>,
    /// When this lock is looked at next. Never after its holder's deadline as far as that is
    /// known; it may be before it, since a renewal does not move it.
    recheck_after: Option<Deadline>,
}

/// How many may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// On this server.
    pub(crate) total: usize,
    /// For one lock.
    pub(crate) per_lock: usize,
}

/// Which limit a request came up against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Total,
    PerLock,
}

/// A free lock passed to whoever stood first.
#[derive(Debug)]
pub(crate) struct HandOver<C> {
    /// The record of the new holder.
    pub(crate) put: Put,
    /// Those who hold the lock by it: the head of the queue, and requests of the same owner that
    /// are a re-entry or a repetition now. Never empty.
    pub(crate) granted: Vec<Granted<C>>,
    /// Whether the lock was free because the lease of its last holder had lapsed.
    pub(crate) after_expiry: bool,
}

/// A waiter that waits no longer.
#[derive(Debug)]
pub(crate) struct Granted<C> {
    pub(crate) waiter: Waiter<C>,
    pub(crate) token: Token,
    /// Which of the owner's holds it has, from 0 on in the order in which they were granted. A
    /// request that was sent twice has one hold for both.
    pub(crate) hold: usize,
}

/// No token is left to mint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoTokenLeft;

/// All that wait on this server.
#[derive(Debug)]
pub(crate) struct WaitTable<C> {
    queues: BTreeMap<i32, HashMap<Rc<[u8]>, Queue<C>>>,
    /// Where each ticket stands.
    places: HashMap<Ticket, LockName>,
    /// The same places, to be found by who waits there.
    owners: BTreeSet<(OwnerBuf, LockName, Ticket)>,
    /// After which moment each lock is looked at.
    rechecks: BTreeSet<(Deadline, LockName)>,
    /// When the time of each waiter is over, of those who do not wait for ever.
    timeouts: BTreeSet<(SteadyMillis, Ticket)>,
    /// Locks whose key somebody else changed.
    marked: BTreeSet<LockName>,
    next_ticket: u64,
}

impl<C> Default for WaitTable<C> {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            places: HashMap::new(),
            owners: BTreeSet::new(),
            rechecks: BTreeSet::new(),
            timeouts: BTreeSet::new(),
            marked: BTreeSet::new(),
            next_ticket: 0,
        }
    }
}

impl<C> WaitTable<C> {
    /// Whether nobody waits for anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The full name of a lock that somebody waits for.
    pub(crate) fn name(&self, db: i32, key: &[u8]) -> Option<LockName> {
        let (key, _) = self.queues.get(&db)?.get_key_value(key)?;
        Some(LockName {
            db,
            key: Rc::clone(key),
        })
    }

    /// How many wait on this server.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// How many locks somebody waits for.
    pub(crate) fn contended_len(&self) -> usize {
        self.queues.values().map(HashMap::len).sum()
    }

    /// How many wait for a lock.
    pub(crate) fn waiting_for(&self, db: i32, key: &[u8]) -> usize {
        self.queue(db, key).map_or(0, |queue| queue.waiters.len())
    }

    /// Those who wait for a lock, in the order in which they will be granted.
    pub(crate) fn queue_of(&self, db: i32, key: &[u8]) -> impl Iterator<Item = &Waiter<C>> {
        self.queue(db, key)
            .into_iter()
            .flat_map(|queue| queue.waiters.values())
    }

    /// The locks of a database that somebody waits for, and how many do.
    pub(crate) fn contended(&self, db: i32) -> impl Iterator<Item = (&[u8], usize)> {
        self.queues
            .get(&db)
            .into_iter()
            .flatten()
            .map(|(key, queue)| (&**key, queue.waiters.len()))
    }

    /// The locks that an owner waits for.
    pub(crate) fn waits_of(&self, owner: &OwnerBuf) -> impl Iterator<Item = &LockName> {
        let first = LockName {
            db: i32::MIN,
            key: Rc::from([]),
        };
        self.owners
            .range((owner.clone(), first, Ticket(0))..)
            .take_while(move |(other, _, _)| other == owner)
            .map(|(_, lock, _)| lock)
    }

    fn queue(&self, db: i32, key: &[u8]) -> Option<&Queue<C>> {
        self.queues.get(&db)?.get(key)
    }

    fn queue_mut(&mut self, name: &LockName) -> Option<&mut Queue<C>> {
        self.queues.get_mut(&name.db)?.get_mut(&name.key)
    }

    /// Whether one more may wait for a lock.
    pub(crate) fn check_room(&self, db: i32, key: &[u8], limits: Limits) -> Result<(), Full> {
        if self.places.len() >= limits.total {
            Err(Full::Total)
        } else if self.waiting_for(db, key) >= limits.per_lock {
            Err(Full::PerLock)
        } else {
            Ok(())
        }
    }

    /// Puts a request at the end of a lock's queue. `deadline` is that of the present holder.
    pub(crate) fn join(
        &mut self,
        db: i32,
        key: &[u8],
        deadline: Option<Deadline>,
        waiter: Waiter<C>,
    ) -> Ticket {
        let name = self.name(db, key).unwrap_or_else(|| LockName {
            db,
            key: key.into(),
        });
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.places.insert(ticket, name.clone());
        self.owners
            .insert((waiter.owner.clone(), name.clone(), ticket));
        if let Some(until) = waiter.until {
            self.timeouts.insert((until, ticket));
        }
        self.queues
            .entry(db)
            .or_default()
            .entry(Rc::clone(&name.key))
            .or_insert_with(|| Queue {
                waiters: BTreeMap::new(),
                deadline: None,
                recheck_after: None,
            })
            .waiters
            .insert(ticket, waiter);
        self.note_deadline(&name, deadline);
        ticket
    }

    /// Takes a waiter out of its queue, wherever it stands. `None` when it waits no longer.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waiter<C>> {
        let name = self.places.remove(&ticket)?;
        let queue = self.queue_mut(&name)?;
        let waiter = queue.waiters.remove(&ticket)?;
        let is_last = queue.waiters.is_empty();
        self.owners
            .remove(&(waiter.owner.clone(), name.clone(), ticket));
        if let Some(until) = waiter.until {
            self.timeouts.remove(&(until, ticket));
        }
        if is_last {
            self.forget(&name);
        }
        Some(waiter)
    }

    /// Gives up the queue of a lock: all its waiters leave, in order.
    pub(crate) fn reject_all(&mut self, name: &LockName) -> Vec<Waiter<C>> {
        let tickets: Vec<Ticket> = self
            .queue(name.db, &name.key)
            .into_iter()
            .flat_map(|queue| queue.waiters.keys().copied())
            .collect();
        tickets
            .into_iter()
            .filter_map(|ticket| self.leave(ticket))
            .collect()
    }

    /// Removes an empty queue with all that hangs on it.
    fn forget(&mut self, name: &LockName) {
        if let Some(queues) = self.queues.get_mut(&name.db) {
            let queue = queues.remove(&name.key);
            if let Some(after) = queue.and_then(|queue| queue.recheck_after) {
                self.rechecks.remove(&(after, name.clone()));
            }
            if queues.is_empty() {
                self.queues.remove(&name.db);
            }
        }
        self.marked.remove(name);
    }

    /// Takes note of a deadline of the present holder, so that the lock is looked at when the
    /// lease lapses. If it is to be looked at earlier anyway, that stays: the deadline is seen
    /// then, and a lock that is renewed all the time costs nothing here.
    pub(crate) fn note_deadline(&mut self, name: &LockName, deadline: Option<Deadline>) {
        let Some(queue) = self.queue_mut(name) else {
            return;
        };
        queue.deadline = deadline;
        let Some(deadline) = deadline else {
            return;
        };
        match queue.recheck_after {
            Some(after) if after <= deadline => {}
            earlier => {
                queue.recheck_after = Some(deadline);
                if let Some(earlier) = earlier {
                    self.rechecks.remove(&(earlier, name.clone()));
                }
                self.rechecks.insert((deadline, name.clone()));
            }
        }
    }

    /// Remembers that somebody else changed the key of a lock that somebody waits for.
    pub(crate) fn mark(&mut self, name: LockName) {
        self.marked.insert(name);
    }

    /// Remembers that the keys of a whole database may have changed; of all without a number.
    pub(crate) fn mark_all(&mut self, db: Option<i32>) {
        let names = self
            .queues
            .iter()
            .filter(|(number, _)| db.is_none_or(|db| db == **number))
            .flat_map(|(&db, queues)| {
                queues.keys().map(move |key| LockName {
                    db,
                    key: Rc::clone(key),
                })
            });
        self.marked.extend(names);
    }

    /// Says what the key of a lock holds now. A free lock passes to the head of its queue.
    ///
    /// The caller writes the record and answers those who are granted; they have left the queue.
    pub(crate) fn settle(
        &mut self,
        name: &LockName,
        hold: Option<&Hold<'_>>,
        now: UnixMicros,
        fence: &mut Fence,
    ) -> Result<Option<HandOver<C>>, NoTokenLeft> {
        self.marked.remove(name);
        if let Some(hold) = hold {
            self.note_deadline(name, hold.deadline);
            return Ok(None);
        }
        let Some(queue) = self.queue(name.db, &name.key) else {
            return Ok(None);
        };
        let Some((&ticket, head)) = queue.waiters.first_key_value() else {
            return Ok(None);
        };
        let after_expiry = queue
            .deadline
            .is_some_and(|deadline| deadline.left(now.as_millis()) == 0);
        let Acquired::Granted(token, mut put) = acquire(None, &head.asked(), now, fence) else {
            return Err(NoTokenLeft);
        };
        let owner = head.owner.clone();
        let mut granted: Vec<Granted<C>> = Vec::new();
        let mut holds = 1;
        granted.extend(self.leave(ticket).map(|waiter| Granted {
            waiter,
            token,
            hold: 0,
        }));
        for ticket in self.tickets_for(name, &owner) {
            let hold = Hold::of_string(&put.value, put.deadline);
            let Some(waiter) = self
                .queue(name.db, &name.key)
                .and_then(|queue| queue.waiters.get(&ticket))
            else {
                continue;
            };
            let asked = waiter.asked();
            let hold = match acquire(Some(&hold), &asked, now, fence) {
                Acquired::Reentered(_, more) => {
                    put = more;
                    holds += 1;
                    holds - 1
                }
                // The hold of the last one that was granted under the same name.
                Acquired::Repeated(_) => granted
                    .iter()
                    .rev()
                    .find(|other| other.waiter.asked().request == asked.request)
                    .map_or(0, |other| other.hold),
                _ => continue,
            };
            granted.extend(self.leave(ticket).map(|waiter| Granted {
                waiter,
                token,
                hold,
            }));
        }
        self.note_deadline(name, put.deadline);
        Ok(Some(HandOver {
            put,
            granted,
            after_expiry,
        }))
    }

    /// The places of an owner in the queue of one lock, in order of arrival.
    fn tickets_for(&self, name: &LockName, owner: &OwnerBuf) -> Vec<Ticket> {
        let first = (owner.clone(), name.clone(), Ticket(0));
        let last = (owner.clone(), name.clone(), Ticket(u64::MAX));
        self.owners
            .range(first..=last)
            .map(|(_, _, ticket)| *ticket)
            .collect()
    }

    /// Microseconds until something is due, 0 when something is now; `None` when nothing will be.
    pub(crate) fn next_wake(&self, now: Now) -> Option<u64> {
        if !self.marked.is_empty() {
            return Some(0);
        }
        let lease = self
            .rechecks
            .first()
            .map(|(deadline, _)| deadline.lapses_in(now.wall));
        let timeout = self
            .timeouts
            .first()
            .map(|(until, _)| until.micros_after(now.steady));
        lease.into_iter().chain(timeout).min()
    }

    /// Takes out the waiters whose time is over at `now`.
    pub(crate) fn take_timed_out(&mut self, now: SteadyMillis) -> Vec<Waiter<C>> {
        let mut timed_out = Vec::new();
        while let Some(&(_, ticket)) = self.timeouts.first().filter(|(until, _)| *until <= now) {
            timed_out.extend(self.leave(ticket));
        }
        timed_out
    }

    /// The locks to settle at `now`: somebody changed their key, or their lease has lapsed as far as
    /// is known here. They stay [marked](WaitTable::mark) until they are settled or
    /// [unmarked](WaitTable::unmark).
    pub(crate) fn due(&mut self, now: UnixMillis) -> Vec<LockName> {
        while self
            .rechecks
            .first()
            .is_some_and(|(deadline, _)| deadline.has_lapsed(now))
        {
            if let Some((_, name)) = self.rechecks.pop_first() {
                if let Some(queue) = self.queue_mut(&name) {
                    queue.recheck_after = None;
                }
                self.marked.insert(name);
            }
        }
        self.marked.iter().cloned().collect()
    }

    /// Takes the mark off a lock that is about to be settled.
    pub(crate) fn unmark(&mut self, name: &LockName) {
        self.marked.remove(name);
    }

    /// Whether no trace of any waiter is left.
    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.queues.is_empty()
            && self.places.is_empty()
            && self.owners.is_empty()
            && self.rechecks.is_empty()
            && self.timeouts.is_empty()
            && self.marked.is_empty()
    }
}
