//! The module's one timer. It exists only while something is due some time, because the server
//! unloads no module that has a timer pending.

use super::api::api;
use super::context::Context;
use super::guard::guard;
use super::state::with_module;
use super::waiting;
use crate::lock::time::{Now, SteadyMillis};
use redis_module::raw;
use std::ffi::c_void;
use std::ptr;

/// The timer: not set, or set to go off at a moment.
#[derive(Default)]
pub(super) struct Alarm(Option<Armed>);

/// A timer that has not gone off.
struct Armed {
    timer: raw::RedisModuleTimerID,
    at: SteadyMillis,
}

impl Armed {
    /// Whether the timer should have gone off a while ago. The server counts by the wall clock, so
    /// this is what happens when that is set back. The module looks several times a second, see
    /// [`super::events`].
    fn is_overdue(&self, now: SteadyMillis) -> bool {
        now.0 > self.at.0.saturating_add(OVERDUE_MS)
    }
}

/// So late, in milliseconds, is only a timer whose clock was set back, or whose server stood still:
/// in both cases it does no harm to set it anew.
const OVERDUE_MS: u64 = 50;

impl Alarm {
    /// Makes sure that the alarm goes off in `wait` milliseconds, or never. One that goes off
    /// earlier is left alone: whoever hears it sets the next.
    pub(super) fn set(&mut self, ctx: Context<'_>, now: Now, wait: Option<u64>) {
        let at = wait.map(|wait| SteadyMillis(now.steady.0.saturating_add(wait)));
        match (&self.0, at) {
            (Some(armed), Some(at)) if armed.at <= at && !armed.is_overdue(now.steady) => return,
            (None, None) => return,
            _ => {}
        }
        if let Some(armed) = self.0.take() {
            // SAFETY: the timer was made by this module and has not gone off: when it does, it is
            // taken out of `self` before anything else. The server writes the timer's data only
            // where there is a pointer to write to.
            unsafe {
                api!(RedisModule_StopTimer(
                    ctx.as_raw(),
                    armed.timer,
                    ptr::null_mut()
                ))
            };
        }
        if let (Some(at), Some(wait)) = (at, wait) {
            let period = i64::try_from(wait).unwrap_or(i64::MAX).min(MAX_PERIOD_MS);
            // SAFETY: the context is alive and the callback has the signature of a timer's.
            let timer = unsafe {
                api!(RedisModule_CreateTimer(
                    ctx.as_raw(),
                    period,
                    Some(ring),
                    ptr::null_mut()
                ))
            };
            self.0 = Some(Armed { timer, at });
        }
    }

    /// Whether no timer is set.
    pub(super) fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Takes note that the timer has gone off, and with that is gone.
    fn fired(&mut self) {
        self.0 = None;
    }
}

/// The longest time that a timer is set for: a day. The server counts in microseconds, and what is
/// due later is looked at again then.
const MAX_PERIOD_MS: i64 = 24 * 60 * 60 * 1_000;

/// The timer goes off.
unsafe extern "C" fn ring(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard(|| {
        // SAFETY: the context lives until this function returns.
        let ctx = unsafe { Context::from_raw(ctx)? };
        with_module(|module| module.alarm.fired());
        // Whatever becomes of what is due, the alarm is set for the rest.
        guard(|| with_module(|module| waiting::do_what_is_due(ctx, module)));
        with_module(|module| {
            module.end_idle_subscriptions(ctx);
            module.set_alarm(ctx);
        });
        Some(())
    });
}
