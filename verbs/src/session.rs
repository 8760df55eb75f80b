//! The state that an opened device shares with the contexts imported from it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use urxe_driver::Pd;
use urxe_driver::dm::DeviceMemory;
use urxe_driver::per_process::PerProcess;

use super::errno::Errno;
use super::ffi::*;
use super::registration::Registration;

/// The state that an opened device shares with the contexts imported from it.
#[derive(Debug)]
pub(super) struct Session {
    /// The device and inode numbers of its command file, which identify it.
    file: (u64, u64),
    /// The `ibv_device`, as an address with exposed provenance.
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

/// The registration of an object that may be imported, until it is dropped.
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
    /// Creates a session for a device and its command file. Programs duplicate the descriptor of
    /// this file, pass it to `ibv_import_device`, and close it.
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

    /// Returns the device.
    pub fn device(&self) -> *mut ibv_device {
        ptr::with_exposed_provenance_mut(self.device)
    }

    /// Allows the object with this handle to be imported until the result is dropped.
    pub fn export(self: &Arc<Self>, handle: u32, object: Exported) -> Listing {
        lock(&self.exported).insert(handle, object);
        Listing {
            session: Arc::clone(self),
            handle,
        }
    }

    pub fn find(&self, handle: u32) -> Result<Exported, Errno> {
        let exported = lock(&self.exported).get(&handle).cloned();
        exported.ok_or(Errno(libc::EINVAL))
    }

    /// Returns the session of this process whose command file is open as `file`, if there is one.
    ///
    /// # Errors
    /// `EBADF` if `file` is not open.
    pub fn of_command_file(file: BorrowedFd<'_>) -> io::Result<Option<Arc<Self>>> {
        let file = identity(file)?;
        let mut sessions = sessions().clone().into_iter();
        Ok(sessions.find_map(|session| {
            let session = session.upgrade()?;
            (session.file == file).then_some(session)
        }))
    }
}

fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}
