//! The verbs that create, resize, modify, poll and destroy completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use urxe_driver::Cq;
use urxe_driver::cq::{CqInit, MAX_CQE};
use urxe_driver::moderation::Moderation;

use super::completion::to_ibv_wc;
use super::extended;
use super::state::{CompletionQueue, queue_of};
use crate::allocator::Kind;
use crate::channel::use_channel;
use crate::context::{COMP_VECTORS, context_of};
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::object::{self, Place, Users};

/// Creates a completion queue.
///
/// # Safety
/// `context` must be null or an opened device. `channel` must be null or a live completion channel
/// created by this library.
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
        let init_attr = ibv_cq_init_attr_ex {
            cqe,
            cq_context,
            channel,
            comp_vector: vector,
            ..ibv_cq_init_attr_ex::zeroed()
        };
        // SAFETY: `context` and `channel` are null or live: the caller's contract, section Safety.
        // The other pointers in `init_attr` are null.
        let queue = unsafe { create(context, &init_attr) }?;
        Ok(queue.cast())
    })
}

/// The `IBV_WC_EX_WITH_*` flags that are supported: all but those of raw packets and tag matching.
const SUPPORTED_WC_FLAGS: u64 = (IBV_WC_STANDARD_FLAGS | TIMESTAMPS) as u64;

/// The flags for which a queue must record the time of each completion.
const TIMESTAMPS: u32 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// The supported creation flags. `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` has no effect here.
const CREATE_FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

/// Implements `create_cq_ex` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr` must be null or point to readable
/// attributes, whose `channel` and, if its mask bit is set, `parent_domain` are null or live
/// objects created by this library.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init_attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    entry::pointer("ibv_create_cq_ex", || {
        // SAFETY: `init_attr` is null or points to readable attributes: the caller's contract,
        // section Safety.
        let mut init_attr = unsafe { entry::read(init_attr) }?;
        // A member whose mask bit is clear may have any value: in programs built with an older
        // header, the structure ends before it.
        if init_attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 {
            init_attr.flags = 0;
        }
        if init_attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
            init_attr.parent_domain = ptr::null_mut();
        }
        // SAFETY: `context`, `channel` and `parent_domain` are null or live: the caller's contract,
        // section Safety.
        unsafe { create(context, &init_attr) }
    })
}

/// Creates a completion queue.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr.channel` and `init_attr.parent_domain`
/// must be null or live objects created by this library.
unsafe fn create(
    context: *mut ibv_context,
    init_attr: &ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, Errno> {
    const MEMBERS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if init_attr.wc_flags & !SUPPORTED_WC_FLAGS != 0
        || init_attr.flags & !CREATE_FLAGS != 0
        || init_attr.comp_mask & !MEMBERS != 0
    {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
    let device = unsafe { context_of(context) }?;
    if init_attr.comp_vector >= COMP_VECTORS.cast_unsigned() {
        return Err(Errno(libc::EINVAL));
    }
    let domain = match init_attr.parent_domain.is_null() {
        true => None,
        // SAFETY: `parent_domain` is a live protection domain: the caller's contract, section
        // Safety.
        false => Some(unsafe { object::state_of(init_attr.parent_domain) }?),
    };
    if domain.is_some_and(|domain| !domain.is_parent()) {
        return Err(Errno(libc::EINVAL));
    }
    let allocators = domain.and_then(|domain| domain.allocators.as_ref());
    let place = Place::from(allocators, Kind::CompletionQueue)?;
    let channel = init_attr.channel;
    // SAFETY: `channel` is null or a live channel: the caller's contract, section Safety.
    let (notified, channel_use) = unsafe { use_channel(channel, context) }?.unzip();
    let driver = device.driver.create_cq_ex(CqInit {
        capacity: init_attr.cqe,
        channel: notified,
        stamps: init_attr.wc_flags & u64::from(TIMESTAMPS) != 0,
        ignores_overrun: init_attr.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
    })?;
    let mut handle = ibv_cq_ex::zeroed();
    handle.context = context;
    handle.channel = channel;
    handle.cq_context = init_attr.cq_context;
    handle.handle = object::number();
    handle.cqe = cqe_of(&driver);
    extended::fill(&mut handle);
    let state = CompletionQueue {
        driver: Arc::clone(&driver),
        users: Users::default(),
        current: UnsafeCell::new(None),
        _context: device.users.add(),
        _channel: channel_use,
        _domain: domain.map(|domain| domain.users.add()),
    };
    let queue = place.make(handle, state);
    driver.origin.set_tag(queue.expose_provenance());
    Ok(queue)
}

fn cqe_of(queue: &Cq) -> c_int {
    const { assert!(MAX_CQE <= c_int::MAX as u32) };
    queue.capacity().cast_signed()
}

/// Changes the capacity of a completion queue.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    entry::status("ibv_resize_cq", || {
        // SAFETY: `cq` is null or a live completion queue: the caller's contract, section Safety.
        let queue = unsafe { queue_of(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        queue.driver.resize(cqe)?;
        // SAFETY: `cq` is non-null, since `queue_of` accepted it, and live: the caller's contract,
        // section Safety. The write goes through a raw pointer and makes no reference.
        unsafe { (&raw mut (*cq).cqe).write(cqe_of(&queue.driver)) };
        Ok(())
    })
}

/// Implements `modify_cq` of a context: sets the moderation of its completion events.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library. `attr` must be null or
/// point to readable attributes.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    entry::status("ibv_modify_cq", || {
        // SAFETY: `cq` is null or live, and `attr` null or readable: the caller's contract, section
        // Safety.
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

/// Destroys a completion queue.
///
/// Returns `EBUSY` while a queue pair uses it. Waits until the program has acknowledged all
/// events of this queue that it has received.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library. No other call may use it
/// now or later.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    entry::status("ibv_destroy_cq", || {
        // SAFETY: `cq` is null or a live completion queue: the caller's contract, section Safety.
        let queue = unsafe { queue_of(cq) }?;
        queue.users.check_none()?;
        queue.driver.origin.set_tag(0);
        queue.driver.retire();
        // SAFETY: `cq` is live, and no other call uses it: the caller's contract, section Safety.
        // No queue pair uses it: `check_none` above. After `retire` no event refers to it.
        drop(unsafe { object::free(cq.cast::<ibv_cq_ex>()) });
        Ok(())
    })
}

/// Implements `poll_cq` of a context. Returns the number of completions, or a negative number.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library. `wc` must be null or point
/// to `num_entries` writable `ibv_wc` elements.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // The driver disables cancellation where it sends or receives.
    entry::short_number("ibv_poll_cq", || {
        // SAFETY: `cq` is null or a live completion queue: the caller's contract, section Safety.
        let queue = unsafe { queue_of(cq) }?;
        let max = usize::try_from(num_entries).map_err(|_| Errno(libc::EINVAL))?;
        if wc.is_null() && max > 0 {
            return Err(Errno(libc::EINVAL));
        }
        let polled = queue.driver.poll_each(max, |index, completion| {
            // SAFETY: `wc` is non-null where `max > 0` (checked above) and points to `max`
            // writable elements: the caller's contract, section Safety. `index < max`.
            unsafe { wc.add(index).write_unaligned(to_ibv_wc(&completion)) };
        });
        Ok(polled as c_int)
    })
}

/// Implements `req_notify_cq` of a context.
///
/// # Safety
/// `cq` must be null or a live completion queue created by this library.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // The driver disables cancellation where it sends or wakes the progress thread.
    entry::short_status("ibv_req_notify_cq", || {
        // SAFETY: `cq` is null or a live completion queue: the caller's contract, section Safety.
        unsafe { queue_of(cq) }?.driver.arm(solicited_only != 0);
        Ok(())
    })
}
