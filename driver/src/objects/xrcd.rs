//! Opening XRC domains, and finding their queue pairs.

use crate::device::Device;
use crate::path;
use crate::per_process::PerProcess;
use crate::queues::qp::Qp;
pub use crate::queues::srq::Xrcd;
use crate::queues::xrcd::FileId;
pub use crate::queues::xrcd::{OpenFlags, XrcdError};
use crate::sync::{Mutex, lock};
use rustix::fs::fstat;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::{io, ptr};
use urxe_proto::ids::Qpn;
use urxe_proto::qp::QpType;

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
            .find(|domain| domain.is_of(device, id));
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

    /// Returns the target queue pair with this number, if it belongs to this domain.
    pub fn find_target(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        let qp = path::get().qp(qpn)?;
        let ours = |domain: &Arc<Xrcd>| ptr::eq(&**domain, self);
        (qp.service() == QpType::XrcTgt && qp.domain().is_some_and(ours)).then_some(qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::devices_by_name;
    use crate::event_queue::EventQueue;
    use crate::pd::Pd;
    use crate::queues::cq::{Cq, CqInit};
    use crate::queues::srq::{Srq, SrqAttr, SrqError};
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    const CREATE: OpenFlags = OpenFlags {
        create: true,
        exclusive: false,
    };

    fn loopback() -> Arc<Device> {
        let devices = devices_by_name().unwrap();
        devices.into_iter().find(|d| d.is_loopback()).unwrap()
    }

    fn file() -> OwnedFd {
        memfd_create("domain", MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn an_open_xrc_domain_is_found_by_its_file() {
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
    fn shared_queues_are_limited_by_the_free_numbers() {
        let domain = Xrcd::open(&loopback(), None, CREATE).unwrap();
        let events = Arc::new(EventQueue::of_rare_events().unwrap());
        let cq = CqInit {
            capacity: 1,
            ..CqInit::default()
        };
        let (cq, pd) = (Cq::new(cq, &events).unwrap(), Pd::new());
        let smallest = SrqAttr {
            max_wr: 1,
            ..SrqAttr::default()
        };
        let create = || Srq::create_in(&domain, &cq, &events, &pd, smallest);
        let numbers = path::get().numbers().unwrap().count();
        let all: Vec<_> = (0..numbers).map(|_| create().unwrap()).collect();
        assert!(matches!(create(), Err(SrqError::NoNumber)));
        all[7].retire();
        create().unwrap();
    }

    #[test]
    fn xrc_domains_of_different_files_differ() {
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
