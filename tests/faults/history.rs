//! What is written down of a run: what each client asked for and was told, and when.
//!
//! All times are nanoseconds of one steady clock. A request runs in the server at some moment between
//! the time at which it was sent and the time at which its reply was read.

use std::time::Instant;

/// The clock of a run.
#[derive(Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the start.
    pub(super) fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }
}

/// A millisecond in the unit of all times.
pub(super) const MS: u64 = 1_000_000;

/// A time that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// How a request wants to hold its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Alone.
    Exclusive,
    /// Beside any number.
    Shared,
    /// As one of so many.
    Limit(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Acquire {
        mode: Mode,
        /// Whether the owner may have the lock already.
        is_reentrant: bool,
        /// In milliseconds.
        ttl: u64,
        /// How long it is content to wait, in milliseconds; 0 is for ever.
        block: Option<u64>,
    },
    /// Ends one hold.
    Release,
    Renew {
        ttl: u64,
    },
    /// Runs something under a token.
    Guard,
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing before its connection ended: nobody knows what became of it.
    Unknown,
    /// Nothing at all, although the server was there.
    Open,
    /// It has the lock, under this token.
    Granted(i64),
    /// It has not got the lock.
    Nil,
    /// 1, 0 or -1; of a guard 1 or 0.
    Answer(i64),
    /// An error, which means that nothing was done.
    Refused,
}

/// A request for one lock. One for several is written down once for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) owner: u32,
    pub(super) key: usize,
    pub(super) kind: Kind,
    pub(super) sent: u64,
    /// [`NEVER`] if there was no reply.
    pub(super) returned: u64,
    pub(super) outcome: Outcome,
    /// Whether it was sent for an owner whose connection is gone, by somebody else.
    pub(super) is_for_dead: bool,
}

/// The owners that waited for a lock at some moment, in the server's own order.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) key: usize,
    pub(super) sent: u64,
    pub(super) returned: u64,
    pub(super) queue: Vec<u32>,
}

/// Something that may end holds against the will of their owners: of one lock, or of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Break {
    pub(super) key: Option<usize>,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The server's clock was set ahead between these times, by so much. Leases end earlier by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leap {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) by: u64,
}

/// A whole run. The requests of one owner stand in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) ops: Vec<Op>,
    pub(super) looks: Vec<Look>,
    pub(super) breaks: Vec<Break>,
    pub(super) leaps: Vec<Leap>,
}
