//! Waiting: a fair queue for every lock that somebody waits for, and nothing for all others.
//!
//! A request that finds its lock held [joins](WaitTable::join) the queue of that lock in the same
//! step. Whoever changes the lock's key then [settles](WaitTable::settle) the queue with what the
//! key says, again and again until nobody more is granted: the head of the queue gets the lock as
//! soon as it may have it, and what it gets is the next value of the key. So nobody overtakes, and
//! there is no wake-up that could be lost.
//!
//! A request for several locks stands in all their queues with one ticket. It is granted when it is
//! the head of each of them and all the locks are free; until then it holds none. Only for its sake
//! can a lock be free while somebody waits for it.
//!
//! A waiter leaves by its [`Ticket`], whatever the reason, or when its time is over. The table
//! says when it has to be looked at [next](WaitTable::next_wake): a lapsed lease, a wait whose
//! time is over, or a key that was [marked](WaitTable::mark) because somebody else changed it, or
//! because the head of its queue has left.
//!
//! Every operation is O(log n) in the number of waiters. To join, to leave and to be granted is that
//! times the number of locks that the waiter wants; so are all looks at these locks together, while
//! each is given up once. A hand-over also looks at each request of the new holder that waits for the same lock.

use super::fence::{Fence, Token};
use super::lease::{Deadline, Ttl};
use super::record::{OwnerBuf, RequestIdBuf};
use super::rules::{Acquire, Acquired, Hold, LockState, Mode, Write, acquire, grant_under};
use super::time::{Now, SteadyMillis, UnixMicros, UnixMillis};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// Which lock: the number of its database, and its key. Clones share the key's bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockName {
    pub(crate) db: i32,
    pub(crate) key: Rc<[u8]>,
}

/// The locks of one request: nearly always one.
pub(crate) type Locks = SmallVec<[LockName; 1]>;

/// A place in the queues. Tickets are numbered in the order of arrival and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// A request that waits. `C` is what the caller needs to answer its client.
#[derive(Debug)]
pub(crate) struct Waiter<C> {
    pub(crate) owner: OwnerBuf,
    pub(crate) ttl: Ttl,
    pub(crate) request: Option<RequestIdBuf>,
    pub(crate) mode: Mode,
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
    pub(crate) fn asked(&self) -> Acquire<'_> {
        Acquire {
            owner: self.owner.as_owner(),
            ttl: self.ttl,
            request: self.request.as_ref().map(RequestIdBuf::as_request),
            mode: self.mode,
        }
    }
}

/// A waiter and where it stands.
#[derive(Debug)]
struct Entry<C> {
    waiter: Waiter<C>,
    locks: Locks,
    progress: Progress,
}

/// How far one that waits for several locks has come. To look at each of them whenever one of them
/// is given up would take the square of their number.
#[derive(Debug, Default)]
struct Progress {
    /// How many of the locks, from the first on, it is the head of the queue of. That it stays until
    /// it leaves.
    headed: usize,
    /// Which of the locks was found to be held, or will be looked at first.
    held: usize,
}

/// Those who wait for one lock.
#[derive(Debug, Default)]
struct Queue {
    /// All of them, in order of arrival.
    tickets: BTreeSet<Ticket>,
    /// Those of them that want other locks too.
    several: BTreeSet<Ticket>,
    /// Those of them that want the lock alone.
    alone: BTreeSet<Ticket>,
    /// When a present hold lapses next, as far as it is known.
    deadline: Option<Deadline>,
    /// When this lock is looked at next. Never after that deadline; it may be before it, since a
    /// renewal does not move it.
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

/// What came of looking at a lock that somebody may wait for.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a hand-over costs no allocation more"
)]
pub(crate) enum Settled<C> {
    /// Nobody is granted now: nobody waits, or the head of the queue has to wait on.
    Waiting,
    /// The head of the queue is granted. Look again: the next one may be, too.
    Passed(HandOver<C>),
    /// The head of the queue [wants](WaitTable::wanted) other locks too, and is the head of each
    /// queue. If the others are free as well, it is to be [granted](WaitTable::pass_all).
    Several(Ticket),
}

/// A lock, or several, passed to whoever stood first.
#[derive(Debug)]
pub(crate) struct HandOver<C> {
    pub(crate) token: Token,
    /// What is granted: one lock, or all that the new holder asked for.
    pub(crate) locks: SmallVec<[Passed; 1]>,
    /// Those who hold by it: the head of the queue, and requests of the same owner that are a
    /// re-entry or a repetition now. Never empty.
    pub(crate) granted: Vec<Granted<C>>,
}

/// One lock that is passed on.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) name: LockName,
    /// What makes the new holder one.
    pub(crate) write: Write,
    /// Whether there was room because a lease had lapsed.
    pub(crate) after_expiry: bool,
}

/// A waiter that waits no longer.
#[derive(Debug)]
pub(crate) struct Granted<C> {
    pub(crate) waiter: Waiter<C>,
    pub(crate) locks: Locks,
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
    waiters: HashMap<Ticket, Entry<C>>,
    queues: BTreeMap<i32, HashMap<Rc<[u8]>, Queue>>,
    /// All places in queues, to be found by who waits there.
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
            waiters: HashMap::new(),
            queues: BTreeMap::new(),
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
        self.waiters.is_empty()
    }

    /// The full name of a lock that somebody waits for.
    pub(crate) fn name(&self, db: i32, key: &[u8]) -> Option<LockName> {
        let (key, _) = self.queues.get(&db)?.get_key_value(key)?;
        Some(LockName {
            db,
            key: Rc::clone(key),
        })
    }

    /// How many wait on this server. One that wants several locks is one.
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many locks somebody waits for.
    pub(crate) fn contended_len(&self) -> usize {
        self.queues.values().map(HashMap::len).sum()
    }

    /// How many wait for a lock.
    pub(crate) fn waiting_for(&self, db: i32, key: &[u8]) -> usize {
        self.queue(db, key).map_or(0, |queue| queue.tickets.len())
    }

    /// Those who wait for a lock, in the order in which they will be granted.
    pub(crate) fn queue_of(&self, db: i32, key: &[u8]) -> impl Iterator<Item = &Waiter<C>> {
        self.queue(db, key)
            .into_iter()
            .flat_map(|queue| &queue.tickets)
            .filter_map(|ticket| Some(&self.waiters.get(ticket)?.waiter))
    }

    /// Who stands first in the queue of a lock.
    pub(crate) fn head(&self, name: &LockName) -> Option<&Waiter<C>> {
        self.queue_of(name.db, &name.key).next()
    }

    /// The locks of a database that somebody waits for, and how many do.
    pub(crate) fn contended(&self, db: i32) -> impl Iterator<Item = (&[u8], usize)> {
        self.queues
            .get(&db)
            .into_iter()
            .flatten()
            .map(|(key, queue)| (&**key, queue.tickets.len()))
    }

    /// The locks that an owner waits for, and the place it has in each queue.
    pub(crate) fn waits_of(&self, owner: &OwnerBuf) -> impl Iterator<Item = (&LockName, Ticket)> {
        let first = LockName {
            db: i32::MIN,
            key: Rc::from([]),
        };
        self.owners
            .range((owner.clone(), first, Ticket(0))..)
            .take_while(move |(other, _, _)| other == owner)
            .map(|(_, lock, ticket)| (lock, *ticket))
    }

    /// How many places there are in the queues of all locks but one.
    pub(crate) fn places_elsewhere(&self, name: &LockName) -> usize {
        self.owners
            .len()
            .saturating_sub(self.waiting_for(name.db, &name.key))
    }

    /// The owners that wait for any lock but one, each once.
    pub(crate) fn owners_elsewhere(&self, name: &LockName) -> impl Iterator<Item = &OwnerBuf> {
        let mut last = None;
        self.owners
            .iter()
            .filter(move |(_, lock, _)| lock != name)
            .map(|(owner, _, _)| owner)
            .filter(move |owner| last.replace(*owner) != Some(*owner))
    }

    /// Who stands nearest before a place in a queue, of those who want several locks and are none of
    /// `others`; `None` as the place: the end of the queue.
    pub(crate) fn nearest_several_before(
        &self,
        name: &LockName,
        place: Option<Ticket>,
        others: &[&OwnerBuf],
    ) -> Option<&OwnerBuf> {
        let end = place.unwrap_or(Ticket(u64::MAX));
        self.queue(name.db, &name.key)?
            .several
            .range(..end)
            .rev()
            .filter_map(|ticket| Some(&self.waiters.get(ticket)?.waiter.owner))
            .find(|owner| !others.contains(owner))
    }

    /// How many of those who share a lock have to be stuck for a request of this `mode` to be stuck
    /// behind them at a place in the queue; `None`: at its end. A request for the lock alone waits
    /// for each of them, and one with a limit only for so many that there is room. What keeps the
    /// head of the queue keeps everybody, and what keeps one who wants the lock alone keeps all
    /// behind it.
    pub(crate) fn stuck_behind(&self, name: &LockName, place: Option<Ticket>, mode: Mode) -> usize {
        let by = |mode| match mode {
            Mode::Exclusive { .. } => 1,
            Mode::Shared { limit } => limit
                .and_then(|limit| usize::try_from(limit.get()).ok())
                .unwrap_or(usize::MAX),
        };
        let end = place.unwrap_or(Ticket(u64::MAX));
        let is_behind_alone = self
            .queue(name.db, &name.key)
            .and_then(|queue| queue.alone.first())
            .is_some_and(|first| *first < end);
        if is_behind_alone {
            return 1;
        }
        self.head(name)
            .map_or(usize::MAX, |head| by(head.mode))
            .min(by(mode))
    }

    /// How a waiter wants to hold the lock.
    pub(crate) fn mode_of(&self, ticket: Ticket) -> Option<Mode> {
        Some(self.waiters.get(&ticket)?.waiter.mode)
    }

    fn queue(&self, db: i32, key: &[u8]) -> Option<&Queue> {
        self.queues.get(&db)?.get(key)
    }

    fn queue_mut(&mut self, name: &LockName) -> Option<&mut Queue> {
        self.queues.get_mut(&name.db)?.get_mut(&name.key)
    }

    /// Whether one more may wait on this server, for all of these locks.
    pub(crate) fn check_room(&self, locks: &[LockName], limits: Limits) -> Result<(), Full> {
        if self.waiters.len() >= limits.total {
            Err(Full::Total)
        } else if locks
            .iter()
            .any(|lock| self.waiting_for(lock.db, &lock.key) >= limits.per_lock)
        {
            Err(Full::PerLock)
        } else {
            Ok(())
        }
    }

    /// Puts a request at the end of the queue of each of its locks. With each lock comes the moment
    /// when a present hold of it lapses next.
    pub(crate) fn join(
        &mut self,
        locks: impl IntoIterator<Item = (LockName, Option<Deadline>)>,
        waiter: Waiter<C>,
    ) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let mut names = Locks::new();
        for (name, deadline) in locks {
            // The bytes of a key are kept once.
            let name = self.name(name.db, &name.key).unwrap_or(name);
            self.owners
                .insert((waiter.owner.clone(), name.clone(), ticket));
            let queue = self
                .queues
                .entry(name.db)
                .or_default()
                .entry(Rc::clone(&name.key))
                .or_default();
            queue.tickets.insert(ticket);
            if matches!(waiter.mode, Mode::Exclusive { .. }) {
                queue.alone.insert(ticket);
            }
            self.note_deadline(&name, deadline);
            names.push(name);
        }
        if names.len() > 1 {
            for name in &names {
                if let Some(queue) = self.queue_mut(name) {
                    queue.several.insert(ticket);
                }
            }
        }
        if let Some(until) = waiter.until {
            self.timeouts.insert((until, ticket));
        }
        self.waiters.insert(
            ticket,
            Entry {
                waiter,
                locks: names,
                progress: Progress::default(),
            },
        );
        ticket
    }

    /// Takes a waiter out of its queues, wherever it stands. `None` when it waits no longer.
    ///
    /// Who stood behind it may be granted now: the lock is marked to be looked at.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waiter<C>> {
        let locks = self.waiters.get(&ticket)?.locks.clone();
        let headed = locks
            .into_iter()
            .filter(|lock| self.is_head(lock, ticket))
            .collect::<Locks>();
        let entry = self.remove(ticket)?;
        self.marked.extend(
            headed
                .into_iter()
                .filter(|lock| self.queue(lock.db, &lock.key).is_some())
                .collect::<Locks>(),
        );
        Some(entry.waiter)
    }

    /// Whether a ticket is the first in the queue of a lock.
    fn is_head(&self, name: &LockName, ticket: Ticket) -> bool {
        self.queue(name.db, &name.key)
            .is_some_and(|queue| queue.tickets.first() == Some(&ticket))
    }

    /// Whether a ticket is the first in the queue of each of its locks.
    fn heads_all(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.waiters.get(&ticket) else {
            return false;
        };
        let headed = entry.progress.headed;
        let more = entry.locks.get(headed..).unwrap_or_default().iter();
        let headed = headed + more.take_while(|lock| self.is_head(lock, ticket)).count();
        self.waiters.get_mut(&ticket).is_some_and(|entry| {
            entry.progress.headed = headed;
            headed >= entry.locks.len()
        })
    }

    /// The lock to look at after `looked_at` others, to find out whether all that a waiter wants are
    /// free: the first is the one that was found to be [held](WaitTable::found_held). `None` after
    /// the last.
    pub(crate) fn wanted(&self, ticket: Ticket, looked_at: usize) -> Option<&LockName> {
        let entry = self.waiters.get(&ticket)?;
        let len = entry.locks.len();
        let index = entry.progress.held.checked_add(looked_at)? % len.max(1);
        entry.locks.get(index).filter(|_| looked_at < len)
    }

    /// Takes note that the lock that is looked at after `looked_at` others is held.
    pub(crate) fn found_held(&mut self, ticket: Ticket, looked_at: usize) {
        if let Some(entry) = self.waiters.get_mut(&ticket) {
            let len = entry.locks.len().max(1);
            entry.progress.held = entry.progress.held.saturating_add(looked_at) % len;
        }
    }

    /// Takes a waiter out of its queues.
    fn remove(&mut self, ticket: Ticket) -> Option<Entry<C>> {
        let entry = self.waiters.remove(&ticket)?;
        for name in &entry.locks {
            self.owners
                .remove(&(entry.waiter.owner.clone(), name.clone(), ticket));
            let Some(queue) = self.queue_mut(name) else {
                continue;
            };
            queue.tickets.remove(&ticket);
            queue.several.remove(&ticket);
            queue.alone.remove(&ticket);
            if queue.tickets.is_empty() {
                self.forget(name);
            }
        }
        if let Some(until) = entry.waiter.until {
            self.timeouts.remove(&(until, ticket));
        }
        Some(entry)
    }

    /// Gives up the queue of a lock: all its waiters leave, in order.
    pub(crate) fn reject_all(&mut self, name: &LockName) -> Vec<Waiter<C>> {
        let tickets: Vec<Ticket> = self
            .queue(name.db, &name.key)
            .into_iter()
            .flat_map(|queue| queue.tickets.iter().copied())
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

    /// Says what the key of a lock says now, to the one who stands first: `state` was read for its
    /// owner and its request. If it can have the lock, it gets it.
    ///
    /// The caller writes what is granted and answers those who are; they have left the queue.
    pub(crate) fn settle(
        &mut self,
        name: &LockName,
        state: &LockState<'_>,
        now: UnixMicros,
        fence: &mut Fence,
    ) -> Result<Settled<C>, NoTokenLeft> {
        self.marked.remove(name);
        let ticket = self
            .queue(name.db, &name.key)
            .and_then(|queue| queue.tickets.first().copied());
        let Some(ticket) = ticket else {
            return Ok(Settled::Waiting);
        };
        let Some(head) = self.waiters.get(&ticket) else {
            return Ok(Settled::Waiting);
        };
        if head.locks.len() > 1 {
            if *state != LockState::Free {
                self.note_deadline(name, state.next_lapse());
                return Ok(Settled::Waiting);
            }
            if !self.has_lapsed(name, now) {
                // It was given up before its deadline.
                self.note_deadline(name, None);
            }
            return Ok(if self.heads_all(ticket) {
                Settled::Several(ticket)
            } else {
                Settled::Waiting
            });
        }
        if matches!(state, LockState::Exclusive(_)) {
            self.note_deadline(name, state.next_lapse());
            return Ok(Settled::Waiting);
        }
        let asked = head.waiter.asked();
        match acquire(state, &asked, false, now, fence) {
            Acquired::Granted(token, write) => {
                let passed = Passed {
                    name: name.clone(),
                    write,
                    after_expiry: self.has_lapsed(name, now),
                };
                Ok(self.pass(ticket, token, SmallVec::from_iter([passed]), now, fence))
            }
            Acquired::NoTokenLeft => Err(NoTokenLeft),
            // A free lock is granted, so somebody has a share.
            _ => {
                self.note_deadline(name, state.next_lapse());
                Ok(Settled::Waiting)
            }
        }
    }

    /// Grants several locks to a waiter that is the head of all their queues. The caller has found
    /// every one of them free.
    pub(crate) fn pass_all(
        &mut self,
        ticket: Ticket,
        now: UnixMicros,
        fence: &mut Fence,
    ) -> Result<Settled<C>, NoTokenLeft> {
        let Some(entry) = self.waiters.get(&ticket) else {
            return Ok(Settled::Waiting);
        };
        // One grant and one token: each lock gets a copy of the record.
        let token = fence.mint(now).ok_or(NoTokenLeft)?;
        let locks = entry
            .locks
            .iter()
            .map(|name| Passed {
                name: name.clone(),
                write: grant_under(token, &entry.waiter.asked(), now),
                after_expiry: self.has_lapsed(name, now),
            })
            .collect();
        Ok(self.pass(ticket, token, locks, now, fence))
    }

    /// Takes the one who is granted out of its queues, and those who are with it.
    fn pass(
        &mut self,
        ticket: Ticket,
        token: Token,
        mut locks: SmallVec<[Passed; 1]>,
        now: UnixMicros,
        fence: &mut Fence,
    ) -> Settled<C> {
        let Some(entry) = self.remove(ticket) else {
            return Settled::Waiting;
        };
        let mut granted = vec![Granted {
            waiter: entry.waiter,
            locks: entry.locks,
            hold: 0,
        }];
        for passed in &mut locks {
            self.take_along(passed, &mut granted, now, fence);
            self.note_deadline(&passed.name, passed.write.deadline());
        }
        Settled::Passed(HandOver {
            token,
            locks,
            granted,
        })
    }

    /// Grants the requests for a lock that are a re-entry or a repetition now that their owner, the
    /// first of `granted`, holds it.
    fn take_along(
        &mut self,
        passed: &mut Passed,
        granted: &mut Vec<Granted<C>>,
        now: UnixMicros,
        fence: &mut Fence,
    ) {
        let Some(owner) = granted.first().map(|first| first.waiter.owner.clone()) else {
            return;
        };
        for ticket in self.tickets_for(&passed.name, &owner) {
            let Some(entry) = self.waiters.get(&ticket) else {
                continue;
            };
            let asked = entry.waiter.asked();
            if entry.locks.len() > 1 {
                continue;
            }
            let repeated = granted
                .iter()
                .rev()
                .find(|other| {
                    asked.request.is_some() && other.waiter.asked().request == asked.request
                })
                .map_or(0, |other| other.hold);
            let next = granted
                .iter()
                .map(|other| other.hold + 1)
                .max()
                .unwrap_or(0);
            let hold = match &mut passed.write {
                Write::Record(put) => {
                    let hold = Hold::of_string(&put.value, put.deadline);
                    match acquire(&LockState::Exclusive(hold), &asked, false, now, fence) {
                        Acquired::Reentered(_, more) => {
                            *put = more;
                            next
                        }
                        // The hold of the last one that was granted under the same name.
                        Acquired::Repeated(_) => repeated,
                        _ => continue,
                    }
                }
                Write::Share(_) => {
                    let is_repeated = granted.first().is_some_and(|first| {
                        let first = first.waiter.asked();
                        asked.request.is_some() && first.request == asked.request
                    });
                    if !is_repeated || !matches!(asked.mode, Mode::Shared { .. }) {
                        continue;
                    }
                    0
                }
            };
            granted.extend(self.remove(ticket).map(|entry| Granted {
                waiter: entry.waiter,
                locks: entry.locks,
                hold,
            }));
        }
    }

    /// Whether the last hold of a lock that is known here has lapsed.
    fn has_lapsed(&self, name: &LockName, now: UnixMicros) -> bool {
        self.queue(name.db, &name.key)
            .and_then(|queue| queue.deadline)
            .is_some_and(|deadline| deadline.left(now.as_millis()) == 0)
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
            && self.waiters.is_empty()
            && self.owners.is_empty()
            && self.rechecks.is_empty()
            && self.timeouts.is_empty()
            && self.marked.is_empty()
    }
}
