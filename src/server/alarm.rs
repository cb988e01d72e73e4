//! The module's one timer. It exists only while something is due some time, because the server
//! unloads no module that has a timer pending.
//!
//! It is a timer of the server, with another one beside it that is more [`Precise`]: when that goes
//! off, it has the server's go off at once. What is due is done in the callback of the server's,
//! since the other's has no context in which one may write. The server's goes by the wall clock and
//! is late when that is set back; the precise one goes by the steady clock and is late when the
//! wall clock is set forward. Where the system has none, the server's does everything.

use super::api::api;
use super::clock;
use super::context::Context;
use super::guard::guard;
use super::precise::Precise;
use super::state::with_module;
use super::waiting;
use crate::lock::time::SteadyMicros;
use redis_module::raw;
use std::cell::OnceCell;
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

/// The timer: not set, or set to go off at a moment.
#[derive(Default)]
pub(super) struct Alarm {
    armed: Option<Armed>,
    /// Made when an alarm is set for the first time, and kept: a module that nobody waits for
    /// opens nothing. `None` in it where there is none to be had.
    precise: OnceCell<Option<Precise>>,
}

/// A timer that has not gone off.
struct Armed {
    timer: raw::RedisModuleTimerID,
    at: SteadyMicros,
}

impl Armed {
    /// Sets a timer of the server that goes off in `wait` microseconds, rounded up.
    fn new(ctx: Context<'_>, now: SteadyMicros, wait: u64) -> Self {
        let period = i64::try_from(wait.div_ceil(1_000)).unwrap_or(i64::MAX);
        // SAFETY: the context is alive and the callback has the signature of a timer's.
        let timer = unsafe {
            api!(RedisModule_CreateTimer(
                ctx.as_raw(),
                period,
                Some(ring),
                ptr::null_mut()
            ))
        };
        Self {
            timer,
            at: SteadyMicros(now.0.saturating_add(wait)),
        }
    }

    /// Stops the timer.
    fn stop(self, ctx: Context<'_>) {
        // SAFETY: the timer was made by this module and has not gone off: when it does, it is taken
        // out of the alarm before anything else. The server writes the timer's data only where
        // there is a pointer to write to.
        unsafe {
            api!(RedisModule_StopTimer(
                ctx.as_raw(),
                self.timer,
                ptr::null_mut()
            ))
        };
    }

    /// Whether the timer should have gone off a while ago. The server counts by the wall clock, so
    /// this is what happens when that is set back. The module looks several times a second, see
    /// [`super::events`].
    fn is_overdue(&self, now: SteadyMicros) -> bool {
        now.0 > self.at.0.saturating_add(OVERDUE_US)
    }
}

/// So late, in microseconds, is only a timer whose clock was set back, or whose server stood still:
/// in both cases it does no harm to set it anew.
const OVERDUE_US: u64 = 50_000;

impl Alarm {
    /// Makes sure that the alarm goes off in `wait` microseconds, or never. One that goes off
    /// earlier is left alone: whoever hears it sets the next.
    pub(super) fn set(&mut self, ctx: Context<'_>, wait: Option<u64>) {
        let Some(wait) = wait else {
            // The precise timer is left as it is: stopping it costs more than once going off.
            if let Some(armed) = self.armed.take() {
                armed.stop(ctx);
            }
            return;
        };
        let wait = wait.min(MAX_WAIT_US);
        let now = clock::steady_clock();
        let at = SteadyMicros(now.0.saturating_add(wait));
        if let Some(armed) = self.armed.take() {
            if armed.at <= at && !armed.is_overdue(now) {
                self.armed = Some(armed);
                return;
            }
            armed.stop(ctx);
        }
        self.armed = Some(Armed::new(ctx, now, wait));
        // A timer of the server that is due is precise. In its own callback it goes off a
        // millisecond later, so that what stays due does not keep the server busy.
        if wait > 0
            && let Some(precise) = self.precise.get_or_init(|| Precise::new(ctx))
        {
            precise.set(Duration::from_micros(wait));
        }
    }

    /// Has the server's timer, if it is set, go off in this turn of the event loop: the server
    /// looks at its timers after its file descriptors. There is nothing to do here about an alarm
    /// that is early, because the clock was set or because another one had been wanted before: it
    /// finds nothing due and sets the next.
    #[cfg(target_os = "linux")]
    pub(super) fn hurry(&mut self) {
        let Some(ctx) = self
            .precise
            .get()
            .and_then(|precise| precise.as_ref()?.context())
        else {
            return;
        };
        if let Some(armed) = self.armed.take() {
            armed.stop(ctx);
            self.armed = Some(Armed::new(ctx, clock::steady_clock(), 0));
        }
    }

    /// Whether no timer is set.
    pub(super) fn is_off(&self) -> bool {
        self.armed.is_none()
    }

    /// Takes note that the timer has gone off, and with that is gone.
    fn fired(&mut self) {
        self.armed = None;
    }
}

/// The longest time that a timer is set for: a day, in microseconds. What is due later is looked at
/// again then, so that no sum of the server's overflows.
const MAX_WAIT_US: u64 = 24 * 60 * 60 * 1_000_000;

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
