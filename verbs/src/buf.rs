//! Buffers that the library allocates. Any memory is as good as any other here, so they are pages.

use std::ffi::{c_int, c_void};

use memmap2::{MmapMut, MmapRaw};

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use};

impl Handle for ibv_buf {
    type Ours = Buffer;
}

/// What stands behind an `ibv_buf`.
#[derive(Debug)]
pub(super) struct Buffer {
    map: MmapRaw,
    /// The address of the domain that it was allocated from, to be compared only.
    pd: usize,
    _pd: Use,
}

/// Allocates a buffer; its address is returned, and what stands for it stored at `buf`.
///
/// # Safety
/// The pointers are null, or a protection domain of ours and room for a pointer.
pub unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    entry::pointer("ibv_alloc_buf", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { object::ours(pd) }?;
        if size == 0 || buf.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let map = MmapRaw::from(MmapMut::map_anon(size)?);
        let start = map.as_mut_ptr().cast();
        let ours = Buffer {
            map,
            pd: pd.addr(),
            _pd: domain.users.add(),
        };
        let made = object::make(ibv_buf { _opaque: [] }, ours);
        // SAFETY: the caller's promise.
        unsafe { entry::write(buf, made) }?;
        Ok(start)
    })
}

/// # Safety
/// `buf` is null or a buffer of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    entry::value("ibv_free_buf", (), || {
        if !buf.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { object::free(buf) });
        }
    });
}

/// Registers a part of a buffer.
///
/// # Safety
/// The pointers are null, or a protection domain and a buffer of ours.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR),
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: std::ptr::null_mut(),
        buf,
    };
    // SAFETY: the caller's promise.
    unsafe { super::mr::ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// `ENODATA`, as no buffer is a DMA buffer.
///
/// # Safety
/// `buf` is null or a buffer of ours.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    entry::number("ibv_export_buf_dmabuf_fd", || {
        // SAFETY: the caller's promise.
        unsafe { object::ours(buf) }?;
        Err(Errno(libc::ENODATA))
    })
}

/// Checks that a range lies within a buffer, and that the domain is the one that it is from.
///
/// # Errors
/// `EINVAL` if not.
///
/// # Safety
/// `buf` is null or a buffer of ours.
pub(super) unsafe fn check_within(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let buffer = unsafe { object::ours(buf) }?;
    let offset = addr.addr().checked_sub(buffer.map.as_mut_ptr().addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    match end {
        Some(end) if end <= buffer.map.len() && pd.addr() == buffer.pd => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}
