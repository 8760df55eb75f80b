//! Importing: a second `ibv_context` for a device that this process has opened, by the file descriptor of
//! the first, and objects of the first in it, by their handles. Across processes there is nothing to
//! import: what stands behind an object is memory of its own process.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use urxe_driver::Pd;
use urxe_driver::dm::DeviceMemory;
use urxe_driver::per_process::PerProcess;

use super::context::{self, context_of};
use super::dm;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::mr::{self, Registration};
use super::object;
use super::pd::ProtectionDomain;

/// What an opened device and those imported from it have in common.
#[derive(Debug)]
pub(super) struct Session {
    /// Names its file: device and inode.
    file: (u64, u64),
    /// The `ibv_device`, exposed.
    device: usize,
    exported: Mutex<HashMap<u32, Exported>>,
}

/// An object that may be imported.
#[derive(Clone, Debug)]
pub(super) enum Exported {
    Pd(Weak<Pd>),
    Mr(Weak<Registration>),
    Dm(Weak<DeviceMemory>),
}

/// That an object may be imported, until this is dropped.
#[derive(Debug)]
pub(super) struct Listing {
    session: Arc<Session>,
    handle: u32,
}

impl Drop for Listing {
    fn drop(&mut self) {
        lock(&self.session.exported).remove(&self.handle);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions of this process.
static SESSIONS: PerProcess<Mutex<Vec<Weak<Session>>>> = PerProcess::new();

fn sessions() -> MutexGuard<'static, Vec<Weak<Session>>> {
    lock(SESSIONS.get(Mutex::default))
}

impl Session {
    /// A new one for a device, and the file that stands for it: programs duplicate its descriptor, hand
    /// it to [`ibv_import_device`], and close it.
    pub fn new(device: *mut ibv_device) -> io::Result<(Arc<Self>, OwnedFd)> {
        let command = memfd_create("urxe", MemfdFlags::CLOEXEC)?;
        let session = Arc::new(Session {
            file: identity(&command)?,
            device: device.expose_provenance(),
            exported: Mutex::default(),
        });
        let mut sessions = sessions();
        sessions.retain(|other| other.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        Ok((session, command))
    }

    /// The device.
    pub fn device(&self) -> *mut ibv_device {
        ptr::with_exposed_provenance_mut(self.device)
    }

    /// Lets the object with this handle be imported.
    pub fn export(self: &Arc<Self>, handle: u32, object: Exported) -> Listing {
        lock(&self.exported).insert(handle, object);
        Listing {
            session: Arc::clone(self),
            handle,
        }
    }

    fn find(&self, handle: u32) -> Result<Exported, Errno> {
        let exported = lock(&self.exported).get(&handle).cloned();
        exported.ok_or(Errno(libc::EINVAL))
    }
}

fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens a device again, by a duplicate of the descriptor `cmd_fd` of one of its contexts, which then
/// belongs to the new context. `EOPNOTSUPP` for the descriptor of another process's.
///
/// # Safety
/// The descriptor is not used for anything else any more, if this succeeds.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    entry::pointer("ibv_import_device", || {
        if cmd_fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: it is used while this function runs; a number that is no open file's gives an error.
        let file = identity(unsafe { BorrowedFd::borrow_raw(cmd_fd) })?;
        let mut sessions = sessions().clone().into_iter();
        let session = sessions.find_map(|session| {
            let session = session.upgrade()?;
            (session.file == file).then_some(session)
        });
        let session = session.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: the device of an opened context, which the session belongs to; and a descriptor that
        // is open, as was just seen, and given away by the caller's promise.
        unsafe { context::open(session, || OwnedFd::from_raw_fd(cmd_fd)) }
    })
}

/// A protection domain of the same device, by its handle.
///
/// # Safety
/// `context` is null or an opened device.
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    entry::pointer("ibv_import_pd", || {
        // SAFETY: the caller's promise.
        let device = unsafe { context_of(context) }?;
        let Exported::Pd(found) = device.session.find(pd_handle)? else {
            return Err(Errno(libc::EINVAL));
        };
        let driver = found.upgrade().ok_or(Errno(libc::EINVAL))?;
        let shown = ibv_pd {
            context,
            handle: pd_handle,
        };
        let ours = ProtectionDomain::imported(driver, device.users.add());
        Ok(object::make(shown, ours))
    })
}

/// Ends an imported protection domain; the one that it is stays.
///
/// # Safety
/// `pd` is null or from [`ibv_import_pd`], and used for nothing else any more.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    entry::value("ibv_unimport_pd", (), || {
        if !pd.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { object::free(pd) });
        }
    });
}

/// A memory region of the same device, by its handle. Whichever deregisters it, deregisters it for all.
///
/// # Safety
/// `pd` is null or a protection domain of ours.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    entry::pointer("ibv_import_mr", || {
        // SAFETY: the caller's promise; the context is read without a reference to the whole.
        let device = unsafe {
            object::ours(pd)?;
            context_of((&raw const (*pd).context).read())?
        };
        let Exported::Mr(found) = device.session.find(mr_handle)? else {
            return Err(Errno(libc::EINVAL));
        };
        let found = found.upgrade().ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as above.
        unsafe { mr::import(pd, mr_handle, found) }
    })
}

/// Ends an imported memory region; the one that it is stays.
///
/// # Safety
/// `mr` is null or from [`ibv_import_mr`], and used for nothing else any more.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    entry::value("ibv_unimport_mr", (), || {
        if !mr.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { object::free(mr) });
        }
    });
}

/// Device memory of the same device, by its handle.
///
/// # Safety
/// `context` is null or an opened device.
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    entry::pointer("ibv_import_dm", || {
        // SAFETY: the caller's promise.
        let device = unsafe { context_of(context) }?;
        let Exported::Dm(found) = device.session.find(dm_handle)? else {
            return Err(Errno(libc::EINVAL));
        };
        let driver = found.upgrade().ok_or(Errno(libc::EINVAL))?;
        Ok(dm::show(
            context,
            dm_handle,
            driver,
            None,
            device.users.add(),
        ))
    })
}

/// Ends imported device memory; the memory stays.
///
/// # Safety
/// `dm` is null or from [`ibv_import_dm`], and used for nothing else any more.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    entry::value("ibv_unimport_dm", (), || {
        if !dm.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { object::free(dm) });
        }
    });
}
