//! Parent domains: protection domains that say where the objects made in them get their memory. And
//! thread domains, in which the program promises to use objects from one thread at a time.
//!
//! Of a queue pair or a completion queue the program's allocators give the object itself, which drivers of
//! hardware, too, write for each work request. Thread domains change nothing here: the locks that one
//! could spare guard against the progress thread as well.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::pd::ProtectionDomain;

type Alloc =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, resource_type: u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, resource_type: u64);

/// What memory is for, as the program's allocators are told. The upper half of the number is the
/// driver's, which has none here.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Kind {
    QueuePair = 0,
    CompletionQueue = 1,
}

/// The allocators of a parent domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocators {
    pd_context: *mut c_void,
    alloc: Alloc,
    free: Free,
    /// The domain; null until it is made.
    domain: *mut ibv_pd,
}

// SAFETY: the program gives them for use from whichever thread makes objects, with pointers that are
// its own.
unsafe impl Send for Allocators {}
// SAFETY: as above.
unsafe impl Sync for Allocators {}

impl Allocators {
    /// Room of this layout, and who takes it back; `None` where the program leaves it to us.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn allocate(&self, layout: Layout, kind: Kind) -> Result<Option<(*mut u8, Giver)>, Errno> {
        // SAFETY: the program's function, called as its documentation says.
        let memory = unsafe {
            (self.alloc)(
                self.domain,
                self.pd_context,
                layout.size(),
                layout.align(),
                kind as u64,
            )
        };
        if memory.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        if memory.addr() == IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(None);
        }
        let allocators = *self;
        Ok(Some((memory.cast(), Giver { allocators, kind })))
    }
}

/// Who gave an object its memory, and takes it back.
#[derive(Debug)]
pub(super) struct Giver {
    allocators: Allocators,
    kind: Kind,
}

impl Giver {
    /// Takes back what it gave.
    pub fn take_back(self, memory: *mut c_void) {
        let Allocators {
            pd_context,
            free,
            domain,
            ..
        } = self.allocators;
        // SAFETY: the program's function, called as its documentation says, with what its other
        // function gave.
        unsafe { free(domain, pd_context, memory, self.kind as u64) };
    }
}

/// `alloc_parent_domain` of a context.
///
/// # Safety
/// The pointers are null, or an opened device and attributes with domains of ours.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    /// The last lets a driver take memory that a confidential guest shares: ours never has to be.
    const TAKEN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;

    entry::pointer("ibv_alloc_parent_domain", || {
        // SAFETY: the caller's promise.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(attr)?) };
        if attr.comp_mask & !TAKEN != 0 {
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
        // SAFETY: the caller's promise.
        let (parent, thread) = unsafe {
            let thread = match attr.td.is_null() {
                true => None,
                false => Some(object::ours(attr.td)?.users.add()),
            };
            (object::ours(attr.pd)?, thread)
        };
        let shown = ibv_pd {
            context,
            // SAFETY: live, as above; this makes no reference.
            handle: unsafe { (&raw const (*attr.pd).handle).read() },
        };
        let place = object::Place::on_heap();
        let allocators = allocators.map(|allocators| Allocators {
            domain: place.pointer(),
            ..allocators
        });
        let ours = ProtectionDomain::parent(parent, thread, allocators, device.users.add());
        Ok(place.make(shown, ours))
    })
}

impl Handle for ibv_td {
    type Ours = ThreadDomain;
}

/// What stands behind an `ibv_td`.
#[derive(Debug)]
pub(super) struct ThreadDomain {
    /// The parent domains that it is in.
    users: Users,
    _context: Use,
}

/// `alloc_td` of a context.
///
/// # Safety
/// The pointers are null, or an opened device and attributes.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    entry::pointer("ibv_alloc_td", || {
        // SAFETY: the caller's promise.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(init_attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let ours = ThreadDomain {
            users: Users::default(),
            _context: device.users.add(),
        };
        Ok(object::make(ibv_td { context }, ours))
    })
}

/// `dealloc_td` of a context. `EBUSY` while it is in a parent domain.
///
/// # Safety
/// `td` is null or a thread domain of ours, and used for nothing else any more.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    entry::status("ibv_dealloc_td", || {
        // SAFETY: the caller's promise.
        unsafe { object::ours(td) }?.users.check_none()?;
        // SAFETY: as above, and nothing uses it.
        drop(unsafe { object::free(td) });
        Ok(())
    })
}
