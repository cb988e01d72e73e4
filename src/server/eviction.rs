//! Eviction: a server that may drop keys to free memory may drop locks, and with that let others in.
//!
//! The module says so in the log when a policy that can do this is in force, and counts the locks
//! that are dropped.

use super::clock::clocks;
use super::context::Context;
use super::events::Subscription;
use super::log::{Level, log};
use super::state::Module;
use crate::lock::time::SteadyMillis;
use redis_module::raw;

/// Whether the policy in force can drop locks.
#[derive(Default)]
pub(super) struct Eviction {
    is_possible: bool,
    key_events: Subscription,
    last_logged: Option<SteadyMillis>,
}

/// At least this long passes from one line about dropped locks to the next.
const LOG_EVERY_MS: u64 = 60_000;

impl Eviction {
    /// Looks at the policy: when the module is loaded, and when the configuration changes.
    ///
    /// The server tells what happens to keys only where it has that event, from 7.2 on, and that
    /// costs every key that is deleted: so the module listens only where it matters.
    pub(super) fn check(&mut self, ctx: Context<'_>) {
        let is_possible = ctx.may_evict();
        if is_possible == self.is_possible {
            return;
        }
        self.is_possible = is_possible;
        if is_possible {
            self.key_events.start(ctx, raw::REDISMODULE_EVENT_KEY);
            log(
                Some(ctx),
                Level::Warning,
                "redis-lock: maxmemory-policy can evict locks, which lets others in while their \
                 holders work; a server for locks wants noeviction",
            );
        }
    }

    /// Whether the module still listens to what happens to keys, and need not.
    pub(super) fn can_stop(&self) -> bool {
        self.key_events.is_active() && !self.is_possible
    }

    /// Ends to listen to what happens to keys. Not to be called while the server tells any event.
    pub(super) fn stop(&mut self, ctx: Context<'_>) {
        self.key_events.stop(ctx, raw::REDISMODULE_EVENT_KEY);
    }
}

/// A lock is about to be evicted.
pub(super) fn on_evicted_lock(ctx: Context<'_>, module: &mut Module) {
    module.stats.evicted += 1;
    let now = clocks().steady;
    let eviction = &mut module.eviction;
    if eviction
        .last_logged
        .is_none_or(|last| now.0.saturating_sub(last.0) >= LOG_EVERY_MS)
    {
        eviction.last_logged = Some(now);
        log(
            Some(ctx),
            Level::Warning,
            &format!(
                "redis-lock: a lock was evicted to free memory, {} since the module was loaded",
                module.stats.evicted
            ),
        );
    }
}
