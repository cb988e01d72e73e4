//! Leases: how long a hold lasts.
//!
//! The server's rule for every key holds for a lease too: it has lapsed once the wall clock, in
//! whole milliseconds, is *past* its deadline. A lease is therefore never shorter than its `ttl`,
//! and less than one millisecond longer. One exception is the server's: the cycle in which newer
//! versions look for expired keys can take a key within the millisecond of its deadline, and the
//! lease is then less than one millisecond shorter.

use super::time::{UnixMicros, UnixMillis};

/// The longest `ttl`: 2^53 - 1 milliseconds, the largest integer that every client reads exactly.
pub(crate) const MAX_TTL_MS: i64 = (1 << 53) - 1;

/// How long a lease is to last from the moment it is granted or renewed: 1..=[`MAX_TTL_MS`]
/// milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ttl(i64);

impl Ttl {
    /// `None` when `ms` is out of range.
    pub(crate) fn from_millis(ms: i64) -> Option<Self> {
        (1..=MAX_TTL_MS).contains(&ms).then_some(Self(ms))
    }

    /// Its length in milliseconds.
    pub(crate) fn millis(self) -> u64 {
        self.0.unsigned_abs()
    }

    /// The deadline of a lease that begins at `now`.
    pub(crate) fn deadline(self, now: UnixMillis) -> Deadline {
        Deadline(now.0.saturating_add(self.0))
    }
}

/// The last moment of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(pub(crate) i64);

impl Deadline {
    /// Whether the lease is over at `now`.
    pub(crate) fn has_lapsed(self, now: UnixMillis) -> bool {
        now.0 > self.0
    }

    /// Milliseconds that are left of the lease at `now`, 0 when there are none.
    pub(crate) fn left(self, now: UnixMillis) -> i64 {
        self.0.saturating_sub(now.0).max(0)
    }

    /// Microseconds from `now` until the lease is over, 0 when it is. It lasts through the
    /// millisecond of its deadline.
    pub(crate) fn lapses_in(self, now: UnixMicros) -> u64 {
        let over = UnixMillis(self.0.saturating_add(1));
        over.as_micros().0.saturating_sub(now.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_from_one_to_the_largest_exact_integer() {
        assert_eq!(Ttl::from_millis(0), None);
        assert_eq!(Ttl::from_millis(-1), None);
        assert!(Ttl::from_millis(1).is_some());
        assert!(Ttl::from_millis(MAX_TTL_MS).is_some());
        assert_eq!(Ttl::from_millis(MAX_TTL_MS + 1), None);
    }

    #[test]
    fn a_lease_lasts_through_its_deadline_and_not_longer() {
        let deadline = Ttl::from_millis(10).map(|ttl| ttl.deadline(UnixMillis(100)));
        let deadline = deadline.expect("10 is in range");
        assert!(!deadline.has_lapsed(UnixMillis(110)));
        assert_eq!(deadline.left(UnixMillis(110)), 0);
        assert!(deadline.has_lapsed(UnixMillis(111)));
        assert_eq!(deadline.left(UnixMillis(111)), 0);
        assert_eq!(deadline.left(UnixMillis(101)), 9);
    }

    #[test]
    fn a_lease_lapses_when_the_millisecond_of_its_deadline_is_over() {
        let deadline = Deadline(1_000);
        for (now, left) in [
            (0, 1_001_000),
            (1_000_000, 1_000),
            (1_000_999, 1),
            (1_001_000, 0),
            (9_000_000, 0),
        ] {
            let now = UnixMicros(now);
            assert_eq!(deadline.lapses_in(now), left);
            assert_eq!(deadline.has_lapsed(now.as_millis()), left == 0);
        }
        assert_eq!(Deadline(-1).lapses_in(UnixMicros(0)), 0);
        assert_eq!(Deadline(i64::MAX).lapses_in(UnixMicros(1)), u64::MAX - 1);
    }
}
