//! The one place where the clock is read.

use crate::lock::time::UnixMicros;
use std::time::{SystemTime, UNIX_EPOCH};

/// The present moment. Leases and tokens go by the wall clock, since they outlive the process.
pub(crate) fn now() -> UnixMicros {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixMicros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}
