//! Locks over a quorum of independent servers, the nodes: Redlock, run by any of them for a client.
//!
//! * `round.rs`: one round of messages to all nodes, and what follows from their answers. Pure:
//!   no server types, no clock, no I/O.
//! * `coordinator.rs`, `node.rs`, `requests.rs`: carrying rounds out, on a thread of their own.

pub(crate) mod coordinator;
mod node;
mod requests;
pub(crate) mod round;
pub(crate) mod settings;
