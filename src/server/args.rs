//! The arguments of a command, and those of loading the module.

use super::string::Str;
use redis_module::raw;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// One argument.
pub(crate) type Arg<'a> = Str<'a>;

/// Arguments, in order.
#[derive(Clone)]
pub(crate) struct Args<'a> {
    next: NonNull<*mut raw::RedisModuleString>,
    left: usize,
    life: PhantomData<&'a [*mut raw::RedisModuleString]>,
}

impl Args<'_> {
    /// The arguments of a command.
    ///
    /// # Safety
    /// `argv` and `argc` are what the server passed to a command, and the command runs for `'a`.
    pub(super) unsafe fn of_command(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        // SAFETY: passed on to the caller.
        let mut args = unsafe { Self::of_load(argv, argc) };
        args.next();
        args
    }

    /// The arguments of a module being loaded.
    ///
    /// # Safety
    /// `argv` and `argc` are what the server passed for it, and loading takes for `'a`.
    pub(super) unsafe fn of_load(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        Self {
            next: NonNull::new(argv).unwrap_or(NonNull::dangling()),
            left: if argv.is_null() {
                0
            } else {
                usize::try_from(argc).unwrap_or(0)
            },
            life: PhantomData,
        }
    }
}

impl Args<'_> {
    /// Those that are left, as the server's functions take them: where they begin, and how many
    /// there are.
    pub(super) fn as_raw(&self) -> (*mut *mut raw::RedisModuleString, usize) {
        (self.next.as_ptr(), self.left)
    }
}

impl<'a> Iterator for Args<'a> {
    type Item = Arg<'a>;

    fn next(&mut self) -> Option<Arg<'a>> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: at least one of the server's arguments is left, so `next` points at it and may
        // be moved to its end; arguments neither change nor go away while their command runs.
        unsafe {
            let arg = Str::from_raw(self.next.read());
            self.next = self.next.add(1);
            Some(arg)
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Args<'_> {}
