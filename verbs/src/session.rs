//! The state that an opened device shares with the contexts imported from it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use urxe_driver::dm::DeviceMemory;
use urxe_driver::per_process::PerProcess;
use urxe_driver::qp::Share;
use urxe_driver::{Pd, Qp, Srq};

use super::errno::Errno;
use super::ffi::*;
use super::registration::Registration;

/// The state that an opened device shares with the contexts imported from it. They own it, so it is
/// dropped when the last of them is closed. The objects that are left end then.
#[derive(Debug)]
pub(super) struct Session {
    /// The device and inode numbers of its command file, which identify it.
    file: (u64, u64),
    /// The `ibv_device`, as an address with exposed provenance.
    device: usize,
    objects: Mutex<HashMap<u32, Listed>>,
}

/// An object of a session that may be imported, or ends with the session.
#[derive(Clone, Debug)]
pub(super) enum Listed {
    Pd(Weak<Pd>),
    Mr(Weak<Registration>),
    Dm(Weak<DeviceMemory>),
    /// A queue pair that the program created.
    Qp(Weak<Qp>),
    /// A queue pair that the program opened.
    Share(Weak<Share>),
    Srq(Weak<Srq>),
}

/// An object's place in the list of its session, until it is dropped.
#[derive(Debug)]
pub(super) struct Listing {
    session: Weak<Session>,
    handle: u32,
}

impl Drop for Listing {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            lock(&session.objects).remove(&self.handle);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions of this process; a forked child starts without any.
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
            objects: Mutex::default(),
        });
        sessions().push(Arc::downgrade(&session));
        Ok((session, command))
    }

    /// Returns the device.
    pub fn device(&self) -> *mut ibv_device {
        ptr::with_exposed_provenance_mut(self.device)
    }

    /// Lists the object with this handle until the result is dropped.
    pub fn list(self: &Arc<Self>, handle: u32, object: Listed) -> Listing {
        lock(&self.objects).insert(handle, object);
        Listing {
            session: Arc::downgrade(self),
            handle,
        }
    }

    pub fn find(&self, handle: u32) -> Result<Listed, Errno> {
        let listed = lock(&self.objects).get(&handle).cloned();
        listed.ok_or(Errno(libc::EINVAL))
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

impl Drop for Session {
    /// Ends the objects that are left, first the queue pairs, whose last packets need the
    /// registrations. In a forked child they are those of its parent, and stay.
    fn drop(&mut self) {
        let this: *const Session = self;
        let found = sessions()
            .extract_if(.., |other| ptr::eq(other.as_ptr(), this))
            .count();
        if found == 0 {
            return;
        }
        let left = std::mem::take(&mut *lock(&self.objects));
        let mut registrations = Vec::new();
        for object in left.into_values() {
            match object {
                Listed::Qp(qp) => qp.upgrade().iter().for_each(Qp::disown),
                Listed::Share(share) => share.upgrade().iter().for_each(|share| share.disown()),
                Listed::Srq(srq) => srq.upgrade().iter().for_each(|srq| srq.leave_domain()),
                Listed::Mr(registration) => registrations.extend(registration.upgrade()),
                Listed::Pd(_) | Listed::Dm(_) => {}
            }
        }
        registrations.iter().for_each(|left| left.end());
    }
}

fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}
