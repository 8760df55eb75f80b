//! Domains of extended reliable connections, and their target queue pairs, which others may open.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_driver::Xrcd;
use urxe_driver::qp::Share;
use urxe_driver::xrcd::OpenFlags;
use urxe_proto::ids::Qpn;

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::qp::{Has, QueuePair};

impl Handle for ibv_xrcd {
    type Ours = XrcDomain;
}

/// What stands behind an `ibv_xrcd`.
#[derive(Debug)]
pub(super) struct XrcDomain {
    pub driver: Arc<Xrcd>,
    /// The shared receive queues and queue pairs that were made by this handle of it.
    pub users: Users,
    _context: Use,
}

/// `open_xrcd` of a context.
///
/// # Safety
/// The pointers are null, or an opened device and attributes.
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    xrcd_init_attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    entry::pointer("ibv_open_xrcd", || {
        // SAFETY: the caller's promise.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(xrcd_init_attr)?) };
        if attr.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
            return Err(Errno(libc::EINVAL));
        }
        if attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let flags = OpenFlags {
            create: attr.oflags & libc::O_CREAT != 0,
            exclusive: attr.oflags & libc::O_EXCL != 0,
        };
        let file = match attr.fd {
            -1 => None,
            // SAFETY: the program's descriptor, which it keeps open during the call. Should it be
            // none, looking at it says so.
            fd if fd >= 0 => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
            _ => return Err(Errno(libc::EBADF)),
        };
        let ours = XrcDomain {
            driver: device.driver.open_xrcd(file, flags)?,
            users: Users::default(),
            _context: device.users.add(),
        };
        Ok(object::make(ibv_xrcd { context }, ours))
    })
}

/// `close_xrcd` of a context. `EBUSY` while something is left that was made by it.
///
/// # Safety
/// `xrcd` is null or a domain of ours, and used for nothing else any more.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    entry::status("ibv_close_xrcd", || {
        // SAFETY: the caller's promise.
        unsafe { object::ours(xrcd) }?.users.check_none()?;
        // SAFETY: as above, and nothing uses it.
        drop(unsafe { object::free(xrcd) });
        Ok(())
    })
}

const OPEN_NEEDS: ibv_qp_open_attr_mask =
    IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;

/// `open_qp` of a context: a target queue pair of the domain, by its number.
///
/// # Safety
/// The pointers are null, or an opened device and attributes with a domain of ours.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    qp_open_attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    entry::pointer("ibv_open_qp", || {
        // SAFETY: the caller's promise.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(qp_open_attr)?) };
        if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.comp_mask & OPEN_NEEDS != OPEN_NEEDS || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        let domain = unsafe { object::ours(attr.xrcd) }?;
        let events = device.driver.events();
        let qpn = Qpn::new(attr.qp_num);
        let share = Share::open(&domain.driver, qpn, events).ok_or(Errno(libc::EINVAL))?;
        let mut shown = ibv_qp_ex::zeroed();
        shown.qp_base.context = context;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            shown.qp_base.qp_context = attr.qp_context;
        }
        shown.qp_base.handle = object::number();
        shown.qp_base.qp_num = attr.qp_num;
        shown.qp_base.state = share.qp().state() as ibv_qp_state;
        shown.qp_base.qp_type = attr.qp_type;
        let ours = QueuePair {
            driver: Arc::clone(share.qp()),
            has: Has::Share(Arc::clone(&share)),
            staging: None,
            flows: Users::default(),
            _uses: vec![domain.users.add()],
        };
        let qp = object::make(shown, ours);
        share.tag.store(qp.expose_provenance(), Ordering::Release);
        Ok(qp.cast())
    })
}
