//! Import of devices and objects: a second `ibv_context` for a device that this process has opened,
//! by the command descriptor of the first, and objects of the first in it, by their handles.
//!
//! Nothing can be imported across processes: an object is memory of its own process.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use super::context::context_of;
use super::dm;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::mr;
use super::object;
use super::open::open;
use super::pd::ProtectionDomain;
use super::session::{Listed, Session};

/// Opens a device again by `cmd_fd`, a duplicate of the command descriptor of one of its contexts.
/// On success the descriptor belongs to the new context.
///
/// `EOPNOTSUPP` for any other open descriptor, also one of another process's device.
///
/// # Safety
/// If the call succeeds, the caller must not use or close `cmd_fd` any more.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    entry::pointer("ibv_import_device", || {
        if cmd_fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: `cmd_fd` is not -1 (checked above) and is borrowed only during this call. If it
        // is not an open file, `fstat` fails.
        let session = Session::of_command_file(unsafe { BorrowedFd::borrow_raw(cmd_fd) })?;
        let session = session.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: the session is of an opened context, which keeps its device live. `cmd_fd` is
        // open, since `fstat` succeeded, and its ownership passes to this call: the caller's
        // contract, section Safety.
        unsafe { open(session, || OwnedFd::from_raw_fd(cmd_fd)) }
    })
}

/// Imports a protection domain of the same device by its handle.
///
/// # Safety
/// `context` must be null or an opened device.
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    entry::pointer("ibv_import_pd", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let device = unsafe { context_of(context) }?;
        let Listed::Pd(found) = device.session.find(pd_handle)? else {
            return Err(Errno(libc::EINVAL));
        };
        let driver = found.upgrade().ok_or(Errno(libc::EINVAL))?;
        let handle = ibv_pd {
            context,
            handle: pd_handle,
        };
        let state = ProtectionDomain::imported(driver, device.users.add());
        Ok(object::make(handle, state))
    })
}

/// Ends an imported protection domain. The original domain remains.
///
/// # Safety
/// `pd` must be null or live and from [`ibv_import_pd`]. No other call may use it now or later.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    entry::value("ibv_unimport_pd", (), || {
        if !pd.is_null() {
            // SAFETY: `pd` is non-null (checked above) and live, and no other call uses it: the
            // caller's contract, section Safety.
            drop(unsafe { object::free(pd) });
        }
    });
}

/// Imports a memory region of the same device by its handle. Deregistering any import, or the
/// original, ends the registration for all.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    entry::pointer("ibv_import_mr", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety. `context` is read
        // only after `object::state_of` has rejected a null `pd`, and without a reference.
        let device = unsafe {
            object::state_of(pd)?;
            context_of((&raw const (*pd).context).read())?
        };
        let Listed::Mr(found) = device.session.find(mr_handle)? else {
            return Err(Errno(libc::EINVAL));
        };
        let found = found.upgrade().ok_or(Errno(libc::EINVAL))?;
        // SAFETY: `pd` is live: the caller's contract, section Safety.
        unsafe { mr::import(pd, mr_handle, found) }
    })
}

/// Ends an imported memory region. The registration remains.
///
/// # Safety
/// `mr` must be null or live and from [`ibv_import_mr`]. No other call may use it now or later.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    entry::value("ibv_unimport_mr", (), || {
        if !mr.is_null() {
            // SAFETY: `mr` is non-null (checked above) and live, and no other call uses it: the
            // caller's contract, section Safety.
            drop(unsafe { object::free(mr) });
        }
    });
}

/// Imports device memory of the same device by its handle.
///
/// # Safety
/// `context` must be null or an opened device.
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    entry::pointer("ibv_import_dm", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let device = unsafe { context_of(context) }?;
        let Listed::Dm(found) = device.session.find(dm_handle)? else {
            return Err(Errno(libc::EINVAL));
        };
        let driver = found.upgrade().ok_or(Errno(libc::EINVAL))?;
        Ok(dm::create_handle(
            context,
            dm_handle,
            driver,
            None,
            device.users.add(),
        ))
    })
}

/// Ends imported device memory. The memory remains.
///
/// # Safety
/// `dm` must be null or live and from [`ibv_import_dm`]. No other call may use it now or later.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    entry::value("ibv_unimport_dm", (), || {
        if !dm.is_null() {
            // SAFETY: `dm` is non-null (checked above) and live, and no other call uses it: the
            // caller's contract, section Safety.
            drop(unsafe { object::free(dm) });
        }
    });
}
