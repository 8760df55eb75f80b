//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use urxe_driver::Srq;
use urxe_driver::srq::{SrqAttr, SrqChange};

use super::context::context_of;
use super::cq::queue_in;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::session::{Listed, Listing};

impl Handle for ibv_srq {
    type State = SharedQueue;
}

/// The library's state behind an `ibv_srq`.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub driver: Arc<Srq>,
    /// The queue pairs that receive from it.
    pub users: Users,
    _uses: Vec<Use>,
    _listing: Listing,
}

/// Returns the library's state behind an `ibv_srq`.
///
/// # Errors
/// `EINVAL` if `srq` is null.
///
/// # Safety
/// If `srq` is not null, it must be a shared receive queue created by this library that stays live
/// for `'a`.
pub(super) unsafe fn shared_of<'a>(srq: *mut ibv_srq) -> Result<&'a SharedQueue, Errno> {
    // SAFETY: `srq` is null or live for `'a`: the caller's contract, section Safety.
    unsafe { object::state_of(srq) }
}

/// Returns the `ibv_srq` of a shared receive queue, or `None` if it is being destroyed.
pub(super) fn srq_handle(tag: usize) -> Option<*mut ibv_srq> {
    let handle = ptr::with_exposed_provenance_mut::<ibv_srq>(tag);
    (!handle.is_null()).then_some(handle)
}

fn attributes_from(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        limit: attr.srq_limit,
    }
}

fn to_ibv_srq_attr(attr: &SrqAttr) -> ibv_srq_attr {
    ibv_srq_attr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        srq_limit: attr.limit,
    }
}

/// Creates a shared receive queue, and stores its actual sizes in `srq_init_attr`.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `srq_init_attr` must be
/// null or point to readable and writable attributes.
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    entry::pointer("ibv_create_srq", || {
        // SAFETY: `pd` is null or live, and `srq_init_attr` is null or readable and writable: the
        // caller's contract, section Safety. `entry::read` rejects null before the write.
        unsafe {
            let init_attr = entry::read(srq_init_attr)?;
            let (srq, attr) = create(pd, &init_attr, None)?;
            // The write makes no reference and needs no alignment.
            (&raw mut (*srq_init_attr).attr).write_unaligned(attr);
            Ok(srq)
        }
    })
}

/// The further objects of a shared receive queue of XRC connections.
struct Membership {
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

/// Implements `create_srq_ex` of a context. For basic queues the inline function calls
/// [`ibv_create_srq`] instead.
///
/// # Safety
/// `context` must be null or an opened device. `srq_init_attr_ex` must be null or point to readable
/// and writable attributes. The objects that its mask selects must be null or live objects created
/// by this library.
pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    entry::pointer("ibv_create_srq_ex", || {
        // SAFETY: `context` is null or an opened device, and the attributes null or readable: the
        // caller's contract, section Safety.
        let init_attr = unsafe {
            context_of(context)?;
            entry::read(srq_init_attr_ex)?
        };
        let given = |bits| init_attr.comp_mask & bits == bits;
        if init_attr.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if !given(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Errno(libc::EINVAL));
        }
        let kind = match given(IBV_SRQ_INIT_ATTR_TYPE) {
            true => init_attr.srq_type,
            false => IBV_SRQT_BASIC,
        };
        let membership = match kind {
            IBV_SRQT_BASIC => None,
            IBV_SRQT_XRC if given(IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) => {
                Some(Membership {
                    xrcd: init_attr.xrcd,
                    cq: init_attr.cq,
                })
            }
            IBV_SRQT_XRC => return Err(Errno(libc::EINVAL)),
            IBV_SRQT_TM => {
                tracing::warn!("shared receive queue: there is no tag matching");
                return Err(Errno(libc::EOPNOTSUPP));
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        let basic = ibv_srq_init_attr {
            srq_context: init_attr.srq_context,
            attr: init_attr.attr,
        };
        // SAFETY: the selected objects are null or live, and `srq_init_attr_ex`, which
        // `entry::read` accepted, is writable: the caller's contract, section Safety. The write
        // makes no reference.
        unsafe {
            let (srq, attr) = create(init_attr.pd, &basic, membership)?;
            (&raw mut (*srq_init_attr_ex).attr).write_unaligned(attr);
            Ok(srq)
        }
    })
}

/// Creates a shared receive queue, and returns it with its actual sizes.
///
/// # Safety
/// `pd` and the objects in `membership` must be null or live objects created by this library.
unsafe fn create(
    pd: *mut ibv_pd,
    init_attr: &ibv_srq_init_attr,
    membership: Option<Membership>,
) -> Result<(*mut ibv_srq, ibv_srq_attr), Errno> {
    // SAFETY: `pd` is null or live: the caller's contract, section Safety. `context` is read only
    // after `object::state_of` has rejected a null `pd`, and without a reference.
    let (domain, context) = unsafe { (object::state_of(pd)?, (&raw const (*pd).context).read()) };
    // SAFETY: `context` is the domain's own context, which outlives the domain.
    let device = unsafe { context_of(context) }?;
    let attr = attributes_from(&init_attr.attr);
    let mut uses = vec![domain.users.add()];
    let driver = match membership {
        None => device.driver.create_srq(&domain.driver, attr)?,
        Some(Membership { xrcd, cq }) => {
            // SAFETY: `xrcd` and `cq` are null or live: the caller's contract, section Safety.
            let (xrcd, cq) = unsafe { (object::state_of(xrcd)?, queue_in(cq, context)?) };
            uses.extend([xrcd.users.add(), cq.users.add()]);
            let (xrcd, cq) = (&xrcd.driver, &cq.driver);
            device
                .driver
                .create_srq_in(xrcd, cq, &domain.driver, attr)?
        }
    };
    let mut handle = ibv_srq::zeroed();
    handle.context = context;
    handle.srq_context = init_attr.srq_context;
    handle.pd = pd;
    handle.handle = object::number();
    let attr = to_ibv_srq_attr(&driver.attributes());
    let listed = Listed::Srq(Arc::downgrade(&driver));
    let state = SharedQueue {
        driver: Arc::clone(&driver),
        users: Users::default(),
        _uses: uses,
        _listing: device.session.list(handle.handle, listed),
    };
    let srq = object::make(handle, state);
    driver.origin.set_tag(srq.expose_provenance());
    Ok((srq, attr))
}

/// Implements `get_srq_num` of a context: returns the number by which messages of XRC connections
/// address the queue.
///
/// `EOPNOTSUPP` for other queues, which have no number.
///
/// # Safety
/// `srq` must be null or a live shared receive queue created by this library. `srq_num` must be
/// null or point to a writable `u32`.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    entry::status("ibv_get_srq_num", || {
        // SAFETY: `srq` is null or live: the caller's contract, section Safety.
        let number = unsafe { shared_of(srq) }?.driver.number();
        let number = number.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: `srq_num` is null or writable: the caller's contract, section Safety.
        unsafe { entry::write(srq_num, number.get()) }
    })
}

/// Changes the size or the limit of a shared receive queue.
///
/// # Safety
/// `srq` must be null or a live shared receive queue created by this library. `srq_attr` must be
/// null or point to readable attributes.
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    entry::status("ibv_modify_srq", || {
        // SAFETY: `srq` is null or live, and `srq_attr` null or readable: the caller's contract,
        // section Safety.
        let (queue, attr) = unsafe { (shared_of(srq)?, entry::read(srq_attr)?) };
        let mask = srq_attr_mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        queue.driver.modify(SrqChange {
            max_wr: (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr),
            limit: (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit),
        })?;
        Ok(())
    })
}

/// Reads the attributes of a shared receive queue.
///
/// # Safety
/// `srq` must be null or a live shared receive queue created by this library. `srq_attr` must be
/// null or point to writable attributes.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int {
    entry::status("ibv_query_srq", || {
        // SAFETY: `srq` is null or live, and `srq_attr` null or writable: the caller's contract,
        // section Safety.
        unsafe {
            let queue = shared_of(srq)?;
            entry::write(srq_attr, to_ibv_srq_attr(&queue.driver.attributes()))
        }
    })
}

/// Destroys a shared receive queue.
///
/// Returns `EBUSY` while a queue pair receives from it. Waits until the program has acknowledged
/// all events of it that it has received.
///
/// # Safety
/// `srq` must be null or a live shared receive queue created by this library. No other call may use
/// it now or later.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    entry::status("ibv_destroy_srq", || {
        // SAFETY: `srq` is null or live: the caller's contract, section Safety.
        let queue = unsafe { shared_of(srq) }?;
        queue.users.check_none()?;
        queue.driver.origin.set_tag(0);
        queue.driver.retire();
        // SAFETY: `srq` is live, and no other call uses it: the caller's contract, section Safety.
        // No queue pair uses it (checked above), and after `retire` no event refers to it.
        drop(unsafe { object::free(srq) });
        Ok(())
    })
}
