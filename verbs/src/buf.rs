//! `ibv_alloc_buf` and related calls. Devices have no memory of their own, so a buffer consists of
//! anonymous pages.

use std::ffi::{c_int, c_void};

use memmap2::{MmapMut, MmapRaw};

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use};

impl Handle for ibv_buf {
    type State = Buffer;
}

/// The library's state behind an `ibv_buf`.
#[derive(Debug)]
pub(super) struct Buffer {
    map: MmapRaw,
    /// The address of the protection domain of the allocation. It is compared, not dereferenced.
    pd: usize,
    _pd: Use,
}

/// Allocates a buffer, returns its address, and stores its `ibv_buf` at `buf`.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `buf` must be null or
/// point to a writable pointer.
pub unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    entry::pointer("ibv_alloc_buf", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety.
        let domain = unsafe { object::state_of(pd) }?;
        if size == 0 || buf.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let map = MmapRaw::from(MmapMut::map_anon(size)?);
        let start = map.as_mut_ptr().cast();
        let state = Buffer {
            map,
            pd: pd.addr(),
            _pd: domain.users.add(),
        };
        let made = object::make(ibv_buf { _opaque: [] }, state);
        // SAFETY: `buf` is non-null (checked above) and writable: the caller's contract, section
        // Safety.
        unsafe { entry::write(buf, made) }?;
        Ok(start)
    })
}

/// Frees a buffer.
///
/// # Safety
/// `buf` must be null or a live buffer created by this library. No other call may use it, or its
/// memory, now or later.
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    entry::value("ibv_free_buf", (), || {
        if !buf.is_null() {
            // SAFETY: `buf` is non-null (checked above) and live, and no other call uses it: the
            // caller's contract, section Safety.
            drop(unsafe { object::free(buf) });
        }
    });
}

/// Returns -1 with `ENODATA`, since no buffer is a DMA buffer.
///
/// # Safety
/// `buf` must be null or a live buffer created by this library.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    entry::number("ibv_export_buf_dmabuf_fd", || {
        // SAFETY: `buf` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(buf) }?;
        Err(Errno(libc::ENODATA))
    })
}

/// Checks that a range is within a buffer, and that the buffer was allocated from `pd`.
///
/// # Errors
/// `EINVAL` if either check fails, or `buf` is null.
///
/// # Safety
/// `buf` must be null or a live buffer created by this library.
pub(super) unsafe fn check_within(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: `buf` is null or live: the caller's contract, section Safety.
    let buffer = unsafe { object::state_of(buf) }?;
    let offset = addr.addr().checked_sub(buffer.map.as_mut_ptr().addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    match end {
        Some(end) if end <= buffer.map.len() && pd.addr() == buffer.pd => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}
