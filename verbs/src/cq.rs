//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_driver::Cq;
use urxe_driver::cq::{CqInit, MAX_CQE, Stamp};
use urxe_driver::moderation::Moderation;
use urxe_proto::work::{Completion, Extra, IpVersion};

use super::channel::use_channel;
use super::context::{COMP_VECTORS, context_of};
use super::cq_ex;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Place, Use, Users};
use super::parent_domain::Kind;

impl Handle for ibv_cq_ex {
    type Ours = CompletionQueue;
}

/// What stands behind an `ibv_cq`; every one is an `ibv_cq_ex`.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub driver: Arc<Cq>,
    /// The queue pairs that complete here, each once for its sends and once for its receives.
    pub users: Users,
    /// What the extended functions read. It belongs to who has the `mutex` of the `ibv_cq`.
    pub current: UnsafeCell<Option<(Completion, Stamp)>>,
    _context: Use,
    _channel: Option<Use>,
    _domain: Option<Use>,
}

// SAFETY: `current` is used under a mutex, see there.
unsafe impl Sync for CompletionQueue {}

/// What stands behind an `ibv_cq`.
///
/// # Errors
/// `EINVAL` if it is null.
///
/// # Safety
/// A pointer that is not null is a completion queue of ours, in use while the result is.
pub(super) unsafe fn queue_of<'a>(cq: *mut ibv_cq) -> Result<&'a CompletionQueue, Errno> {
    // SAFETY: each ibv_cq of ours begins an ibv_cq_ex; the rest is the caller's promise.
    unsafe { object::ours(cq.cast::<ibv_cq_ex>()) }
}

/// The `ibv_cq` of a completion queue, unless it is being destroyed.
pub(super) fn shown_queue(queue: &Cq) -> Option<*mut ibv_cq> {
    let shown = ptr::with_exposed_provenance_mut::<ibv_cq>(queue.tag());
    (!shown.is_null()).then_some(shown)
}

/// # Safety
/// The pointers are null, or an opened device and a channel of ours.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    entry::pointer("ibv_create_cq", || {
        let cqe = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        let vector = u32::try_from(comp_vector).map_err(|_| Errno(libc::EINVAL))?;
        let wanted = ibv_cq_init_attr_ex {
            cqe,
            cq_context,
            channel,
            comp_vector: vector,
            ..ibv_cq_init_attr_ex::zeroed()
        };
        // SAFETY: the caller's promise.
        let queue = unsafe { create(context, &wanted) }?;
        Ok(queue.cast())
    })
}

/// What an extended queue can report: everything but what only a raw packet or a tag has.
const REPORTED: u64 = (IBV_WC_STANDARD_FLAGS | STAMPS) as u64;

/// The members for which a queue must note the time.
const STAMPS: u32 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Whether its user promises to use a queue from one thread makes no difference here.
const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

/// `create_cq_ex` of a context.
///
/// # Safety
/// The pointers are null, or an opened device and attributes with a channel of ours or none.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init_attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    entry::pointer("ibv_create_cq_ex", || {
        // SAFETY: the caller's promise.
        let mut wanted = unsafe { entry::read(init_attr) }?;
        // Without its bit a member may hold anything: older programs have none.
        if wanted.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 {
            wanted.flags = 0;
        }
        if wanted.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
            wanted.parent_domain = ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { create(context, &wanted) }
    })
}

/// # Safety
/// The pointers are null, or an opened device and, in the attributes, a channel of ours.
unsafe fn create(
    context: *mut ibv_context,
    wanted: &ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, Errno> {
    const MEMBERS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if wanted.wc_flags & !REPORTED != 0
        || wanted.flags & !FLAGS != 0
        || wanted.comp_mask & !MEMBERS != 0
    {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // SAFETY: the caller's promise.
    let device = unsafe { context_of(context) }?;
    if wanted.comp_vector >= COMP_VECTORS.cast_unsigned() {
        return Err(Errno(libc::EINVAL));
    }
    let domain = match wanted.parent_domain.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { object::ours(wanted.parent_domain) }?),
    };
    if domain.is_some_and(|domain| !domain.is_parent()) {
        return Err(Errno(libc::EINVAL));
    }
    let allocators = domain.and_then(|domain| domain.allocators.as_ref());
    let place = Place::from(allocators, Kind::CompletionQueue)?;
    let channel = wanted.channel;
    // SAFETY: the caller's promise.
    let (notified, channel_use) = unsafe { use_channel(channel, context) }?.unzip();
    let driver = device.driver.create_cq_ex(CqInit {
        capacity: wanted.cqe,
        channel: notified,
        stamps: wanted.wc_flags & u64::from(STAMPS) != 0,
        ignores_overrun: wanted.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
    })?;
    let mut shown = ibv_cq_ex::zeroed();
    shown.context = context;
    shown.channel = channel;
    shown.cq_context = wanted.cq_context;
    shown.handle = object::number();
    shown.cqe = shown_capacity(&driver);
    cq_ex::fill(&mut shown);
    let ours = CompletionQueue {
        driver: Arc::clone(&driver),
        users: Users::default(),
        current: UnsafeCell::new(None),
        _context: device.users.add(),
        _channel: channel_use,
        _domain: domain.map(|domain| domain.users.add()),
    };
    let queue = place.make(shown, ours);
    driver
        .tag
        .store(queue.expose_provenance(), Ordering::Release);
    Ok(queue)
}

fn shown_capacity(queue: &Cq) -> c_int {
    const { assert!(MAX_CQE <= c_int::MAX as u32) };
    queue.capacity().cast_signed()
}

/// # Safety
/// `cq` is null or a completion queue of ours.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    entry::status("ibv_resize_cq", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue_of(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        queue.driver.resize(cqe)?;
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*cq).cqe).write(shown_capacity(&queue.driver)) };
        Ok(())
    })
}

/// `modify_cq` of a context: how long its events may be delayed.
///
/// # Safety
/// The pointers are null, or a completion queue of ours and attributes.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    entry::status("ibv_modify_cq", || {
        // SAFETY: the caller's promise.
        let (queue, attr) = unsafe { (queue_of(cq)?, entry::read(attr)?) };
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
            queue.driver.moderate(Moderation {
                count: attr.moderate.cq_count,
                period: attr.moderate.cq_period,
            });
        }
        Ok(())
    })
}

/// `EBUSY` while a queue pair completes there. Waits until the program has acknowledged the events
/// that it has of it.
///
/// # Safety
/// `cq` is null or a completion queue of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    entry::status("ibv_destroy_cq", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue_of(cq) }?;
        queue.users.check_none()?;
        queue.driver.tag.store(0, Ordering::Release);
        queue.driver.retire();
        // SAFETY: as above; no queue pair and no event points at it.
        drop(unsafe { object::free(cq.cast::<ibv_cq_ex>()) });
        Ok(())
    })
}

/// How many completions are taken at once.
const BATCH: usize = 16;

/// `poll_cq` of a context. Returns how many completions there were, or a negative number.
///
/// # Safety
/// The pointers are null, or a completion queue of ours and room for `num_entries`.
pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    entry::number("ibv_poll_cq", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue_of(cq) }?;
        let wanted = usize::try_from(num_entries).map_err(|_| Errno(libc::EINVAL))?;
        if wc.is_null() && wanted > 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut batch = [const { None }; BATCH];
        let mut polled = 0;
        while polled < wanted {
            let room = BATCH.min(wanted - polled);
            let taken = queue.driver.poll(&mut batch[..room]);
            for completion in batch[..taken].iter().flatten() {
                // SAFETY: fewer than num_entries were written, and there is room for so many.
                unsafe { wc.add(polled).write(shown_completion(completion)) };
                polled += 1;
            }
            if taken < room {
                break;
            }
        }
        Ok(polled as c_int)
    })
}

/// `req_notify_cq` of a context.
///
/// # Safety
/// `cq` is null or a completion queue of ours.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    entry::status("ibv_req_notify_cq", || {
        // SAFETY: the caller's promise.
        unsafe { queue_of(cq) }?.driver.arm(solicited_only != 0);
        Ok(())
    })
}

fn shown_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as ibv_wc_status,
        opcode: completion.opcode as ibv_wc_opcode,
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm: shown_immediate(completion),
        qp_num: completion.qpn.get(),
        src_qp: completion.src_qp.get(),
        wc_flags: shown_flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: shown_service_level(completion),
        dlid_path_bits: 0,
    }
}

/// Immediate data is in network order there, an invalidated key in the host's.
pub(super) fn shown_immediate(completion: &Completion) -> ibv_wc_imm {
    match completion.extra {
        Extra::None => ibv_wc_imm { imm_data: 0 },
        Extra::Imm(data) => ibv_wc_imm {
            imm_data: data.to_be(),
        },
        Extra::Invalidated(key) => ibv_wc_imm {
            invalidated_rkey: key.0,
        },
    }
}

pub(super) fn shown_flags(completion: &Completion) -> ibv_wc_flags {
    let extra = match completion.extra {
        Extra::None => 0,
        Extra::Imm(_) => IBV_WC_WITH_IMM,
        Extra::Invalidated(_) => IBV_WC_WITH_INV,
    };
    extra
        | if completion.grh.is_some() {
            IBV_WC_GRH
        } else {
            0
        }
}

/// RoCE has no service level. In the receive completion of a datagram, NICs report the type of the
/// network header there: bit 3 for UDP, and below it 1 for IPv6 or 2 for IPv4. UCX before 1.19 reads
/// it, to find out which of the two the first 40 bytes of the receive are.
pub(super) fn shown_service_level(completion: &Completion) -> u8 {
    match completion.grh {
        None => 0,
        Some(IpVersion::V6) => UDP | 0x1,
        Some(IpVersion::V4) => UDP | 0x2,
    }
}

/// The bit of a service level that says that a datagram came in a UDP packet.
const UDP: u8 = 1 << 3;
