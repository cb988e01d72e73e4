//! Waiting for a condition, with a deadline.

use std::thread;
use std::time::{Duration, Instant};

use super::valgrind;

/// How long a condition may take to come true, and a reply to arrive.
const DEADLINE: Duration = Duration::from_secs(10);

/// How long to rest between two looks at a condition.
const REST: Duration = Duration::from_millis(1);

/// The general deadline, longer where the servers run slowly.
pub(super) fn deadline() -> Duration {
    scaled(DEADLINE)
}

/// `time` as it is, or what it becomes where the servers run under valgrind.
pub(super) fn scaled(time: Duration) -> Duration {
    if valgrind::is_on() { time * 12 } else { time }
}

/// Looks again and again until `done` says yes; fails the test, naming `what`, at the deadline.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || done().then_some(()));
}

/// Looks again and again until `look` finds something; fails the test, naming `what`, at the
/// deadline.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let limit = deadline();
    wait_at_most(limit, look).unwrap_or_else(|| panic!("waited {limit:?} in vain for {what}"))
}

/// Looks again and again until `look` finds something, for `limit` at most.
pub(super) fn wait_at_most<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if start.elapsed() > limit {
            return None;
        }
        // Nobody unparks a test's thread, so this is a short rest; to wake early would be no harm.
        thread::park_timeout(REST);
    }
}
