//! The clock of this machine, which is the clock of its servers.

use std::time::{SystemTime, UNIX_EPOCH};

use super::server::Server;
use super::words::ToWord;

/// Now, in microseconds since the Unix epoch: the unit of tokens.
pub(crate) fn unix_micros() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

/// Now, in milliseconds since the Unix epoch: the unit of deadlines.
pub(crate) fn unix_millis() -> i64 {
    unix_micros() / 1_000
}

impl Server {
    /// When `key` expires, in unix milliseconds; -1 for never, -2 when there is no such key.
    pub(crate) fn deadline(&self, key: impl ToWord) -> i64 {
        self.call(("PEXPIRETIME", key.to_word())).as_int()
    }

    /// Runs `action`, which must give `key` a lease of `ttl` milliseconds, counted from some moment
    /// during the action. This holds on any machine, however slow it is.
    pub(crate) fn leased<R>(&self, key: impl ToWord, ttl: i64, action: impl FnOnce() -> R) -> R {
        let before = unix_millis();
        let result = action();
        let after = unix_millis();
        let deadline = self.deadline(key);
        assert!(
            (before + ttl..=after + ttl).contains(&deadline),
            "the deadline {deadline} is not {ttl} ms after a moment between {before} and {after}"
        );
        result
    }
}
