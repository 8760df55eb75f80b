//! Device memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use urxe_driver::dm::{DeviceMemory, DmError};

use super::context::context_of as open_device;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::session::{Listed, Listing};

impl Handle for ibv_dm {
    type State = Memory;
}

/// The library's state behind an `ibv_dm`.
#[derive(Debug)]
pub(super) struct Memory {
    driver: Arc<DeviceMemory>,
    /// Its memory regions.
    users: Users,
    _listing: Option<Listing>,
    _context: Use,
}

impl Memory {
    /// Returns the address of a part of the memory, and a use of it.
    ///
    /// # Errors
    /// `EINVAL` if the part is not within the memory.
    pub fn part(&self, offset: u64, length: usize) -> Result<(u64, Use), Errno> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.driver.len() as u64 => {
                Ok((self.driver.addr() + offset, self.users.add()))
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }
}

/// Returns the context that device memory belongs to.
///
/// # Safety
/// `dm` must be live device memory created by this library.
pub(super) unsafe fn context_of(dm: *mut ibv_dm) -> *mut ibv_context {
    // SAFETY: `dm` is live: the caller's contract, section Safety. The member is read without a
    // reference.
    unsafe { (&raw const (*dm).context).read() }
}

/// Implements `alloc_dm` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `attr` must be null or point to readable attributes.
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    entry::pointer("ibv_alloc_dm", || {
        // SAFETY: `context` is null or an opened device, and `attr` null or readable: the caller's
        // contract, section Safety.
        let (device, attr) = unsafe { (open_device(context)?, entry::read(attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let driver = Arc::new(DeviceMemory::allocate(attr.length, attr.log_align_req)?);
        let handle = object::number();
        let listed = Listed::Dm(Arc::downgrade(&driver));
        let listing = device.session.list(handle, listed);
        let users = device.users.add();
        Ok(create_handle(context, handle, driver, Some(listing), users))
    })
}

/// Makes an `ibv_dm` for device memory of the driver.
pub(super) fn create_handle(
    context: *mut ibv_context,
    handle: u32,
    driver: Arc<DeviceMemory>,
    listing: Option<Listing>,
    used: Use,
) -> *mut ibv_dm {
    let handle = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle,
    };
    let state = Memory {
        driver,
        users: Users::default(),
        _listing: listing,
        _context: used,
    };
    object::make(handle, state)
}

/// Implements `free_dm` of a context. `EBUSY` while memory regions of it exist.
///
/// # Safety
/// `dm` must be null or live device memory created by this library. No other call may use it now or
/// later.
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    entry::status("ibv_free_dm", || {
        // SAFETY: `dm` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(dm) }?.users.check_none()?;
        // SAFETY: `dm` is live, and no other call uses it: the caller's contract, section Safety.
        // No memory region uses it (checked above).
        drop(unsafe { object::free(dm) });
        Ok(())
    })
}

/// Copies host memory to device memory.
///
/// # Safety
/// `dm` must be null or live device memory created by this library. `host_addr` must be null or
/// point to `length` readable bytes.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    entry::status("ibv_memcpy_to_dm", || {
        // SAFETY: `dm` is null or live, and `host_addr` points to `length` readable bytes: the
        // caller's contract, section Safety. `check_host` rejects a null `host_addr`.
        unsafe {
            let memory = object::state_of(dm)?;
            check_host(host_addr, length)?;
            Ok(memory.driver.copy_in(dm_offset, host_addr.cast(), length)?)
        }
    })
}

/// Copies device memory to host memory.
///
/// # Safety
/// `dm` must be null or live device memory created by this library. `host_addr` must be null or
/// point to `length` writable bytes.
unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    entry::status("ibv_memcpy_from_dm", || {
        // SAFETY: `dm` is null or live, and `host_addr` points to `length` writable bytes: the
        // caller's contract, section Safety. `check_host` rejects a null `host_addr`.
        unsafe {
            let memory = object::state_of(dm)?;
            check_host(host_addr, length)?;
            Ok(memory
                .driver
                .copy_out(dm_offset, host_addr.cast(), length)?)
        }
    })
}

/// Checks the host address of a copy.
///
/// # Errors
/// `DmError::Range`, reported as `EFAULT`, if it is null and `length` is not 0.
fn check_host(host_addr: *const c_void, length: usize) -> Result<(), DmError> {
    match host_addr.is_null() && length > 0 {
        true => Err(DmError::Range),
        false => Ok(()),
    }
}
