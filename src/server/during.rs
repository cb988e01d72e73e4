//! What goes on further up the stack, for those who are called by the server meanwhile.

use std::cell::Cell;
use std::thread::LocalKey;

/// Something that goes on for as long as this lives.
pub(super) struct During {
    what: &'static LocalKey<Cell<bool>>,
    before: bool,
}

impl During {
    /// It begins, or goes on.
    pub(super) fn begin(what: &'static LocalKey<Cell<bool>>) -> Self {
        let before = what.replace(true);
        Self { what, before }
    }
}

impl Drop for During {
    fn drop(&mut self) {
        self.what.set(self.before);
    }
}
