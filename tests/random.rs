//! Random numbers that can be had again.

use std::env;
use std::hash::{BuildHasher, RandomState};

/// Random numbers (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    /// That of the run: `REDIS_LOCK_SEED`, or any.
    pub(crate) fn new() -> Self {
        Self::with_seed().0
    }

    /// As [`Self::new`], with the number by which they can be had again.
    #[allow(
        clippy::print_stderr,
        reason = "the harness shows it when the test fails"
    )]
    pub(crate) fn with_seed() -> (Self, u64) {
        let given = env::var("REDIS_LOCK_SEED").ok();
        let seed = given.map_or_else(
            || RandomState::new().hash_one(0),
            |seed| seed.parse().expect("REDIS_LOCK_SEED is a number"),
        );
        eprintln!("REDIS_LOCK_SEED={seed}");
        (Self(seed), seed)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    /// Whether something happens that does `percent` times out of a hundred.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A ttl or a time-out that is over soon.
    pub(crate) fn brief(&mut self) -> i64 {
        i64::try_from(1 + self.below(20)).unwrap()
    }
}
