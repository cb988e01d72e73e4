//! The tests that need a server: one binary, because all of them share the harness.
//!
//! Every file is one concern, and nearly every test runs on each supported server (see
//! [`harness::on_every_server`]).

// A test says what it expects by panicking when it does not get it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bad_input;
mod cluster;
mod deadlock;
mod documentation;
mod effects;
mod faults;
mod foreign;
mod guarding;
mod harness;
mod harness_self_test;
mod history;
mod leaving;
mod lifecycle;
mod locking;
mod metadata;
mod mixed_history;
mod observing;
#[cfg(target_os = "linux")]
mod precise;
mod quorum_locking;
mod quorum_nodes;
mod quorum_settings;
mod quorum_trouble;
mod random;
mod several;
mod sharing;
mod sharing_effects;
mod sharing_queue;
mod waiters;
mod waiting;
mod waking;
mod watchdog;
