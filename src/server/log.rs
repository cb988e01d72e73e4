//! Lines in the server's log.

use super::context::Context;
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::ptr;

/// How important a line is, in the server's own words.
#[derive(Clone, Copy)]
pub(super) enum Level {
    Notice,
    Warning,
}

impl Level {
    fn name(self) -> &'static CStr {
        match self {
            Self::Notice => c"notice",
            Self::Warning => c"warning",
        }
    }
}

/// Writes one line. Without a context the server calls the module just "module".
pub(super) fn log(ctx: Option<Context<'_>>, level: Level, text: &str) {
    // SAFETY: reading a pointer that the server set while loading the module.
    let Some(write) = (unsafe { raw::RedisModule_Log }) else {
        return;
    };
    let len = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
    // SAFETY: the format takes a length and a pointer to as many bytes; the text itself is never
    // read as a format.
    unsafe {
        write(
            ctx.map_or(ptr::null_mut(), Context::as_raw),
            level.name().as_ptr(),
            c"%.*s".as_ptr(),
            len,
            text.as_ptr(),
        );
    }
}
