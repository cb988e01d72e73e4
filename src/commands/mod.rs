//! The commands, one file each.

pub(crate) mod acquire;
mod args;
pub(crate) mod contended;
#[cfg(debug_assertions)]
pub(crate) mod debug;
pub(crate) mod guard;
pub(crate) mod help;
pub(crate) mod info;
pub(crate) mod macquire;
pub(crate) mod mrelease;
pub(crate) mod mrenew;
pub(crate) mod qacquire;
pub(crate) mod qend;
pub(crate) mod qextend;
pub(crate) mod qinfo;
pub(crate) mod qrelease;
pub(crate) mod qrelock;
pub(crate) mod qrenew;
pub(crate) mod qsettle;
pub(crate) mod queue;
pub(crate) mod qunvote;
pub(crate) mod qvote;
pub(crate) mod racquire;
pub(crate) mod release;
pub(crate) mod renew;

/// The first version that has the commands of this crate.
const SINCE: &std::ffi::CStr = c"0.1.0";
