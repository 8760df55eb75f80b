//! XRC domains: the shared receive queues into which XRC target queue pairs may receive (annex
//! A14).
//!
//! A domain is identified by a file, through which threads and libraries of one process share it,
//! or is private. Another process that opens the same file gets a domain of its own: its queues are
//! in memory that this process cannot access.

use crate::device::Device;
use crate::scheduling::affinity::CqAffinity;
use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock};
use urxe_proto::ids::Srqn;
use urxe_proto::queue::NoMemory;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// Whether `open` may create a domain, and whether it must: `O_CREAT` and `O_EXCL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Create a domain if the file has none.
    pub create: bool,
    /// Fail if the file has a domain.
    pub exclusive: bool,
}

/// Errors of opening a domain.
#[derive(Debug, thiserror::Error)]
pub enum XrcdError {
    /// The file descriptor is not usable: usually EBADF.
    #[error("the file of the XRC domain cannot be looked at: {0}")]
    File(#[from] io::Error),
    /// The file has no domain in this process: EAGAIN, as in the kernel.
    #[error("the file has no XRC domain in this process: give O_CREAT to make one")]
    Missing,
    /// The file has a domain: EINVAL, as in the kernel.
    #[error("the file has an XRC domain already, and O_EXCL asks for a new one")]
    Exists,
}

impl XrcdError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::File(error) => error.raw_os_error().unwrap_or(libc::EBADF),
            Self::Missing => libc::EAGAIN,
            Self::Exists => libc::EINVAL,
        }
    }
}

/// An XRC domain with shared receive queues `S`. Its queue pairs and shared receive queues keep it
/// alive.
#[derive(Debug)]
pub struct Domain<S> {
    device: Arc<Device>,
    file: Option<FileId>,
    members: RwLock<HashMap<Srqn, Arc<S>>>,
    /// The affinity of its target queue pairs, and of the completion queues of its members.
    pub(crate) affinity: CqAffinity,
}

/// No number of an XRC domain is free, or none can be allocated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddError {
    #[error("all shared receive queue numbers of the XRC domain are taken")]
    NoNumber,
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

impl<S> Domain<S> {
    /// Creates an empty domain, which `file` identifies on this device.
    pub(crate) fn new(device: &Arc<Device>, file: Option<FileId>) -> Arc<Self> {
        Arc::new(Domain {
            device: Arc::clone(device),
            file,
            members: RwLock::default(),
            affinity: CqAffinity::default(),
        })
    }

    /// Returns whether `file` identifies the domain on this device.
    pub(crate) fn is_of(&self, device: &Arc<Device>, file: FileId) -> bool {
        self.file == Some(file) && Arc::ptr_eq(&self.device, device)
    }

    /// Adds the shared receive queue that `make` creates with a free number in `range`.
    pub(crate) fn add(
        &self,
        range: RangeInclusive<u32>,
        make: impl FnOnce(Srqn) -> Result<Arc<S>, NoMemory>,
    ) -> Result<Arc<S>, AddError> {
        let count = range.clone().count();
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if members.len() >= count {
            return Err(AddError::NoNumber);
        }
        let srqn = loop {
            let offset = urxe_net::random::below(count) as u32;
            let srqn = Srqn::new(range.start() + offset);
            if !members.contains_key(&srqn) {
                break srqn;
            }
        };
        let member = make(srqn)?;
        members.insert(srqn, Arc::clone(&member));
        Ok(member)
    }

    /// Removes a shared receive queue, if it still has this number here. No message uses the queue
    /// after the return.
    pub(crate) fn remove(&self, srqn: Srqn, member: &S) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let is_here = |found: &Arc<S>| std::ptr::eq(&raw const **found, member);
        let removed = match members.get(&srqn).is_some_and(is_here) {
            true => members.remove(&srqn),
            false => None,
        };
        drop(members);
        drop(removed);
    }

    /// Returns whether `holds` is true for any shared receive queue.
    pub(crate) fn any(&self, holds: impl Fn(&S) -> bool) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.values().any(|member| holds(member))
    }

    /// Calls `act` with the shared receive queue of this number, if it exists.
    pub(crate) fn with<T>(&self, srqn: Srqn, act: impl FnOnce(&S) -> T) -> Option<T> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.get(&srqn).map(|member| act(member))
    }
}
