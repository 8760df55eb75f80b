//! XRC domains: the shared receive queues into which XRC target queue pairs may receive (annex
//! A14).
//!
//! A domain is identified by a file, through which threads and libraries of one process share it,
//! or is private. Another process that opens the same file gets a domain of its own: its queues are
//! in memory that this process cannot access.

use crate::device::Device;
use crate::engine;
use crate::event_queue::lock;
use crate::per_process::PerProcess;
use crate::qp::Qp;
use crate::srq::{Srq, SrqError};
use rustix::fs::fstat;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::{io, ptr};
use urxe_proto::ids::{Qpn, Srqn};
use urxe_proto::qp::QpType;
use urxe_proto::queue::NoMemory;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
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

/// An XRC domain. Its queue pairs and shared receive queues keep it alive.
#[derive(Debug)]
pub struct Xrcd {
    device: Arc<Device>,
    file: Option<FileId>,
    srqs: RwLock<HashMap<Srqn, Arc<Srq>>>,
}

/// The domains that are identified by a file.
static DOMAINS: PerProcess<Mutex<Vec<Weak<Xrcd>>>> = PerProcess::new();

impl Xrcd {
    /// Opens the domain of a file on this device, or creates one. Without a file, creates a private
    /// domain.
    ///
    /// # Errors
    /// See [`XrcdError`].
    pub fn open(
        device: &Arc<Device>,
        file: Option<BorrowedFd<'_>>,
        flags: OpenFlags,
    ) -> Result<Arc<Xrcd>, XrcdError> {
        let Some(file) = file else {
            return Ok(Self::new(device, None));
        };
        let stat = fstat(file).map_err(io::Error::from)?;
        let id = FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        let mut domains = lock(DOMAINS.get(Mutex::default));
        domains.retain(|domain| domain.strong_count() > 0);
        let found = domains
            .iter()
            .filter_map(Weak::upgrade)
            .find(|domain| domain.file == Some(id) && Arc::ptr_eq(&domain.device, device));
        match found {
            Some(_) if flags.exclusive => Err(XrcdError::Exists),
            Some(domain) => Ok(domain),
            None if !flags.create => Err(XrcdError::Missing),
            None => {
                let domain = Self::new(device, Some(id));
                domains.push(Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }

    fn new(device: &Arc<Device>, file: Option<FileId>) -> Arc<Xrcd> {
        Arc::new(Xrcd {
            device: Arc::clone(device),
            file,
            srqs: RwLock::default(),
        })
    }

    /// Returns the target queue pair with this number, if it belongs to this domain.
    pub fn find_target(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        let qp = engine::get().qp(qpn)?;
        let ours = |domain: &Arc<Xrcd>| ptr::eq(&**domain, self);
        (qp.service() == QpType::XrcTgt && qp.domain().is_some_and(ours)).then_some(qp)
    }

    /// Adds the shared receive queue that `make` creates with a free number.
    ///
    /// # Errors
    /// [`SrqError::NoNumber`] and [`SrqError::Open`].
    pub(crate) fn add(
        &self,
        make: impl FnOnce(Srqn) -> Result<Arc<Srq>, NoMemory>,
    ) -> Result<Arc<Srq>, SrqError> {
        let range = engine::get().numbers()?;
        let count = range.clone().count();
        let mut srqs = self.srqs.write().unwrap_or_else(PoisonError::into_inner);
        if srqs.len() >= count {
            return Err(SrqError::NoNumber);
        }
        let srqn = loop {
            let offset = urxe_net::random::below(count) as u32;
            let srqn = Srqn::new(range.start() + offset);
            if !srqs.contains_key(&srqn) {
                break srqn;
            }
        };
        let srq = make(srqn)?;
        srqs.insert(srqn, Arc::clone(&srq));
        Ok(srq)
    }

    /// Removes a shared receive queue. No message uses the queue after the return.
    pub(crate) fn remove(&self, srqn: Srqn) {
        let mut srqs = self.srqs.write().unwrap_or_else(PoisonError::into_inner);
        let removed = srqs.remove(&srqn);
        drop(srqs);
        drop(removed);
    }

    /// Calls `act` with the shared receive queue of this number, if it exists.
    pub(crate) fn with<T>(&self, srqn: Srqn, act: impl FnOnce(&Srq) -> T) -> Option<T> {
        let srqs = self.srqs.read().unwrap_or_else(PoisonError::into_inner);
        srqs.get(&srqn).map(|srq| act(srq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::{Cq, CqInit};
    use crate::device::devices;
    use crate::event_queue::EventQueue;
    use crate::pd::Pd;
    use crate::srq::SrqAttr;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    const CREATE: OpenFlags = OpenFlags {
        create: true,
        exclusive: false,
    };

    fn loopback() -> Arc<Device> {
        let devices = devices().unwrap();
        devices.into_iter().find(|d| d.is_loopback()).unwrap()
    }

    fn file() -> OwnedFd {
        memfd_create("domain", MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn domain_is_found_by_its_file_while_somebody_has_it() {
        let device = loopback();
        let file = file();
        let same = file.try_clone().unwrap();
        let open = |flags| Xrcd::open(&device, Some(file.as_fd()), flags);
        assert!(matches!(
            open(OpenFlags::default()),
            Err(XrcdError::Missing)
        ));
        let first = open(CREATE).unwrap();
        let second = Xrcd::open(&device, Some(same.as_fd()), OpenFlags::default()).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let exclusive = OpenFlags {
            exclusive: true,
            ..CREATE
        };
        assert!(matches!(open(exclusive), Err(XrcdError::Exists)));
        drop((first, second));
        let fresh = open(exclusive).unwrap();
        assert!(matches!(open(exclusive), Err(XrcdError::Exists)));
        drop(fresh);
    }

    #[test]
    fn domain_has_as_many_queues_as_there_are_numbers() {
        let domain = Xrcd::open(&loopback(), None, CREATE).unwrap();
        let events = Arc::new(EventQueue::of_rare_events().unwrap());
        let cq = CqInit {
            capacity: 1,
            ..CqInit::default()
        };
        let (cq, pd) = (Cq::new(cq, Arc::clone(&events)).unwrap(), Pd::new());
        let smallest = SrqAttr {
            max_wr: 1,
            ..SrqAttr::default()
        };
        let create = || Srq::create_in(&domain, &cq, &events, &pd, smallest);
        let numbers = engine::get().numbers().unwrap().count();
        let all: Vec<_> = (0..numbers).map(|_| create().unwrap()).collect();
        assert!(matches!(create(), Err(SrqError::NoNumber)));
        all[7].retire();
        create().unwrap();
    }

    #[test]
    fn domains_of_other_files_and_of_none_are_others() {
        let device = loopback();
        let (one, two) = (file(), file());
        let open = |file| Xrcd::open(&device, file, CREATE).unwrap();
        let domains = [
            open(Some(one.as_fd())),
            open(Some(two.as_fd())),
            open(None),
            open(None),
        ];
        for (i, a) in domains.iter().enumerate() {
            for b in &domains[i + 1..] {
                assert!(!Arc::ptr_eq(a, b));
            }
        }
    }
}
