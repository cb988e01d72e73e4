//! Locks over a quorum of independent servers, the nodes: Redlock, run by any of them for a client.
//!
//! * `round.rs`: one round of messages to all nodes, and what follows from their answers. Pure:
//!   no server types, no clock, no I/O.
//! * `attempt.rs`: how a node remembers which round a hold came about by.
//! * `ended.rs`: which attempts a node has ended.
//! * `info.rs`: what the nodes say of one lock, put together. Pure.
//! * `reasons.rs`: why a request found no quorum, in words. Pure.
//! * `vote.rs`: what a node does with the messages of a coordinator. Pure.
//! * `coordinator.rs`: what the requests of clients come to, round by round. Pure.
//! * `requests.rs`: messages as commands, and their answers. Pure.
//! * `link.rs`, `transport.rs`: the connection to a node.
//! * `network.rs`: the coordinator and its connections, driven by the server's event loop.

pub(crate) mod attempt;
pub(crate) mod coordinator;
pub(crate) mod ended;
pub(crate) mod info;
pub(crate) mod link;
pub(crate) mod network;
pub(crate) mod reasons;
mod requests;
pub(crate) mod round;
pub(crate) mod settings;
mod transport;
pub(crate) mod vote;

#[cfg(test)]
mod tests;
