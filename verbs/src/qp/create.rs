//! Creation of queue pairs.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use urxe_driver::qp::{QpInit, ReceivesFrom};
use urxe_driver::raw::Spread;
use urxe_driver::{Pd, Qp};
use urxe_proto::qp::QpType;

use super::attributes::{cap_from, to_ibv_qp_cap};
use super::extended;
use super::staging::Staging;
use super::state::{Ownership, QueuePair};
use crate::allocator::Kind;
use crate::context::context_of;
use crate::cq::queue_in;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Place, Use, Users};
use crate::session::{Listed, Session};
use crate::srq::{SharedQueue, shared_of};
use crate::wq;

/// The attributes that both functions for creating a queue pair take.
struct QpInitAttr {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    /// The work queues that receive in its place, and its use of their indirection table.
    spread: Option<(Spread, Use)>,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type,
    signal_all: bool,
    send_ops: Option<u64>,
    /// Whether datagrams of this queue pair to multicast groups that it is attached to are not
    /// looped back to it.
    block_own_multicast: bool,
    xrcd: *mut ibv_xrcd,
}

/// Creates a queue pair.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `qp_init_attr` must be
/// null or point to readable and writable attributes, whose queues are null or live objects created
/// by this library.
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    entry::pointer("ibv_create_qp", || {
        // SAFETY: `qp_init_attr` is null or points to readable attributes: the caller's contract,
        // section Safety.
        let attr = unsafe { entry::read(qp_init_attr) }?;
        let init_attr = QpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            spread: None,
            cap: attr.cap,
            qp_type: attr.qp_type,
            signal_all: attr.sq_sig_all != 0,
            send_ops: None,
            block_own_multicast: false,
            xrcd: ptr::null_mut(),
        };
        // SAFETY: `pd` and the queues in `init_attr` are null or live: the caller's contract,
        // section Safety.
        let (qp, cap) = unsafe { create(pd, init_attr) }?;
        // SAFETY: `qp_init_attr` is non-null, since `entry::read` accepted it, and writable: the
        // caller's contract, section Safety. The write makes no reference and needs no alignment.
        unsafe { (&raw mut (*qp_init_attr).cap).write_unaligned(cap) };
        Ok(qp)
    })
}

/// The supported members of the extended attributes.
const SUPPORTED: ibv_qp_init_attr_mask = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    | SPREAD;

/// The members that spread the frames of a raw packet queue pair. They must be given together.
const SPREAD: ibv_qp_init_attr_mask = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;

/// Implements `create_qp_ex` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `qp_init_attr_ex` must be null or point to readable
/// and writable attributes. The objects that its mask selects must be null or live objects created
/// by this library.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    entry::pointer("ibv_create_qp_ex", || {
        // SAFETY: `context` is null or an opened device, and the attributes null or readable: the
        // caller's contract, section Safety.
        let attr = unsafe {
            context_of(context)?;
            entry::read(qp_init_attr_ex)?
        };
        let given = |bit| attr.comp_mask & bit != 0;
        let flags = match given(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
            true => attr.create_flags,
            false => 0,
        };
        if attr.comp_mask & !SUPPORTED != 0 || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // The target of an XRC connection has no protection domain of its own.
        if attr.qp_type != IBV_QPT_XRC_RECV && !given(IBV_QP_INIT_ATTR_PD) {
            return Err(Errno(libc::EINVAL));
        }
        let spread = match attr.comp_mask & SPREAD {
            0 => None,
            SPREAD if attr.qp_type == IBV_QPT_RAW_PACKET => {
                // SAFETY: `rwq_ind_tbl` is null or a live indirection table, since its mask bit is
                // set: the caller's contract, section Safety.
                Some(unsafe { wq::spread(attr.rwq_ind_tbl, &attr.rx_hash_conf) }?)
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        let init_attr = QpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            spread,
            cap: attr.cap,
            qp_type: attr.qp_type,
            signal_all: attr.sq_sig_all != 0,
            send_ops: given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags),
            block_own_multicast: flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            xrcd: match given(IBV_QP_INIT_ATTR_XRCD) {
                true => attr.xrcd,
                false => ptr::null_mut(),
            },
        };
        let (qp, cap) = match attr.qp_type {
            // SAFETY: `context` and the objects in `init_attr` are null or live: the caller's
            // contract, section Safety.
            IBV_QPT_XRC_RECV => unsafe { create_target(context, init_attr) },
            // SAFETY: `attr.pd` and the objects in `init_attr` are null or live: the caller's
            // contract, section Safety.
            _ => unsafe { create(attr.pd, init_attr) },
        }?;
        // SAFETY: `qp_init_attr_ex` is non-null, since `entry::read` accepted it, and writable: the
        // caller's contract, section Safety. The write makes no reference and needs no alignment.
        unsafe { (&raw mut (*qp_init_attr_ex).cap).write_unaligned(cap) };
        Ok(qp)
    })
}

/// Creates a queue pair, and returns it with its capacities.
///
/// # Safety
/// `pd` and the queues in `init_attr` must be null or live objects created by this library.
unsafe fn create(
    pd: *mut ibv_pd,
    mut init_attr: QpInitAttr,
) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    let service = service_of(&init_attr)?;
    // SAFETY: `pd` is null or live: the caller's contract, section Safety. `context` is read only
    // after `object::state_of` has rejected a null `pd`, and without a reference.
    let (domain, context) = unsafe { (object::state_of(pd)?, (&raw const (*pd).context).read()) };
    let mut uses = vec![domain.users.add()];
    let mut objects = QpObjects {
        pd,
        ..QpObjects::none(context)
    };
    let queue = |queue: *mut ibv_cq, uses: &mut Vec<Use>| {
        // SAFETY: `queue` is one of the queues in `init_attr`, so null or live: the caller's
        // contract, section Safety.
        let queue = unsafe { queue_in(queue, context) }?;
        uses.push(queue.users.add());
        Ok::<_, Errno>(Arc::clone(&queue.driver))
    };
    let send_cq = match init_attr.spread {
        // A queue pair that spreads frames to work queues only receives.
        Some(_) => None,
        None => {
            objects.send_cq = init_attr.send_cq;
            Some(queue(init_attr.send_cq, &mut uses)?)
        }
    };
    let receives = match (service, init_attr.spread.take()) {
        (QpType::XrcIni, _) => ReceivesFrom::Nowhere,
        (_, Some((spread, table))) => {
            uses.push(table);
            ReceivesFrom::Spread(spread)
        }
        (_, None) => {
            (objects.recv_cq, objects.srq) = (init_attr.recv_cq, init_attr.srq);
            let cq = queue(init_attr.recv_cq, &mut uses)?;
            // SAFETY: `init_attr.srq` is null or live: the caller's contract, section Safety.
            match unsafe { shared_in(init_attr.srq, context) }? {
                None => ReceivesFrom::Own(cq),
                Some(srq) => {
                    uses.push(srq.users.add());
                    ReceivesFrom::Shared(Arc::clone(&srq.driver), cq)
                }
            }
        }
    };
    // SAFETY: `context` is the domain's own context, which outlives the domain.
    let device = unsafe { context_of(context) }?;
    let place = Place::from(domain.allocators.as_ref(), Kind::QueuePair)?;
    let init = QpInit {
        service,
        send_cq,
        receives,
        cap: cap_from(&init_attr.cap),
        signal_all: init_attr.signal_all,
        block_own_multicast: init_attr.block_own_multicast,
    };
    let staging = init_attr.send_ops.map(|ops| Staging::new(service, ops));
    let staging = staging.transpose()?;
    let driver = device.driver.create_qp(&domain.driver, init)?;
    let session = &device.session;
    Ok(create_handle(
        place, session, &init_attr, &objects, driver, staging, uses,
    ))
}

/// Creates the target of an XRC connection.
///
/// A target sends nothing, and receives into the shared receive queues of its XRC domain.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr.xrcd` must be null or a live XRC domain
/// created by this library.
unsafe fn create_target(
    context: *mut ibv_context,
    init_attr: QpInitAttr,
) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
    // SAFETY: `context` and `init_attr.xrcd` are null or live: the caller's contract, section
    // Safety.
    let (device, domain) = unsafe { (context_of(context)?, object::state_of(init_attr.xrcd)?) };
    let init = QpInit {
        service: QpType::XrcTgt,
        send_cq: None,
        receives: ReceivesFrom::Domain(Arc::clone(&domain.driver)),
        cap: cap_from(&init_attr.cap),
        signal_all: false,
        block_own_multicast: init_attr.block_own_multicast,
    };
    // The protection domains of the shared receive queues decide what memory a target reaches, so
    // its own is empty.
    let driver = device.driver.create_qp(&Pd::new(), init)?;
    let uses = vec![domain.users.add()];
    let objects = QpObjects::none(context);
    Ok(create_handle(
        Place::on_heap(),
        &device.session,
        &init_attr,
        &objects,
        driver,
        None,
        uses,
    ))
}

/// The objects whose pointers an `ibv_qp` has as members.
struct QpObjects {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
}

impl QpObjects {
    fn none(context: *mut ibv_context) -> Self {
        Self {
            context,
            pd: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
        }
    }
}

/// Creates the `ibv_qp` of a queue pair of the driver, and returns it with its capacities.
fn create_handle(
    place: Place<ibv_qp_ex>,
    session: &Arc<Session>,
    init_attr: &QpInitAttr,
    objects: &QpObjects,
    driver: Arc<Qp>,
    staging: Option<Staging>,
    uses: Vec<Use>,
) -> (*mut ibv_qp, ibv_qp_cap) {
    let mut handle = ibv_qp_ex::zeroed();
    handle.qp_base.context = objects.context;
    handle.qp_base.qp_context = init_attr.qp_context;
    handle.qp_base.pd = objects.pd;
    handle.qp_base.send_cq = objects.send_cq;
    handle.qp_base.recv_cq = objects.recv_cq;
    handle.qp_base.srq = objects.srq;
    handle.qp_base.handle = object::number();
    handle.qp_base.qp_num = driver.qpn().get();
    handle.qp_base.state = driver.state() as ibv_qp_state;
    handle.qp_base.qp_type = init_attr.qp_type;
    extended::fill(&mut handle);
    let listed = Listed::Qp(Arc::downgrade(&driver));
    let state = QueuePair {
        driver: Arc::clone(&driver),
        staging,
        flows: Users::default(),
        ownership: Ownership::Created,
        _uses: uses,
        _listing: session.list(handle.qp_base.handle, listed),
    };
    let qp = place.make(handle, state);
    driver.origin().set_tag(qp.expose_provenance());
    (qp.cast(), to_ibv_qp_cap(&driver.cap()))
}

fn service_of(init_attr: &QpInitAttr) -> Result<QpType, Errno> {
    let name = match init_attr.qp_type {
        IBV_QPT_RC => return Ok(QpType::Rc),
        IBV_QPT_UC => return Ok(QpType::Uc),
        IBV_QPT_UD => return Ok(QpType::Ud),
        IBV_QPT_RAW_PACKET => return Ok(QpType::RawPacket),
        IBV_QPT_XRC_SEND => return Ok(QpType::XrcIni),
        IBV_QPT_DRIVER => "vendor-specific",
        _ => return Err(Errno(libc::EINVAL)),
    };
    tracing::warn!("queue pair: {name} queue pairs are not supported, see docs/SUPPORT.md");
    Err(Errno(libc::EOPNOTSUPP))
}

/// Returns the shared receive queue, if it belongs to `context`; `None` if `srq` is null.
///
/// # Errors
/// `EINVAL` if it belongs to another context.
///
/// # Safety
/// `srq` must be null or a shared receive queue created by this library that stays live for `'a`.
unsafe fn shared_in<'a>(
    srq: *mut ibv_srq,
    context: *mut ibv_context,
) -> Result<Option<&'a SharedQueue>, Errno> {
    if srq.is_null() {
        return Ok(None);
    }
    // SAFETY: `srq` is non-null (checked above) and live: the caller's contract, section Safety.
    // `context` is read without a reference.
    let (queue, its) = unsafe { (shared_of(srq)?, (&raw const (*srq).context).read()) };
    if ptr::eq(its, context) {
        Ok(Some(queue))
    } else {
        Err(Errno(libc::EINVAL))
    }
}
