//! Moments and durations. Nothing in `lock/` reads a clock: whoever calls says what time it is.

/// A moment on the server's wall clock, in milliseconds since the Unix epoch: the unit of the
/// deadlines that the server keeps with its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnixMillis(pub(crate) i64);

/// A moment on the server's wall clock, in microseconds since the Unix epoch: the unit of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnixMicros(pub(crate) u64);

impl UnixMillis {
    /// The beginning of this millisecond.
    pub(crate) fn as_micros(self) -> UnixMicros {
        UnixMicros(u64::try_from(self.0).unwrap_or(0).saturating_mul(1_000))
    }
}

impl UnixMicros {
    /// The millisecond that this moment lies in.
    pub(crate) fn as_millis(self) -> UnixMillis {
        // A u64 divided by 1000 is below i64::MAX.
        UnixMillis(i64::try_from(self.0 / 1_000).unwrap_or(i64::MAX))
    }
}

/// A moment on a clock that nobody sets, in milliseconds since an arbitrary start: what waiting is
/// measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SteadyMillis(pub(crate) u64);

impl SteadyMillis {
    /// Microseconds from `now` until this moment, 0 when it is over.
    pub(crate) fn micros_after(self, now: Self) -> u64 {
        self.0.saturating_sub(now.0).saturating_mul(1_000)
    }
}

/// The same clock in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SteadyMicros(pub(crate) u64);

/// One moment on both clocks. Leases and tokens go by the wall clock, because they outlive the
/// process and are compared with the deadlines of keys; waiting goes by the steady one, so that
/// setting the clock ends no wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) wall: UnixMicros,
    pub(crate) steady: SteadyMillis,
}
