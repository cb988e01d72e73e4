//! The watchdog: leases that the server renews for as long as a connection lives.
//!
//! A watch belongs to one hold of one lock and to the connection that asked for it. Every third of
//! its `ttl` the lease is set to at least `ttl` from then. A watch ends with its connection, after
//! which the lease runs out by itself; with the last release; when the hold turns out to be lost;
//! and when it is older than the server allows.

use super::fence::Token;
use super::lease::{Deadline, Ttl};
use super::queue::LockName;
use super::record::{Owner, OwnerBuf};
use super::rules::{LockState, lease};
use super::time::{SteadyMillis, UnixMillis};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// A connection, by the number that the server gives it once and never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientId(pub(crate) u64);

/// Which watch: a lock, the grant of it that is watched, and the connection that has it watched.
type WatchKey = (LockName, Token, ClientId);

/// A hold that is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) owner: OwnerBuf,
    /// The grant. It is what tells a hold from a later one of the same owner, so a lock in a foreign
    /// layout cannot be watched.
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    /// The moment after which it is not renewed any more.
    pub(crate) until: SteadyMillis,
    /// When it is renewed next.
    due: SteadyMillis,
}

impl Watch {
    /// A watch over the hold that `owner` has had since `now`.
    pub(crate) fn new(
        owner: Owner<'_>,
        token: Token,
        ttl: Ttl,
        now: SteadyMillis,
        max_hold_ms: u64,
    ) -> Self {
        Self {
            owner: OwnerBuf::from(owner),
            token,
            ttl,
            until: SteadyMillis(now.0.saturating_add(max_hold_ms)),
            due: next_due(ttl, now),
        }
    }

    /// The deadline to write, given what the key says now, read for the owner: `Err` when the hold
    /// that is watched is gone, `Ok(None)` when the lease lasts longer anyway.
    pub(crate) fn renew(
        &self,
        state: &LockState<'_>,
        now: UnixMillis,
    ) -> Result<Option<Deadline>, Lost> {
        let own = state
            .own(self.owner.as_owner())
            .filter(|own| own.is_by(Some(self.token)))
            .ok_or(Lost)?;
        let renewed = lease(state.is_shared(), self.ttl, now);
        Ok(own
            .deadline
            .is_some_and(|deadline| deadline < renewed)
            .then_some(renewed))
    }
}

/// A watched hold is gone. It is never taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// The moment of the renewal after one at `now`: a third of the ttl later. It is rounded down to a
/// multiple of a 48th of the ttl, so that many watches with one ttl are renewed together.
fn next_due(ttl: Ttl, now: SteadyMillis) -> SteadyMillis {
    let third = (ttl.millis() / 3).max(1);
    let step = (third / 16).max(1);
    let due = now.0.saturating_add(third);
    SteadyMillis(due - due % step)
}

/// The keys of all watches over one hold of a lock.
fn all_of(lock: &LockName, token: Token) -> RangeInclusive<WatchKey> {
    (lock.clone(), token, ClientId(0))..=(lock.clone(), token, ClientId(u64::MAX))
}

/// What is to be done for a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Its lease is to be renewed.
    Renewal,
    /// It has lasted as long as it may, and has ended.
    End,
}

/// All watches of this server.
#[derive(Debug, Default)]
pub(crate) struct WatchTable {
    watches: BTreeMap<WatchKey, Watch>,
    due: BTreeSet<(SteadyMillis, WatchKey)>,
    clients: HashMap<ClientId, BTreeSet<(LockName, Token)>>,
}

impl WatchTable {
    /// Whether nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// How many watches there are.
    pub(crate) fn len(&self) -> usize {
        self.watches.len()
    }

    /// Begins a watch, in place of the one that the connection may have on this hold.
    pub(crate) fn watch(&mut self, lock: LockName, client: ClientId, watch: Watch) {
        let key = (lock, watch.token, client);
        self.end(key.clone());
        self.clients
            .entry(client)
            .or_default()
            .insert((key.0.clone(), watch.token));
        self.due.insert((watch.due, key.clone()));
        self.watches.insert(key, watch);
    }

    /// Takes note that the lease of a hold ends in `left_ms` milliseconds: its watches renew it
    /// after a third of that, if they would not before.
    pub(crate) fn note_lease(
        &mut self,
        lock: &LockName,
        token: Token,
        left_ms: u64,
        now: SteadyMillis,
    ) {
        let soon = SteadyMillis(now.0.saturating_add((left_ms / 3).max(1)));
        for (key, watch) in self.watches.range_mut(all_of(lock, token)) {
            if soon < watch.due {
                self.due.remove(&(watch.due, key.clone()));
                watch.due = soon;
                self.due.insert((soon, key.clone()));
            }
        }
    }

    /// Ends all watches over one hold: it has been released, or is lost.
    pub(crate) fn end_hold(&mut self, lock: &LockName, token: Token) {
        let keys: Vec<WatchKey> = self
            .watches
            .range(all_of(lock, token))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.end(key);
        }
    }

    /// Ends all watches of a connection: it is gone.
    pub(crate) fn end_client(&mut self, client: ClientId) {
        for (lock, token) in self.clients.remove(&client).unwrap_or_default() {
            self.end((lock, token, client));
        }
    }

    /// Ends one watch.
    fn end(&mut self, key: WatchKey) {
        let Some(watch) = self.watches.remove(&key) else {
            return;
        };
        let (lock, token, client) = key.clone();
        if let Some(holds) = self.clients.get_mut(&client) {
            holds.remove(&(lock, token));
            if holds.is_empty() {
                self.clients.remove(&client);
            }
        }
        self.due.remove(&(watch.due, key));
    }

    /// Microseconds until a lease is to be renewed; `None` when nothing is watched.
    pub(crate) fn next_wake(&self, now: SteadyMillis) -> Option<u64> {
        let (due, _) = self.due.first()?;
        Some(due.micros_after(now))
    }

    /// Takes out one of the watches for which something is to be done at `now`. The next renewal of
    /// one that goes on is noted.
    pub(crate) fn take_due(&mut self, now: SteadyMillis) -> Option<(LockName, Watch, Due)> {
        let (due, key) = self.due.first()?;
        if *due > now {
            return None;
        }
        let key = key.clone();
        let watch = self.watches.get_mut(&key)?;
        if watch.until <= now {
            let watch = watch.clone();
            self.end(key.clone());
            return Some((key.0, watch, Due::End));
        }
        self.due.remove(&(watch.due, key.clone()));
        watch.due = next_due(watch.ttl, now);
        self.due.insert((watch.due, key.clone()));
        Some((key.0, watch.clone(), Due::Renewal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::rules::{Hold, Share, Shares};
    use proptest::prelude::*;

    fn lock(number: u8) -> LockName {
        LockName {
            db: 0,
            key: [number].as_slice().into(),
        }
    }

    fn token() -> Token {
        Token::new(1).expect("in range")
    }

    fn watch(ttl: i64, now: u64, max_hold: u64) -> Watch {
        let owner = Owner::new(b"o").expect("in range");
        let ttl = Ttl::from_millis(ttl).expect("in range");
        Watch::new(owner, token(), ttl, SteadyMillis(now), max_hold)
    }

    fn hold(owner: &[u8], token: u64, deadline: Option<i64>) -> Hold<'_> {
        let mut hold = Hold::of_string(owner, deadline.map(Deadline));
        hold.layout = crate::lock::rules::Layout::Module {
            token: Token::new(token).expect("in range"),
            request: None,
        };
        hold
    }

    #[test]
    fn a_renewal_lengthens_the_hold_that_is_watched_and_no_other() {
        let watch = watch(30, 0, 1_000);
        let now = UnixMillis(100);
        let outcome = |hold: Option<Hold<'_>>| {
            watch.renew(&hold.map_or(LockState::Free, LockState::Exclusive), now)
        };
        assert_eq!(
            outcome(Some(hold(b"o", 1, Some(110)))),
            Ok(Some(Deadline(130)))
        );
        assert_eq!(outcome(Some(hold(b"o", 1, Some(130)))), Ok(None));
        assert_eq!(outcome(Some(hold(b"o", 1, Some(500)))), Ok(None));
        assert_eq!(outcome(Some(hold(b"o", 1, None))), Ok(None));
        assert_eq!(outcome(Some(hold(b"o", 2, Some(110)))), Err(Lost));
        assert_eq!(outcome(Some(hold(b"p", 1, Some(110)))), Err(Lost));
        assert_eq!(
            outcome(Some(Hold::of_string(b"o", Some(Deadline(110))))),
            Err(Lost)
        );
        assert_eq!(outcome(None), Err(Lost));
    }

    #[test]
    fn a_renewal_lengthens_the_share_that_is_watched_and_no_other() {
        let watch = watch(30, 0, 1_000);
        let outcome = |token: u64, deadline: i64| {
            let state = LockState::Shared(Shares {
                own: Some(Share {
                    token: Token::new(token),
                    deadline: Deadline(deadline),
                    is_repeated: false,
                }),
                count: None,
                next_lapse: Deadline(deadline),
            });
            watch.renew(&state, UnixMillis(100))
        };
        assert_eq!(outcome(1, 110), Ok(Some(Deadline(130))));
        assert_eq!(outcome(1, 130), Ok(None));
        assert_eq!(outcome(2, 110), Err(Lost));
        assert_eq!(outcome(0, 110), Err(Lost));
    }

    #[test]
    fn a_watch_ends_when_it_is_as_old_as_it_may_be() {
        let mut table = WatchTable::default();
        table.watch(lock(1), ClientId(1), watch(30, 0, 25));
        let mut at = |now| {
            let due = table.take_due(SteadyMillis(now)).map(|(_, _, due)| due);
            assert!(table.take_due(SteadyMillis(now)).is_none());
            due
        };
        assert_eq!(at(9), None);
        assert_eq!(at(10), Some(Due::Renewal));
        assert_eq!(at(20), Some(Due::Renewal));
        assert_eq!(at(30), Some(Due::End));
        assert!(table.is_empty());
        assert_eq!(table.next_wake(SteadyMillis(30)), None);
    }

    #[test]
    fn a_shorter_lease_is_renewed_sooner() {
        let mut table = WatchTable::default();
        table.watch(lock(1), ClientId(1), watch(3_000, 0, 10_000));
        table.watch(lock(2), ClientId(1), watch(3_000, 0, 10_000));
        table.note_lease(&lock(1), token(), 300, SteadyMillis(50));
        assert_eq!(table.next_wake(SteadyMillis(50)), Some(100_000));
        table.note_lease(&lock(1), token(), 9_000, SteadyMillis(50));
        assert_eq!(table.next_wake(SteadyMillis(50)), Some(100_000));
        let due = table.take_due(SteadyMillis(150));
        assert_eq!(due.map(|(found, ..)| found), Some(lock(1)));
        assert!(table.take_due(SteadyMillis(150)).is_none());
    }

    proptest! {
        /// The lease is renewed at least once in every third of it, whatever the moment.
        #[test]
        fn a_renewal_comes_after_at_most_a_third(ttl in 1..100_000i64, now in 0..1_000_000u64) {
            let ttl_ms = Ttl::from_millis(ttl).expect("in range");
            let due = next_due(ttl_ms, SteadyMillis(now)).0;
            let third = (ttl.unsigned_abs() / 3).max(1);
            prop_assert!(due <= now + third);
            prop_assert!(due > now || third == 1 && due == now + 1);
            prop_assert!(due + third / 16 >= now + third);
        }

        /// Against a list of (lock, connection, next renewal).
        #[test]
        fn the_table_does_what_a_list_does(
            ops in prop::collection::vec((0..5u8, 0..4u8, 0..4u64, 1..60i64), 1..60),
        ) {
            let mut table = WatchTable::default();
            let mut list: Vec<(u8, u64, u64, i64)> = Vec::new();
            let mut now = 0;
            for (op, number, client, ttl) in ops {
                match op {
                    0 | 1 => {
                        table.watch(lock(number), ClientId(client), watch(ttl, now, 1_000_000));
                        list.retain(|entry| (entry.0, entry.1) != (number, client));
                        let ttl_ms = Ttl::from_millis(ttl).expect("in range");
                        list.push((number, client, next_due(ttl_ms, SteadyMillis(now)).0, ttl));
                    }
                    2 => {
                        table.end_hold(&lock(number), token());
                        list.retain(|entry| entry.0 != number);
                    }
                    3 => {
                        table.end_client(ClientId(client));
                        list.retain(|entry| entry.1 != client);
                    }
                    _ => now += ttl.unsigned_abs(),
                }
                let mut taken: Vec<u8> = Vec::new();
                while let Some((lock, ..)) = table.take_due(SteadyMillis(now)) {
                    taken.push(lock.key[0]);
                }
                let mut expected = Vec::new();
                for entry in list.iter_mut().filter(|entry| entry.2 <= now) {
                    expected.push(entry.0);
                    let ttl_ms = Ttl::from_millis(entry.3).expect("in range");
                    entry.2 = next_due(ttl_ms, SteadyMillis(now)).0;
                }
                taken.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(taken, expected);
                prop_assert_eq!(table.len(), list.len());
                prop_assert_eq!(
                    table.next_wake(SteadyMillis(now)),
                    list.iter().map(|entry| (entry.2 - now) * 1_000).min()
                );
            }
            for client in 0..4 {
                table.end_client(ClientId(client));
            }
            prop_assert!(table.watches.is_empty() && table.due.is_empty() && table.clients.is_empty());
        }
    }
}
