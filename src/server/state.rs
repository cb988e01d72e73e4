//! What the module remembers. Everything else is in the keyspace.

use super::alarm::Alarm;
use super::blocked::{Blocked, Handle, HeldLock, InFlight};
use super::clock;
use super::context::Context;
use super::events::{Listening, Subscription};
use super::eviction::Eviction;
use super::quorum::Quorum;
use super::reply::Error;
use super::string::OwnedStr;
use super::voting::Voting;
use crate::lock::fence::{Fence, Token};
use crate::lock::queue::{Full, Limits, LockName, Ticket, WaitTable, Waiter};
use crate::lock::record::RequestId;
use crate::lock::stats::Stats;
use crate::lock::watchdog::WatchTable;
use crate::quorum::ended::EndedAttempts;
use lazy_static::lazy_static;
use redis_module::raw;
use std::cell::RefCell;
use std::collections::HashMap;

/// The module's state.
pub(crate) struct Module {
    pub(crate) fence: Fence,
    /// Everybody who waits. Each of them is in `tickets` too.
    pub(crate) waits: WaitTable<Blocked>,
    tickets: HashMap<Handle, Ticket>,
    pub(super) in_flight: InFlight,
    /// Holds whose client was gone before it could be told: they are given back.
    pub(super) unclaimed: Vec<HeldLock>,
    /// Holds that are renewed here for as long as their connection lives.
    pub(crate) watches: WatchTable,
    /// Clients that wait for the answers of other nodes.
    pub(super) quorum: Quorum,
    pub(crate) stats: Stats,
    pub(crate) limits: Limits,
    /// The longest time, in milliseconds, for which the watchdog renews one hold.
    pub(crate) max_hold_ms: u64,
    /// The text that the server was last shown for a setting, which it reads after that.
    pub(super) shown_setting: Option<OwnedStr>,
    /// The longest ttl, in milliseconds, that a lock over a quorum can have.
    pub(super) quorum_max_ttl_ms: u64,
    pub(super) voting: Voting,
    /// Attempts of coordinators that this server grants nothing any more.
    pub(crate) ended_attempts: EndedAttempts,
    pub(super) alarm: Alarm,
    pub(super) listening: Listening,
    /// Whether the module is told when connections end. It is while a hold is watched, since
    /// telling it costs every connection that begins or ends.
    pub(super) client_events: Subscription,
    pub(super) eviction: Eviction,
}

/// How often the alarm looks whether a pause is over, in microseconds.
const PAUSE_POLL_US: u64 = 10_000;

impl Default for Module {
    fn default() -> Self {
        Self {
            fence: Fence::default(),
            waits: WaitTable::default(),
            tickets: HashMap::new(),
            in_flight: InFlight::default(),
            unclaimed: Vec::new(),
            watches: WatchTable::default(),
            quorum: Quorum::default(),
            stats: Stats::default(),
            max_hold_ms: 0,
            quorum_max_ttl_ms: 0,
            voting: Voting::default(),
            ended_attempts: EndedAttempts::default(),
            // Until the settings are registered, nobody can wait.
            limits: Limits {
                total: 0,
                per_lock: 0,
            },
            shown_setting: None,
            alarm: Alarm::default(),
            listening: Listening::default(),
            client_events: Subscription::default(),
            eviction: Eviction::default(),
        }
    }
}

impl Module {
    /// Makes sure that one more client may wait on this server, for all of these locks. Those who
    /// wait for a quorum take room too.
    pub(super) fn check_room(&mut self, locks: &[LockName]) -> Result<(), Error> {
        let limits = Limits {
            total: self.limits.total.saturating_sub(self.quorum.patient_len()),
            ..self.limits
        };
        self.waits.check_room(locks, limits).map_err(|full| {
            self.stats.queue_full += 1;
            Error::QueueFull(match full {
                Full::Total => "lock.max-waiters",
                Full::PerLock => "lock.max-waiters-per-key",
            })
        })
    }

    /// Takes note that a request was sent again and gets its first answer again.
    pub(crate) fn repeated(&mut self, token: Token, request: Option<RequestId<'_>>) {
        self.stats.repetitions += 1;
        if let Some(request) = request {
            self.in_flight.repeat(token, request);
        }
    }

    /// Remembers by which handle the server calls the client of a waiter.
    pub(super) fn remember(&mut self, handle: Option<Handle>, ticket: Ticket) {
        self.tickets.extend(handle.map(|handle| (handle, ticket)));
    }

    /// Forgets the handle of a waiter that has left its queue.
    pub(super) fn forget(&mut self, waiter: &Waiter<Blocked>) {
        if let Some(handle) = waiter.client.handle() {
            self.tickets.remove(&handle);
        }
    }

    /// Takes the waiter with a handle out of its queue.
    pub(super) fn take_waiter(&mut self, handle: Handle) -> Option<Waiter<Blocked>> {
        let ticket = self.tickets.remove(&handle)?;
        self.waits.leave(ticket)
    }

    /// Takes everybody out of every queue.
    pub(super) fn take_all_waiters(&mut self) -> Vec<Waiter<Blocked>> {
        std::mem::take(&mut self.tickets)
            .into_values()
            .filter_map(|ticket| self.waits.leave(ticket))
            .collect()
    }

    /// Sets the alarm for whatever is due next.
    pub(super) fn set_alarm(&mut self, ctx: Context<'_>) {
        let now = clock::clocks();
        let wait = if !self.unclaimed.is_empty() || self.has_idle_subscription() {
            Some(0)
        } else {
            let wait = self.waits.next_wake(now);
            let renewal = self.watches.next_wake(now.steady);
            let quorum = self.quorum.next_wake();
            wait.into_iter().chain(renewal).chain(quorum).min()
        };
        // Nothing can be done for keys before a pause is over, and the server does not tell when
        // that is.
        let least = if Context::server_is_paused() {
            PAUSE_POLL_US
        } else {
            0
        };
        self.alarm.set(ctx, wait.map(|wait| wait.max(least)));
    }

    /// Whether the module listens to something that it has no use for any more. The alarm ends
    /// that, because it cannot be done in the middle of an event.
    fn has_idle_subscription(&self) -> bool {
        self.waits.is_empty() && self.listening.can_stop()
            || self.watches.is_empty() && self.client_events.is_active()
            || self.eviction.can_stop()
    }

    /// Ends to listen to what there is no use for. Not to be called in the middle of an event.
    pub(super) fn end_idle_subscriptions(&mut self, ctx: Context<'_>) {
        if self.waits.is_empty() && self.listening.can_stop() {
            self.listening.stop(ctx);
        }
        if self.watches.is_empty() {
            self.client_events
                .stop(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE);
        }
        if self.eviction.can_stop() {
            self.eviction.stop(ctx);
        }
    }

    /// Whether there is nothing to set the alarm for, and none is set.
    pub(super) fn has_nothing_due(&self) -> bool {
        self.waits.is_empty()
            && self.watches.is_empty()
            && self.unclaimed.is_empty()
            && self.quorum.next_wake().is_none()
            && self.alarm.is_off()
    }
}

/// A value that only callbacks of the server touch.
struct MainThread<T>(T);

// SAFETY: the server calls a module from one thread at a time, with its global lock held, and this
// crate gives the value to nobody else. The one exception, a crash report, which can come from a
// signal handler on any thread, is told nothing (`info_section`).
unsafe impl<T> Sync for MainThread<T> {}

lazy_static! {
    static ref MODULE: MainThread<RefCell<Module>> = MainThread(RefCell::default());
}

/// Lends the state to `f`. `None` when it is lent already, which means that a callback of the
/// server runs inside another one of this module.
pub(crate) fn with_module<R>(f: impl FnOnce(&mut Module) -> R) -> Option<R> {
    MODULE
        .0
        .try_borrow_mut()
        .ok()
        .map(|mut module| f(&mut module))
}
