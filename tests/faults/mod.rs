//! Faults: nothing is lost, nothing is doubled, and nobody is let in, whatever happens to servers and
//! to clients.
//!
//! Many clients use a few locks while faults are made. What they asked for and what they were told is
//! a history, and [`check`] looks whether it can be true of locks that keep their promises. `planted`
//! shows that it finds what is wrong. `docs/faults.md` says what is promised in each class of faults.
//!
//! - `REDIS_LOCK_SEED`: the random choices of a run, as a failure shows it. How the requests meet in
//!   the server is not repeated by it.
//! - `REDIS_LOCK_OPERATIONS`: how many requests are sent in each test.
//! - `REDIS_LOCK_RESULTS`: a file to which each test adds a line with what it did and found.
//!
//! `make torture` is a long run. The machine's clock must not be set meanwhile.

mod check;
mod connection;
mod driver;
mod history;
mod planted;
mod replication;
mod run;
mod server;
mod stage;
mod standing_still;
