//! Lists of `rdma_addrinfo`, allocated with `calloc`.

use std::mem::size_of;
use std::ptr;

use crate::errno::Errno;
use crate::ffi::*;

/// A list of results, freed when dropped.
pub(super) struct AddrinfoList(*mut rdma_addrinfo);

// SAFETY: the value is the only owner of the list, and `free` may be called by any thread.
unsafe impl Send for AddrinfoList {}

impl AddrinfoList {
    /// Passes the list to the application, which frees it.
    pub fn into_raw(self) -> *mut rdma_addrinfo {
        let list = self.0;
        std::mem::forget(self);
        list
    }

    /// Returns a list of one zeroed entry.
    pub fn new() -> Result<AddrinfoList, Errno> {
        Ok(AddrinfoList(allocate(size_of::<rdma_addrinfo>())?.cast()))
    }

    pub fn entry(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: the entry was allocated with its size and zeroed, which is a valid value. `self`
        // owns it exclusively.
        unsafe { &mut *self.0 }
    }
}

impl Drop for AddrinfoList {
    fn drop(&mut self) {
        // SAFETY: the list was allocated here and was not passed to the application.
        unsafe { free_list(self.0) };
    }
}

/// Allocates zeroed memory with `calloc`.
///
/// Applications may replace members by memory from `malloc`, and `rdma_freeaddrinfo` frees all
/// members with `free`.
pub(super) fn allocate(len: usize) -> Result<*mut u8, Errno> {
    // SAFETY: `calloc` accepts any size.
    let memory = unsafe { libc::calloc(1, len) };
    match memory.is_null() {
        true => Err(Errno(libc::ENOMEM)),
        false => Ok(memory.cast()),
    }
}

/// Copies `len` bytes to new memory from [`allocate`].
///
/// # Safety
/// `from` must point to `len` readable bytes.
pub(super) unsafe fn copy(from: *const u8, len: usize) -> Result<*mut u8, Errno> {
    let memory = allocate(len)?;
    // SAFETY: `from` points to `len` readable bytes: the caller's contract, section Safety.
    // `memory` has `len` bytes and was just allocated, so the ranges do not overlap.
    unsafe { ptr::copy_nonoverlapping(from, memory, len) };
    Ok(memory)
}

/// Frees all entries of a list, and their members.
///
/// # Safety
/// `list` must be null or an unshared list whose members are null or allocated by the C library.
pub(super) unsafe fn free_list(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: `list` is not null, and it and its members were allocated by the C library: the
        // caller's contract, section Safety.
        unsafe {
            let entry = list.read();
            libc::free(entry.ai_connect);
            libc::free(entry.ai_route);
            libc::free(entry.ai_src_canonname.cast());
            libc::free(entry.ai_dst_canonname.cast());
            libc::free(entry.ai_src_addr.cast());
            libc::free(entry.ai_dst_addr.cast());
            libc::free(list.cast());
            list = entry.ai_next;
        }
    }
}
