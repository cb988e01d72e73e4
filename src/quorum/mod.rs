//! Locks over a quorum of independent servers, the nodes.
//!
//! * `attempt.rs`: how a node remembers which round a hold came about by.
//! * `vote.rs`: what a node does with the messages of a coordinator. Pure.

pub(crate) mod attempt;
pub(crate) mod vote;
