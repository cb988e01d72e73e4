//! The server's strings.

use super::api::api;
use redis_module::raw;
use std::marker::PhantomData;
use std::ptr;

/// A string of the server that lives for `'a`: an argument, or the name of a key.
#[derive(Clone, Copy)]
pub(crate) struct Str<'a> {
    raw: *mut raw::RedisModuleString,
    life: PhantomData<&'a [u8]>,
}

impl<'a> Str<'a> {
    /// # Safety
    /// `raw` is a string of the server that is neither freed nor changed during `'a`.
    pub(super) unsafe fn from_raw(raw: *mut raw::RedisModuleString) -> Self {
        Self {
            raw,
            life: PhantomData,
        }
    }

    /// The string as the server's functions take it.
    pub(super) fn as_raw(self) -> *mut raw::RedisModuleString {
        self.raw
    }

    /// Its bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: by `from_raw` the string is alive and unchanged during 'a, and the server answers
        // with a pointer to as many bytes as it says.
        unsafe {
            let start = api!(RedisModule_StringPtrLen(self.raw, &raw mut len));
            std::slice::from_raw_parts(start.cast::<u8>(), len)
        }
    }
}

/// A string of the server that this module made and frees again.
pub(crate) struct OwnedStr(*mut raw::RedisModuleString);

impl OwnedStr {
    /// A copy of `bytes`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        // SAFETY: the server copies `bytes.len()` bytes from a slice of that length. Without a
        // context the string is not freed behind our back.
        Self(unsafe {
            api!(RedisModule_CreateString(
                ptr::null_mut(),
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        })
    }

    /// The string, borrowed.
    pub(crate) fn as_str(&self) -> Str<'_> {
        // SAFETY: the string lives as long as `self`, and nothing here changes it.
        unsafe { Str::from_raw(self.0) }
    }
}

impl Drop for OwnedStr {
    fn drop(&mut self) {
        // SAFETY: the string was made without a context by `new` and is given up here, once.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.0)) }
    }
}
