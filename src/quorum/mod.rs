//! Locks over a quorum of independent servers, the nodes: Redlock, run by any of them for a client.
//!
//! * `round.rs`: one round of messages to all nodes, and what follows from their answers. Pure:
//!   no server types, no clock, no I/O.
//! * `attempt.rs`: how a node remembers which round a hold came about by.
//! * `ended.rs`: which attempts a node has ended.
//! * `info.rs`: what the nodes say of one lock, put together. Pure.
//! * `vote.rs`: what a node does with the messages of a coordinator. Pure.
//! * `coordinator.rs`, `node.rs`, `requests.rs`: carrying rounds out, on a thread of their own.

pub(crate) mod attempt;
pub(crate) mod coordinator;
pub(crate) mod ended;
pub(crate) mod info;
mod node;
mod requests;
pub(crate) mod round;
pub(crate) mod settings;
pub(crate) mod vote;

#[cfg(test)]
mod tests;
