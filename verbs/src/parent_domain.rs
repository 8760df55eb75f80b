//! Parent domains and thread domains.
//!
//! A parent domain is a protection domain with allocators for the objects created in it. A thread
//! domain declares that the program uses its objects from one thread at a time.
//!
//! The program's allocators provide the memory of queue pair and completion queue objects, which
//! hardware drivers, too, write for each work request. Thread domains have no effect: the locks
//! that they could save also guard against the progress thread.

use std::ffi::c_int;
use std::ptr;

use super::allocator::Allocators;
use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::pd::ProtectionDomain;

/// Implements `alloc_parent_domain` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `attr` must be null or point to readable attributes,
/// whose `pd` and `td` are null or live objects created by this library. Allocators in them must
/// follow ibv_alloc_parent_domain(3).
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    /// The supported attributes. The last allows memory that a confidential guest shares with its
    /// host, which this library never needs.
    const SUPPORTED: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;

    entry::pointer("ibv_alloc_parent_domain", || {
        // SAFETY: `context` is null or an opened device, and `attr` null or readable: the caller's
        // contract, section Safety.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(attr)?) };
        if attr.comp_mask & !SUPPORTED != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let given = |bit| attr.comp_mask & bit != 0;
        let allocators = match (attr.alloc, attr.free) {
            _ if !given(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) => None,
            (Some(alloc), Some(free)) => Some(Allocators {
                pd_context: match given(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) {
                    true => attr.pd_context,
                    false => ptr::null_mut(),
                },
                alloc,
                free,
                domain: ptr::null_mut(),
            }),
            _ => return Err(Errno(libc::EINVAL)),
        };
        // SAFETY: `attr.td` and `attr.pd` are null or live: the caller's contract, section Safety.
        let (parent, thread) = unsafe {
            let thread = match attr.td.is_null() {
                true => None,
                false => Some(object::state_of(attr.td)?.users.add()),
            };
            (object::state_of(attr.pd)?, thread)
        };
        let handle = ibv_pd {
            context,
            // SAFETY: `attr.pd` is non-null, since `object::state_of` accepted it, and live: the
            // caller's contract, section Safety. The member is read without a reference.
            handle: unsafe { (&raw const (*attr.pd).handle).read() },
        };
        let place = object::Place::on_heap();
        let allocators = allocators.map(|allocators| Allocators {
            domain: place.pointer(),
            ..allocators
        });
        let state = ProtectionDomain::parent(parent, thread, allocators, device.users.add());
        Ok(place.make(handle, state))
    })
}

impl Handle for ibv_td {
    type State = ThreadDomain;
}

/// The library's state behind an `ibv_td`.
#[derive(Debug)]
pub(super) struct ThreadDomain {
    /// The parent domains that contain it.
    users: Users,
    _context: Use,
}

/// Implements `alloc_td` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr` must be null or point to readable
/// attributes.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    entry::pointer("ibv_alloc_td", || {
        // SAFETY: `context` is null or an opened device, and `init_attr` null or readable: the
        // caller's contract, section Safety.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(init_attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let state = ThreadDomain {
            users: Users::default(),
            _context: device.users.add(),
        };
        Ok(object::make(ibv_td { context }, state))
    })
}

/// Implements `dealloc_td` of a context. `EBUSY` while a parent domain contains it.
///
/// # Safety
/// `td` must be null or a live thread domain created by this library. No other call may use it now
/// or later.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    entry::status("ibv_dealloc_td", || {
        // SAFETY: `td` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(td) }?.users.check_none()?;
        // SAFETY: `td` is live, and no other call uses it: the caller's contract, section Safety.
        // No parent domain uses it (checked above).
        drop(unsafe { object::free(td) });
        Ok(())
    })
}
