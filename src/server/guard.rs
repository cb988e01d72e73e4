//! The boundary that no panic crosses.
//!
//! A panic that unwinds into the server would take it down. [`guard`] stops it, and the hook says
//! in the server's log where it came from. The standard hook would print a backtrace, for which the
//! C library allocates memory that some servers' builds cannot free.

use super::log::{Level, log};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

/// Runs `callback`; `None` when it panicked.
///
/// What it was about to do may be done in part. The state of this module stays usable all the same:
/// its tables change by operations that cannot fail half-way, what is due is taken out one by one,
/// and a waiter that left its queue without an answer is told of the error when it is dropped.
pub(super) fn guard<R>(callback: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(callback)).ok()
}

/// Sends the message of a panic to the server's log.
pub(super) fn install_hook() {
    set_hook(Box::new(|panic| {
        log(
            None,
            Level::Warning,
            &format!("redis-lock: a bug, the command is given up: {panic}").replace('\n', " "),
        );
    }));
}

/// Takes the hook out again before the module's code goes away.
pub(super) fn remove_hook() {
    drop(take_hook());
}
