//! What happened since the module was loaded.

use hdrhistogram::Histogram;

/// The longest wait that is told apart from longer ones: a day, in milliseconds.
const LONGEST_WAIT_MS: u64 = 24 * 60 * 60 * 1_000;

/// Counts of what was answered and done, one for each line of `INFO lock`.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Locks granted at once.
    pub(crate) grants: u64,
    /// Holds added to a lock that the owner held.
    pub(crate) reentries: u64,
    /// Acquires sent again that got their first answer again.
    pub(crate) repetitions: u64,
    /// Acquires answered with nil at once.
    pub(crate) refusals: u64,
    /// Holds ended by their owner.
    pub(crate) releases: u64,
    /// Releases answered with 0 or -1.
    pub(crate) stale_releases: u64,
    /// Leases renewed by their owner.
    pub(crate) renewals: u64,
    /// Renewals answered with 0 or -1.
    pub(crate) stale_renewals: u64,
    /// Locks passed from a holder to a waiter, for whatever reason.
    pub(crate) handovers: u64,
    /// Leases that lapsed while somebody waited.
    pub(crate) expiries: u64,
    /// Waits that ended in vain because their time was over.
    pub(crate) timeouts: u64,
    /// Requests refused because they would have closed a circle of waits.
    pub(crate) deadlocks: u64,
    /// Requests refused because enough clients waited.
    pub(crate) queue_full: u64,
    /// Locks passed to a waiter that was gone before it could be told, and passed on.
    pub(crate) unclaimed: u64,
    /// Leases renewed by the watchdog.
    pub(crate) watchdog_renewals: u64,
    /// Commands that ran because a token held its lock.
    pub(crate) guarded: u64,
    /// Commands refused because a token did not hold its lock.
    pub(crate) stale_guards: u64,
    /// Locks that a quorum granted to clients of this server.
    pub(crate) quorum_grants: u64,
    /// Such requests that others kept from the lock.
    pub(crate) quorum_refusals: u64,
    /// Leases that a quorum renewed.
    pub(crate) quorum_renewals: u64,
    /// Holds that a quorum ended.
    pub(crate) quorum_releases: u64,
    /// Renewals and releases that a quorum answered with 0 or -1.
    pub(crate) quorum_stale: u64,
    /// Requests for which too few nodes answered.
    pub(crate) quorum_unavailable: u64,
    /// Locks granted here to coordinators of a quorum.
    pub(crate) votes: u64,
    /// What coordinators asked for and was answered with nil.
    pub(crate) refused_votes: u64,
    /// Watched holds that were found to be lost.
    pub(crate) lost: u64,
    /// Locks that the server evicted to free memory.
    pub(crate) evicted: u64,
    /// The most clients that have waited at the same time.
    pub(crate) waiters_peak: usize,
    /// How long those who were granted a lock had waited for it.
    pub(crate) waits: WaitTimes,
}

/// The distribution of waiting times in milliseconds, with an error of at most one per cent.
#[derive(Debug, Default)]
pub(crate) struct WaitTimes(Option<Histogram<u64>>);

impl WaitTimes {
    /// Adds one. Times over a day count as a day.
    pub(crate) fn record(&mut self, ms: u64) {
        if self.0.is_none() {
            self.0 = Histogram::new_with_bounds(1, LONGEST_WAIT_MS, 2).ok();
        }
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(ms);
        }
    }

    /// The time within which this share of all had what they waited for; 0 when nobody waited.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        self.0
            .as_ref()
            .map_or(0, |histogram| histogram.value_at_percentile(percent))
    }

    /// The longest.
    pub(crate) fn max(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_hundredth() {
        let mut waits = WaitTimes::default();
        assert_eq!((waits.percentile(99.0), waits.max()), (0, 0));
        for ms in 1..=10_000 {
            waits.record(ms);
        }
        waits.record(u64::MAX);
        for (percent, expected) in [(50.0, 5_000), (99.0, 9_900)] {
            let found = waits.percentile(percent);
            assert!(
                found.abs_diff(expected) * 100 <= expected,
                "{percent}: {found}"
            );
        }
        assert!(waits.max() >= LONGEST_WAIT_MS);
    }
}
