//! What every server test stands on: real servers, clients that see every byte, and ways to look
//! at what a server did.
//!
//! - [`Flavour`] and [`on_every_server`]: which servers there are, and a test on each of them.
//! - [`Server`]: a process in its own directory on its own port, gone when the test is over.
//! - [`Server::raw`] and [`Reply`]: a client that keeps the types of the protocol apart.
//! - [`wait_until`] and [`wait_for`]: waiting for a condition with a deadline, never for a time.
//! - [`Server::replication_stream`], [`Server::aof_commands`], [`Server::events`],
//!   [`Server::snapshot`]: what a command wrote, and [`Server::witness`]: whether it wrote at all.
//! - [`Quorum`]: servers that are the nodes of one quorum, and [`Server::pause`]: one that stands
//!   still.
//! - [`Server::leased`]: how long a lease a command gave.
//! - `Server::timers`: which timers of the system a server has open, on Linux.

mod aof;
mod builder;
mod clock;
mod events;
mod flavour;
mod inspect;
mod module;
mod process;
mod quorum;
mod raw;
mod replication;
mod reply;
mod server;
mod snapshot;
#[cfg(target_os = "linux")]
mod timers;
mod valgrind;
mod wait;
mod witness;
mod words;

#[cfg(target_os = "linux")]
#[allow(unused_imports, reason = "as above")]
pub(crate) use self::timers::Timer;
#[allow(
    unused_imports,
    reason = "what a test may name; most of it a test just receives"
)]
pub(crate) use self::{
    builder::{ServerBuilder, free_port},
    clock::{unix_micros, unix_millis},
    events::Events,
    flavour::{Flavour, find_server, on_every_server},
    inspect::CommandStats,
    module::module_path,
    quorum::{Paused, Quorum, address, pause},
    raw::Raw,
    replication::ReplicationStream,
    reply::Reply,
    server::{Server, Stopped},
    snapshot::{Entry, Snapshot},
    valgrind::module_errors,
    wait::{wait_for, wait_until},
    witness::Witness,
    words::{ToWord, ToWords, Words},
};
