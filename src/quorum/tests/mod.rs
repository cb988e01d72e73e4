//! What each rule of a round says, random histories of rounds, and an exhaustive search; and the
//! connection to a node.

mod link;
mod node;
mod rules;
mod search;
