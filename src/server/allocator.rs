//! Memory from the server, aligned as it was asked for.
//!
//! The server's functions promise the alignment of `malloc` and no more, and the allocator of the
//! crate `redis-module` passes larger ones on in the hope that the size brings them about. That
//! holds for one of the allocators that servers are built with, and not for that of the C library.

use redis_module::alloc::RedisAlloc;
use std::alloc::{GlobalAlloc, Layout};

/// The allocator of this module: the server's, which then knows about the memory.
pub(crate) struct ServerAlloc;

/// What every `malloc` aligns to.
const MALLOC_ALIGN: usize = 2 * size_of::<usize>();

/// A block with room for an address in it that is aligned to `layout`, and behind it for all of it.
/// In front of that address there is room for another one: of the block itself.
fn block_of(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(layout.align())?;
    Layout::from_size_align(size, MALLOC_ALIGN).ok()
}

// SAFETY: blocks come from the server's allocator, and none is given out twice before it is freed.
// What needs no more than the alignment of `malloc` is passed on. Anything else lies in a block that
// is larger by its alignment: the address after the block's first that is a multiple of it. The
// block's is one of `MALLOC_ALIGN` and the alignment is more, so that both are at least a pointer
// apart, and the pointer to the block that is written there lies within the block.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MALLOC_ALIGN {
            // SAFETY: passed on to the caller.
            return unsafe { RedisAlloc.alloc(layout) };
        }
        let Some(block_layout) = block_of(layout) else {
            return std::ptr::null_mut();
        };
        // SAFETY: a block is never empty. The offset is at most the alignment, by which the block is
        // larger than what was asked for, and at least a pointer's size.
        unsafe {
            let block = RedisAlloc.alloc(block_layout);
            if block.is_null() {
                return block;
            }
            let offset = layout.align() - block.addr() % layout.align();
            let aligned = block.add(offset);
            aligned.cast::<*mut u8>().sub(1).write(block);
            aligned
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if layout.align() <= MALLOC_ALIGN {
            // SAFETY: passed on to the caller.
            return unsafe { RedisAlloc.dealloc(start, layout) };
        }
        let Some(block_layout) = block_of(layout) else {
            return;
        };
        // SAFETY: `alloc` wrote the address of the block in front of what it gave out.
        unsafe {
            let block = start.cast::<*mut u8>().sub(1).read();
            RedisAlloc.dealloc(block, block_layout);
        }
    }
}
