//! The one place where the clock is read.

use crate::lock::time::{Now, SteadyMicros, SteadyMillis, UnixMicros};
use lazy_static::lazy_static;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

lazy_static! {
    /// What the steady clock counts from.
    static ref START: Instant = Instant::now();
}

/// The present moment on the wall clock. Leases and tokens go by the wall clock, since they outlive the process.
pub(crate) fn wall_clock() -> UnixMicros {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixMicros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}

/// The present moment on both clocks.
pub(crate) fn clocks() -> Now {
    let since_start = START.elapsed();
    Now {
        wall: wall_clock(),
        steady: SteadyMillis(u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// The present moment on the steady clock.
pub(crate) fn steady_clock() -> SteadyMicros {
    let since_start = START.elapsed();
    SteadyMicros(u64::try_from(since_start.as_micros()).unwrap_or(u64::MAX))
}
