//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_driver::Srq;
use urxe_driver::srq::{SrqAttr, SrqChange};

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::qp::queue_in;

impl Handle for ibv_srq {
    type Ours = SharedQueue;
}

/// What stands behind an `ibv_srq`.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub driver: Arc<Srq>,
    /// The queue pairs that receive from it.
    pub users: Users,
    _uses: Vec<Use>,
}

/// What stands behind an `ibv_srq`.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is a shared receive queue of ours, in use while the result is.
pub(super) unsafe fn shared_of<'a>(srq: *mut ibv_srq) -> Result<&'a SharedQueue, Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::ours(srq) }
}

/// The `ibv_srq` of a shared receive queue, unless it is being destroyed.
pub(super) fn shown_shared(queue: &Srq) -> Option<*mut ibv_srq> {
    let shown = ptr::with_exposed_provenance_mut::<ibv_srq>(queue.tag());
    (!shown.is_null()).then_some(shown)
}

fn attributes_from(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        limit: attr.srq_limit,
    }
}

fn shown_attributes(ours: &SrqAttr) -> ibv_srq_attr {
    ibv_srq_attr {
        max_wr: ours.max_wr,
        max_sge: ours.max_sge,
        srq_limit: ours.limit,
    }
}

/// Says which sizes the queue has.
///
/// # Safety
/// The pointers are null, or a protection domain of ours and attributes.
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    entry::pointer("ibv_create_srq", || {
        // SAFETY: the caller's promise.
        unsafe {
            let wanted = entry::read(srq_init_attr)?;
            let (srq, attr) = create(pd, &wanted, None)?;
            // This makes no reference.
            (&raw mut (*srq_init_attr).attr).write(attr);
            Ok(srq)
        }
    })
}

/// What a shared receive queue of extended reliable connections needs beside.
struct Membership {
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

/// `create_srq_ex` of a context. The inline function calls [`ibv_create_srq`] for queues that need
/// no more.
///
/// # Safety
/// The pointers are null, or an opened device and attributes with objects of ours.
pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    entry::pointer("ibv_create_srq_ex", || {
        // SAFETY: the caller's promise.
        let wanted = unsafe {
            context_of(context)?;
            entry::read(srq_init_attr_ex)?
        };
        let given = |bits| wanted.comp_mask & bits == bits;
        if wanted.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if !given(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Errno(libc::EINVAL));
        }
        let kind = match given(IBV_SRQ_INIT_ATTR_TYPE) {
            true => wanted.srq_type,
            false => IBV_SRQT_BASIC,
        };
        let membership = match kind {
            IBV_SRQT_BASIC => None,
            IBV_SRQT_XRC if given(IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) => {
                Some(Membership {
                    xrcd: wanted.xrcd,
                    cq: wanted.cq,
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
            srq_context: wanted.srq_context,
            attr: wanted.attr,
        };
        // SAFETY: as above; the last makes no reference.
        unsafe {
            let (srq, attr) = create(wanted.pd, &basic, membership)?;
            (&raw mut (*srq_init_attr_ex).attr).write(attr);
            Ok(srq)
        }
    })
}

/// Makes a queue, and says which sizes it has.
///
/// # Safety
/// The pointers are null or objects of ours.
unsafe fn create(
    pd: *mut ibv_pd,
    wanted: &ibv_srq_init_attr,
    membership: Option<Membership>,
) -> Result<(*mut ibv_srq, ibv_srq_attr), Errno> {
    // SAFETY: the caller's promise; the second makes no reference.
    let (domain, context) = unsafe { (object::ours(pd)?, (&raw const (*pd).context).read()) };
    // SAFETY: the domain's own context, which outlives it.
    let device = &unsafe { context_of(context) }?.driver;
    let attr = attributes_from(&wanted.attr);
    let mut uses = vec![domain.users.add()];
    let driver = match membership {
        None => device.create_srq(&domain.driver, attr)?,
        Some(Membership { xrcd, cq }) => {
            // SAFETY: the caller's promise.
            let (xrcd, cq) = unsafe { (object::ours(xrcd)?, queue_in(cq, context)?) };
            uses.extend([xrcd.users.add(), cq.users.add()]);
            device.create_srq_in(&xrcd.driver, &cq.driver, &domain.driver, attr)?
        }
    };
    let mut shown = ibv_srq::zeroed();
    shown.context = context;
    shown.srq_context = wanted.srq_context;
    shown.pd = pd;
    shown.handle = object::number();
    let attr = shown_attributes(&driver.attributes());
    let ours = SharedQueue {
        driver: Arc::clone(&driver),
        users: Users::default(),
        _uses: uses,
    };
    let srq = object::make(shown, ours);
    driver.tag.store(srq.expose_provenance(), Ordering::Release);
    Ok((srq, attr))
}

/// `get_srq_num` of a context: the number by which messages of extended reliable connections name
/// it, which other queues have not.
///
/// # Safety
/// The pointers are null, or a shared receive queue of ours and room for the number.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    entry::status("ibv_get_srq_num", || {
        // SAFETY: the caller's promise.
        let number = unsafe { shared_of(srq) }?.driver.number();
        let number = number.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: as above.
        unsafe { entry::write(srq_num, number.get()) }
    })
}

/// # Safety
/// The pointers are null, or a shared receive queue of ours and attributes.
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    entry::status("ibv_modify_srq", || {
        // SAFETY: the caller's promise.
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

/// # Safety
/// The pointers are null, or a shared receive queue of ours and room for attributes.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int {
    entry::status("ibv_query_srq", || {
        // SAFETY: the caller's promise.
        unsafe {
            let queue = shared_of(srq)?;
            entry::write(srq_attr, shown_attributes(&queue.driver.attributes()))
        }
    })
}

/// `EBUSY` while a queue pair receives from it. Waits until the program has acknowledged the events
/// that it has of it.
///
/// # Safety
/// `srq` is null or a shared receive queue of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    entry::status("ibv_destroy_srq", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { shared_of(srq) }?;
        queue.users.check_none()?;
        queue.driver.tag.store(0, Ordering::Release);
        queue.driver.retire();
        // SAFETY: as above; no queue pair and no event points at it.
        drop(unsafe { object::free(srq) });
        Ok(())
    })
}
