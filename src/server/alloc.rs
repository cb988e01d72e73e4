//! The server's allocator, for types of any alignment.

use redis_module::alloc::RedisAlloc;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// What the server's allocator aligns everything to, as every `malloc` does.
const SERVER_ALIGN: usize = 2 * size_of::<usize>();

/// Rust's memory, which comes from the server. That knows of no alignment beyond its own, which
/// some types of other crates need: for those, more is taken, and the address of all of it stands
/// before what is given out.
pub(crate) struct ServerAlloc;

/// The layout of all that is taken for one that the server cannot align.
fn padded(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(layout.align())?;
    Layout::from_size_align(size, SERVER_ALIGN).ok()
}

// SAFETY: what is given out has the size and the alignment that were asked for, and is given back to
// the server as it came from there.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= SERVER_ALIGN {
            // SAFETY: as for the caller.
            return unsafe { RedisAlloc.alloc(layout) };
        }
        let Some(padded) = padded(layout) else {
            return ptr::null_mut();
        };
        // SAFETY: the size is not zero. The address given out is above the one that the server
        // gave, by `SERVER_ALIGN` to `align` bytes, so the one before it fits in between and what was asked for
        // after it.
        unsafe {
            let all = RedisAlloc.alloc(padded);
            if all.is_null() {
                return all;
            }
            let address = all.addr();
            let given = all.add(layout.align() - (address & (layout.align() - 1)));
            given
                .sub(size_of::<*mut u8>())
                .cast::<*mut u8>()
                .write_unaligned(all);
            given
        }
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        // SAFETY: as for the caller, and `alloc` has left the address of all before the one that it
        // gave out.
        unsafe {
            if layout.align() <= SERVER_ALIGN {
                RedisAlloc.dealloc(given, layout);
            } else if let Some(padded) = padded(layout) {
                RedisAlloc.dealloc(
                    given
                        .sub(size_of::<*mut u8>())
                        .cast::<*mut u8>()
                        .read_unaligned(),
                    padded,
                );
            }
        }
    }
}
