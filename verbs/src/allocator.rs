//! The allocators of a parent domain: functions of the program that provide the memory of objects.

use std::alloc::Layout;
use std::ffi::c_void;

use super::errno::Errno;
use super::ffi::*;

type Alloc =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, resource_type: u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, resource_type: u64);

/// The purpose of memory, passed to the program's allocators as the resource type. The upper half
/// of that number is driver-specific and 0 here.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Kind {
    QueuePair = 0,
    CompletionQueue = 1,
}

/// The allocators of a parent domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocators {
    pub pd_context: *mut c_void,
    pub alloc: Alloc,
    pub free: Free,
    /// The parent domain; null until it is created.
    pub domain: *mut ibv_pd,
}

// SAFETY: the pointers are the program's own and are only passed to its functions.
// ibv_alloc_parent_domain(3) lets a library call these from any thread that creates or destroys
// objects.
unsafe impl Send for Allocators {}

// SAFETY: the members are never written after creation, and the program's functions may be called
// from any thread, as for `Send`.
unsafe impl Sync for Allocators {}

impl Allocators {
    /// Allocates memory of this layout, and returns it with its deallocator; `None` if the program
    /// leaves the allocation to the library.
    ///
    /// # Errors
    /// `ENOMEM` if the program's allocator fails.
    pub fn allocate(
        &self,
        layout: Layout,
        kind: Kind,
    ) -> Result<Option<(*mut u8, Deallocator)>, Errno> {
        // SAFETY: `alloc` is the program's function, called with the arguments that
        // ibv_alloc_parent_domain(3) defines.
        let memory = unsafe {
            (self.alloc)(
                self.domain,
                self.pd_context,
                layout.size(),
                layout.align(),
                kind as u64,
            )
        };
        if memory.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        if memory.addr() == IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(None);
        }
        let allocators = *self;
        Ok(Some((memory.cast(), Deallocator { allocators, kind })))
    }
}

/// Frees the memory of an object with the allocator that it is from.
#[derive(Debug)]
pub(super) struct Deallocator {
    allocators: Allocators,
    kind: Kind,
}

impl Deallocator {
    /// Returns memory to the allocator.
    pub fn free(self, memory: *mut c_void) {
        let Allocators {
            pd_context,
            free,
            domain,
            ..
        } = self.allocators;
        // SAFETY: `free` is the program's function, called with the arguments that
        // ibv_alloc_parent_domain(3) defines. `memory` is from the `alloc` of the same domain.
        unsafe { free(domain, pd_context, memory, self.kind as u64) };
    }
}
