//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use urxe_driver::{Mr, Pd};
use urxe_proto::host::Access;

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
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
            _context: context,
        }
    }

    /// Whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parts[0].is_some()
    }
}

impl Handle for ibv_mr {
    type Ours = Region;
}

/// What stands behind an `ibv_mr`. The region goes first: nothing of the domain is needed after it.
#[derive(Debug)]
pub(super) struct Region {
    driver: Mr,
    _pd: Use,
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
        let ours = ProtectionDomain {
            driver: Pd::new(),
            users: Users::default(),
            allocators: None,
            parts: [None, None],
            _context: device.users.add(),
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

/// Registers memory that work requests and peers name by addresses from `iova` on.
///
/// # Safety
/// `pd` is null or a protection domain of ours; the memory stays mapped until it is deregistered.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_mr_iova2", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { object::ours(pd) }?;
        let access = Access::from_bits_retain(access & !IBV_ACCESS_OPTIONAL_RANGE);
        let start = addr.expose_provenance() as u64;
        // SAFETY: the caller's promise, which is that of every C program that registers memory.
        let driver = unsafe { Mr::register(&domain.driver, start, length as u64, iova, access) }?;
        let shown = ibv_mr {
            // SAFETY: live, as above; this makes no reference.
            context: unsafe { (&raw const (*pd).context).read() },
            pd,
            addr,
            length,
            handle: object::number(),
            lkey: driver.lkey().0,
            rkey: driver.rkey().0,
        };
        let ours = Region {
            driver,
            _pd: domain.users.add(),
        };
        Ok(object::make(shown, ours))
    })
}

/// # Safety
/// As for [`ibv_reg_mr_iova2`].
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// # Safety
/// As for [`ibv_reg_mr_iova2`].
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.addr() as u64;
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// Returns when nobody uses the memory any more. `EBUSY` while memory windows are bound to it.
///
/// # Safety
/// `mr` is null or a memory region of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    entry::status("ibv_dereg_mr", || {
        // SAFETY: the caller's promise.
        if unsafe { object::ours(mr) }?.driver.has_windows() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the caller's promise.
        drop(unsafe { object::free(mr) });
        Ok(())
    })
}
