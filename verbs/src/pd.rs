//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_driver::Pd;

use super::allocator::Allocators;
use super::context::context_of;
use super::entry;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::session::{Listed, Listing};

impl Handle for ibv_pd {
    type State = ProtectionDomain;
}

/// The library's state behind an `ibv_pd`.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    pub driver: Arc<Pd>,
    /// The objects that use it: memory regions, queue pairs, address handles and others.
    pub users: Users,
    /// The program's allocators for objects created in it, if it is a parent domain that has them.
    pub allocators: Option<Allocators>,
    /// The parts of a parent domain: a protection domain, and optionally a thread domain.
    parts: [Option<Use>; 2],
    _listing: Option<Listing>,
    _context: Use,
}

impl ProtectionDomain {
    /// Makes a parent domain: it shares the driver's domain of `of`, and has its own allocators.
    pub fn parent(
        of: &Self,
        thread: Option<Use>,
        allocators: Option<Allocators>,
        context: Use,
    ) -> Self {
        Self {
            driver: Arc::clone(&of.driver),
            users: Users::default(),
            allocators,
            parts: [Some(of.users.add()), thread],
            _listing: None,
            _context: context,
        }
    }

    /// Makes another handle of a protection domain.
    pub fn imported(driver: Arc<Pd>, context: Use) -> Self {
        Self {
            driver,
            users: Users::default(),
            allocators: None,
            parts: [None, None],
            _listing: None,
            _context: context,
        }
    }

    /// Returns whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parts[0].is_some()
    }
}

/// Allocates a protection domain.
///
/// # Safety
/// `context` must be null or an opened device.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    entry::pointer("ibv_alloc_pd", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let device = unsafe { context_of(context) }?;
        let handle = ibv_pd {
            context,
            handle: object::number(),
        };
        let driver = device.driver.create_pd();
        let listed = Listed::Pd(Arc::downgrade(&driver));
        let state = ProtectionDomain {
            _listing: Some(device.session.list(handle.handle, listed)),
            ..ProtectionDomain::imported(driver, device.users.add())
        };
        Ok(object::make(handle, state))
    })
}

/// Deallocates a protection domain. `EBUSY` while an object uses it.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. No other call may use it
/// now or later.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    entry::status("ibv_dealloc_pd", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(pd) }?.users.check_none()?;
        // SAFETY: `pd` is live, and no other call uses it: the caller's contract, section Safety.
        // No object uses it (checked above).
        drop(unsafe { object::free(pd) });
        Ok(())
    })
}
