//! What a lock means. Pure: no server types, no clock, no I/O; whoever calls passes the moment and
//! what the keyspace holds, and gets back what to write and what to answer.

pub(crate) mod deadlock;
pub(crate) mod fence;
pub(crate) mod lease;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod rules;
pub(crate) mod share;
pub(crate) mod stats;
pub(crate) mod time;
pub(crate) mod watchdog;

#[cfg(test)]
mod tests;
