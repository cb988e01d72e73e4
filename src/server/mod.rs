//! The server's side: everything that touches the module API, and all of the crate's `unsafe`.
//!
//! Whatever the server calls goes through [`guard`], so that no panic crosses the C boundary, and
//! reaches the rest of the crate as safe values: a [`Context`], its [`Args`], its [`Key`]s.

mod alarm;
#[cfg(not(test))]
mod alloc;
mod api;
mod args;
mod blocked;
mod clock;
mod config;
mod context;
mod dispatch;
mod during;
mod events;
mod eviction;
mod guard;
mod guarded;
mod info_section;
mod key;
mod key_positions;
mod load;
mod log;
mod metadata;
mod notify;
mod own_part;
mod precise;
mod quorum;
mod quorum_info;
mod reply;
mod share_set;
mod state;
mod string;
mod voting;
mod waiting;
mod watching;

#[cfg(not(test))]
pub(crate) use alloc::ServerAlloc;
pub(crate) use args::{Arg, Args};
pub(crate) use blocked::Blocked;
pub(crate) use clock::{clocks, wall_clock};
pub(crate) use context::Context;
pub(crate) use dispatch::{Command, Entry};
pub(crate) use guarded::check_guardable;
pub(crate) use key::{Holder, HolderLayout, Key};
pub(crate) use metadata::{ArgKind, ArgSpec, KeyUse, Keys, Spec};
pub(crate) use notify::LockEvent;
pub(crate) use quorum::ask as ask_quorum;
pub(crate) use reply::{Error, Printable, Reply};
pub(crate) use state::Module;
pub(crate) use voting::{check_may_vote, check_quorum_ttl, check_round_ttl};
pub(crate) use waiting::{Held, Timeout, Wait, end_hold, lease_changed, open, wait};
pub(crate) use watching::watch;
