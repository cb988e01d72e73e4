//! What the module remembers. Everything else is in the keyspace.

use crate::lock::fence::Fence;
use crate::lock::rules::Hold;
use lazy_static::lazy_static;
use std::cell::RefCell;

/// The module's state.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) fence: Fence,
}

impl Module {
    /// Every token that any command comes by raises those that are still to be minted.
    pub(crate) fn observe(&mut self, hold: Option<&Hold<'_>>) {
        if let Some(token) = hold.and_then(Hold::token) {
            self.fence.observe(token);
        }
    }
}

/// A value that only callbacks of the server touch.
struct MainThread<T>(T);

// SAFETY: the server calls a module from one thread at a time, with its global lock held, and this
// crate gives the value to nobody else.
unsafe impl<T> Sync for MainThread<T> {}

lazy_static! {
    static ref MODULE: MainThread<RefCell<Module>> = MainThread(RefCell::default());
}

/// Lends the state to `f`. `None` when it is lent already, which means that a callback of the
/// server runs inside another one of this module.
pub(crate) fn with_module<R>(f: impl FnOnce(&mut Module) -> R) -> Option<R> {
    MODULE
        .0
        .try_borrow_mut()
        .ok()
        .map(|mut module| f(&mut module))
}
