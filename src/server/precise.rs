//! A timer that wakes the server to the microsecond, where the system has one.
//!
//! The server's own timers count in whole milliseconds from the moment that they are set, and the
//! server sleeps for whole milliseconds, rounded up: together they are up to two late. A file
//! descriptor that becomes readable wakes it at once.

#[cfg(target_os = "linux")]
pub(super) use linux::Precise;
#[cfg(not(target_os = "linux"))]
pub(super) use other::Precise;

#[cfg(target_os = "linux")]
mod linux {
    use crate::server::api::{OK, api};
    use crate::server::context::Context;
    use crate::server::guard::guard;
    use crate::server::log::{Level, log};
    use crate::server::state::with_module;
    use redis_module::raw;
    use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
    use rustix::io::read;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use std::ffi::{c_int, c_void};
    use std::ptr::{self, NonNull};
    use std::time::Duration;

    /// The timer, in the server's event loop until it is dropped.
    pub(in crate::server) struct Precise {
        timer: OwnedFd,
        /// A context for the callback, which the server passes none.
        context: NonNull<raw::RedisModuleCtx>,
    }

    impl Precise {
        /// Adds a timer to the server's event loop. `None`, and a line in the log, when that does
        /// not work, as when the process may open no more files.
        pub(in crate::server) fn new(ctx: Context<'_>) -> Option<Self> {
            let precise = Self::in_event_loop(ctx);
            if precise.is_none() {
                log(
                    Some(ctx),
                    Level::Warning,
                    "redis-lock: no precise timer, what is due comes up to two milliseconds later",
                );
            }
            precise
        }

        fn in_event_loop(ctx: Context<'_>) -> Option<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
            // SAFETY: the context is alive. The server gives a new one, which is freed when `precise`
            // is dropped.
            let context = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.as_raw())) };
            let precise = Self {
                timer,
                context: NonNull::new(context)?,
            };
            // SAFETY: the descriptor is open, and is taken out of the event loop before it is
            // closed. The callback has the signature that the server calls it with.
            let added = unsafe {
                api!(RedisModule_EventLoopAdd(
                    precise.timer.as_raw_fd(),
                    raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed(),
                    Some(on_readable),
                    ptr::null_mut()
                ))
            };
            (added == OK).then_some(precise)
        }

        /// Has the timer go off in `wait`, which is not zero, and not when it was to go off before.
        /// If the system refuses, which it has no reason for, the timer of the server is left.
        pub(in crate::server) fn set(&self, wait: Duration) {
            let Ok(wait) = Timespec::try_from(wait) else {
                return;
            };
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: wait,
            };
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        }

        /// A context in which the server's timers can be set, but nothing be written: what is
        /// written in it reaches no replica.
        pub(in crate::server) fn context(&self) -> Option<Context<'_>> {
            // SAFETY: the server made the context for this module, and it is freed with `self`.
            unsafe { Context::from_raw(self.context.as_ptr()) }
        }
    }

    impl Drop for Precise {
        fn drop(&mut self) {
            // SAFETY: the descriptor is still open, and the context is freed once. To take a
            // descriptor out that is not in the event loop does nothing.
            unsafe {
                let mask = raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed();
                api!(RedisModule_EventLoopDel(self.timer.as_raw_fd(), mask));
                api!(RedisModule_FreeThreadSafeContext(self.context.as_ptr()));
            }
        }
    }

    /// The timer has gone off.
    unsafe extern "C" fn on_readable(fd: c_int, _data: *mut c_void, _mask: c_int) {
        guard(|| {
            // SAFETY: the server calls this for a descriptor in its event loop, where this one is
            // for as long as it is open.
            let timer = unsafe { BorrowedFd::borrow_raw(fd) };
            // Or the server would be told again at once. It is not due when it was set again since
            // the server was told, and then there is nothing to read.
            if read(timer, &mut [0; size_of::<u64>()]).is_ok() {
                with_module(|module| module.alarm.hurry());
            }
        });
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use crate::server::context::Context;
    use std::time::Duration;

    /// The timer of the server is all that there is.
    pub(in crate::server) enum Precise {}

    impl Precise {
        pub(in crate::server) fn new(_ctx: Context<'_>) -> Option<Self> {
            None
        }

        pub(in crate::server) fn set(&self, _wait: Duration) {
            match *self {}
        }
    }
}
