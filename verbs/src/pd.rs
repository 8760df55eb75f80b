//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_driver::Pd;

use super::context::context_of;
use super::entry;
use super::ffi::*;
use super::import::{Exported, Listing};
use super::object::{self, Handle, Use, Users};
use super::parent_domain::Allocators;

impl Handle for ibv_pd {
    type Ours = ProtectionDomain;
}

/// What stands behind an `ibv_pd`.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    pub driver: Arc<Pd>,
    /// Its memory regions, queue pairs and address handles.
    pub users: Users,
    /// Where objects made in it get their memory, for a parent domain that says so.
    pub allocators: Option<Allocators>,
    /// What a parent domain is made of: a protection domain, and perhaps a thread domain.
    parts: [Option<Use>; 2],
    _listing: Option<Listing>,
    _context: Use,
}

impl ProtectionDomain {
    /// One that can stand for `of` everywhere, with allocators of its own.
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

    /// Another name for a protection domain.
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

    /// Whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parts[0].is_some()
    }
}

/// # Safety
/// `context` is null or an opened device.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    entry::pointer("ibv_alloc_pd", || {
        // SAFETY: the caller's promise.
        let device = unsafe { context_of(context) }?;
        let shown = ibv_pd {
            context,
            handle: object::number(),
        };
        let driver = Pd::new();
        let exported = Exported::Pd(Arc::downgrade(&driver));
        let ours = ProtectionDomain {
            _listing: Some(device.session.export(shown.handle, exported)),
            ..ProtectionDomain::imported(driver, device.users.add())
        };
        Ok(object::make(shown, ours))
    })
}

/// `EBUSY` while something of the domain is left.
///
/// # Safety
/// `pd` is null or a protection domain of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    entry::status("ibv_dealloc_pd", || {
        // SAFETY: the caller's promise.
        unsafe { object::ours(pd) }?.users.check_none()?;
        // SAFETY: as above, and nothing uses it.
        drop(unsafe { object::free(pd) });
        Ok(())
    })
}
