//! XRC domains, and their target queue pairs, which other handles in the process may open.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use urxe_driver::Xrcd;
use urxe_driver::qp::Share;
use urxe_driver::xrcd::OpenFlags;
use urxe_proto::ids::Qpn;

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::qp::{Ownership, QueuePair};
use super::session::Listed;

impl Handle for ibv_xrcd {
    type State = XrcDomain;
}

/// The library's state behind an `ibv_xrcd`.
#[derive(Debug)]
pub(super) struct XrcDomain {
    pub driver: Arc<Xrcd>,
    /// The shared receive queues and queue pairs that were created by this handle of the domain.
    pub users: Users,
    _context: Use,
}

/// Implements `open_xrcd` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `xrcd_init_attr` must be null or point to readable
/// attributes.
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    xrcd_init_attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    entry::pointer("ibv_open_xrcd", || {
        // SAFETY: `context` is null or an opened device, and `xrcd_init_attr` null or readable: the
        // caller's contract, section Safety.
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
            // SAFETY: `fd` is not -1 and is borrowed only during this call, for which the program
            // keeps it open. If it is not an open file, `fstat` fails.
            fd if fd >= 0 => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
            _ => return Err(Errno(libc::EBADF)),
        };
        let state = XrcDomain {
            driver: device.driver.open_xrcd(file, flags)?,
            users: Users::default(),
            _context: device.users.add(),
        };
        Ok(object::make(ibv_xrcd { context }, state))
    })
}

/// Implements `close_xrcd` of a context. `EBUSY` while an object uses this handle.
///
/// # Safety
/// `xrcd` must be null or a live XRC domain created by this library. No other call may use it now
/// or later.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    entry::status("ibv_close_xrcd", || {
        // SAFETY: `xrcd` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(xrcd) }?.users.check_none()?;
        // SAFETY: `xrcd` is live, and no other call uses it: the caller's contract, section Safety.
        // No object uses it (checked above).
        drop(unsafe { object::free(xrcd) });
        Ok(())
    })
}

const OPEN_NEEDS: ibv_qp_open_attr_mask =
    IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;

/// Implements `open_qp` of a context: opens a target queue pair of the domain by its number.
///
/// # Safety
/// `context` must be null or an opened device. `qp_open_attr` must be null or point to readable
/// attributes. If the mask selects their `xrcd`, it must be null or a live XRC domain created by
/// this library.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    qp_open_attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    entry::pointer("ibv_open_qp", || {
        // SAFETY: `context` is null or an opened device, and `qp_open_attr` null or readable: the
        // caller's contract, section Safety.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(qp_open_attr)?) };
        if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.comp_mask & OPEN_NEEDS != OPEN_NEEDS || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `attr.xrcd` is null or live, since its mask bit is set (checked above): the
        // caller's contract, section Safety.
        let domain = unsafe { object::state_of(attr.xrcd) }?;
        let events = device.driver.events();
        let qpn = Qpn::new(attr.qp_num);
        let share = Share::open(&domain.driver, qpn, events).ok_or(Errno(libc::EINVAL))?;
        let mut handle = ibv_qp_ex::zeroed();
        handle.qp_base.context = context;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            handle.qp_base.qp_context = attr.qp_context;
        }
        handle.qp_base.handle = object::number();
        handle.qp_base.qp_num = attr.qp_num;
        handle.qp_base.state = share.qp().state() as ibv_qp_state;
        handle.qp_base.qp_type = attr.qp_type;
        let listed = Listed::Share(Arc::downgrade(&share));
        let state = QueuePair {
            driver: Arc::clone(share.qp()),
            ownership: Ownership::Opened(Arc::clone(&share)),
            staging: None,
            flows: Users::default(),
            _uses: vec![domain.users.add()],
            _listing: device.session.list(handle.qp_base.handle, listed),
        };
        let qp = object::make(handle, state);
        share.origin().set_tag(qp.expose_provenance());
        Ok(qp.cast())
    })
}
