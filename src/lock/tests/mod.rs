//! Random histories, each against a model that is too simple to be wrong.

mod queue;
mod rules;
