//! What each rule of a round says, random histories of rounds, and an exhaustive search.

mod node;
mod rules;
mod search;
