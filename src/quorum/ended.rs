//! Which attempts a node has ended.
//!
//! Messages of an attempt can come in another order than they were sent in, over several connections
//! or by way of several coordinators. A vote that comes after what takes it back would leave a hold
//! behind that nobody knows of, until its lease is over. So a node remembers what has ended, and
//! grants none of it again.

use super::attempt::Attempt;
use std::collections::{HashSet, VecDeque};

/// How many attempts are remembered, the latest ones. What overtakes does so by moments, and the
/// memory is bounded.
const CAPACITY: usize = 10_000;

/// The attempts that have ended most recently.
#[derive(Debug, Default)]
pub(crate) struct EndedAttempts {
    /// Each once, the latest last.
    order: VecDeque<Attempt>,
    known: HashSet<Attempt>,
}

impl EndedAttempts {
    /// Takes note that an attempt has ended, whether it held anything or not.
    pub(crate) fn insert(&mut self, attempt: Attempt) {
        if !self.known.insert(attempt) {
            return;
        }
        if self.order.len() >= CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(attempt);
    }

    /// Whether it is known that an attempt has ended.
    pub(crate) fn contains(&self, attempt: Attempt) -> bool {
        self.known.contains(&attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known() {
        let mut ended = EndedAttempts::default();
        assert!(!ended.contains(Attempt(0)));
        let count = CAPACITY as u64 + 5;
        for attempt in 0..count {
            ended.insert(Attempt(attempt));
            ended.insert(Attempt(attempt));
        }
        for attempt in 0..count {
            assert_eq!(ended.contains(Attempt(attempt)), attempt >= 5, "{attempt}");
        }
        assert_eq!(ended.order.len(), CAPACITY);
        assert_eq!(ended.known.len(), CAPACITY);
    }
}
