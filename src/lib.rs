//! Native lock commands for Redis and Valkey.
//!
//! The crate is a server module. [`COMMANDS`] is all that it registers; each command is one file
//! in `commands/`, which turns arguments into a request, has `lock/` decide it, and writes through
//! `server/`.
//!
//! * `lock/`: what a lock means. Pure, time is an argument.
//! * `commands/`: one file per command: arguments, decision, reply.
//! * `quorum/`: locks over several servers: a pure round, and a thread that carries it out.
//! * `server/`: the module API, and all of the `unsafe`.

mod commands;
mod lock;
mod quorum;
mod server;

use server::Entry;
use std::ffi::CStr;

/// Rust's memory comes from the server, which then knows about it (`INFO memory`, `maxmemory`).
/// Outside of a server, in unit tests, there is none.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: server::ServerAlloc = server::ServerAlloc;

/// The name under which the server knows the module, its section of `INFO` and its settings.
const NAME: &CStr = c"lock";

/// All commands.
const COMMANDS: &[Entry] = &[
    Entry::of::<commands::acquire::Acquire>(),
    Entry::of::<commands::racquire::ReentrantAcquire>(),
    Entry::of::<commands::release::Release>(),
    Entry::of::<commands::renew::Renew>(),
    Entry::of::<commands::macquire::MultiAcquire>(),
    Entry::of::<commands::mrelease::MultiRelease>(),
    Entry::of::<commands::mrenew::MultiRenew>(),
    Entry::of::<commands::guard::Guard>(),
    Entry::of::<commands::qacquire::QuorumAcquire>(),
    Entry::of::<commands::qrenew::QuorumRenew>(),
    Entry::of::<commands::qrelease::QuorumRelease>(),
    Entry::of::<commands::qinfo::QuorumInfo>(),
    Entry::of::<commands::qvote::Vote>(),
    Entry::of::<commands::qsettle::Settle>(),
    Entry::of::<commands::qunvote::Unvote>(),
    Entry::of::<commands::qextend::Extend>(),
    Entry::of::<commands::qrelock::Relock>(),
    Entry::of::<commands::qend::End>(),
    Entry::of::<commands::info::Info>(),
    Entry::of::<commands::queue::Queue>(),
    Entry::of::<commands::contended::Contended>(),
    Entry::of::<commands::help::Help>(),
    #[cfg(debug_assertions)]
    Entry::of::<commands::debug::Debug>(),
];
