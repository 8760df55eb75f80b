//! The harness: the program's memory, its objects, and its outstanding work requests.

use libc::{c_int, c_void};
use std::collections::HashSet;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

/// The loopback device, whose packets do not leave this host.
const DEVICE: &CStr = c"urxe_lo";

/// The maximum of objects at a time.
const MAX_OBJECTS: usize = 64;

/// The errors that calls may return.
const EXPECTED_ERRORS: &[c_int] = &[
    libc::EINVAL,
    libc::ENOMEM,
    libc::EOPNOTSUPP,
    libc::EBUSY,
    libc::EPERM,
    libc::EAGAIN,
    libc::EBADF,
    libc::ENOENT,
    libc::EEXIST,
    libc::ENODATA,
    libc::EFAULT,
    libc::EPROTONOSUPPORT,
    libc::EAFNOSUPPORT,
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EADDRNOTAVAIL,
];

/// Checks the result of a call that returns an errno, and returns whether it succeeded.
pub(super) fn check_status(call: &str, status: c_int) -> bool {
    assert!(
        status == 0 || EXPECTED_ERRORS.contains(&status),
        "{call}: {}",
        std::io::Error::from_raw_os_error(status)
    );
    status == 0
}

/// Checks the result of a call that returns -1 and sets errno.
pub(super) fn check_errno(call: &str, status: c_int) -> bool {
    status >= 0 || {
        check_status(call, errno());
        false
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The kinds of verbs objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Pd,
    Td,
    Channel,
    Cq,
    Srq,
    Mr,
    Mw,
    Ah,
    Qp,
    Xrcd,
    Wq,
    Table,
    Flow,
    Counters,
    Dm,
}

const KINDS: [Kind; 15] = [
    Kind::Pd,
    Kind::Td,
    Kind::Channel,
    Kind::Cq,
    Kind::Srq,
    Kind::Mr,
    Kind::Mw,
    Kind::Ah,
    Kind::Qp,
    Kind::Xrcd,
    Kind::Wq,
    Kind::Table,
    Kind::Flow,
    Kind::Counters,
    Kind::Dm,
];

/// A C structure that represents a verbs object.
pub(super) trait VerbsObject {
    const KIND: Kind;
}

macro_rules! verbs_objects {
    ($($name:ident $kind:ident),* $(,)?) => {
        $(impl VerbsObject for $name { const KIND: Kind = Kind::$kind; })*
    };
}

verbs_objects!(
    ibv_pd Pd, ibv_td Td, ibv_comp_channel Channel, ibv_cq Cq, ibv_srq Srq, ibv_mr Mr, ibv_mw Mw,
    ibv_ah Ah, ibv_qp Qp, ibv_xrcd Xrcd, ibv_wq Wq, ibv_rwq_ind_table Table, ibv_flow Flow,
    ibv_counters Counters, ibv_dm Dm,
);

#[derive(Debug)]
struct Object {
    kind: Kind,
    at: *mut c_void,
    /// The objects that it uses.
    uses: Vec<*mut c_void>,
    /// The multicast groups that a queue pair is attached to.
    groups: HashSet<[u8; 16]>,
}

/// The program's memory. Only bytes that a writable region covers may change.
pub(super) struct Memory {
    /// Atomics, as the library writes to it while references exist.
    words: Box<[AtomicU64]>,
    writable: Vec<bool>,
}

/// The initial value of each byte.
const PATTERN: u8 = 0xa5;

impl Memory {
    /// The length of the part that can be registered, in bytes.
    const LEN: usize = 0x1_0000;
    /// The length of the part after it, from which only inline data is read.
    const UNREGISTERED: usize = 0x1000;

    fn new() -> Memory {
        let words = (Self::LEN + Self::UNREGISTERED) / size_of::<u64>();
        Memory {
            words: (0..words)
                .map(|_| AtomicU64::new(u64::from_ne_bytes([PATTERN; 8])))
                .collect(),
            writable: vec![false; Self::LEN + Self::UNREGISTERED],
        }
    }

    pub(super) fn pointer(&self, offset: u16) -> *mut c_void {
        let start = self.words.as_ptr().cast_mut().cast::<c_void>();
        start.wrapping_byte_add(offset.into())
    }

    pub(super) fn addr(&self, offset: u16) -> u64 {
        self.pointer(offset).expose_provenance() as u64
    }

    /// Limits a length to the registrable bytes after `offset`.
    pub(super) fn within(&self, offset: u16, length: u32) -> usize {
        (length as usize).min(Self::LEN - usize::from(offset))
    }

    /// Permits these bytes to change.
    pub(super) fn allow_writes(&mut self, offset: u16, length: usize) {
        let start = usize::from(offset);
        self.writable[start..start + length].fill(true);
    }

    /// Permits the bytes at `addr` to change, if they are part of this memory.
    pub(super) fn allow_writes_at(&mut self, addr: *const c_void, length: usize) {
        let offset = addr.addr().wrapping_sub(self.words.as_ptr().addr());
        if offset < Self::LEN {
            self.allow_writes(offset as u16, length);
        }
    }

    fn check(&self) {
        let bytes = self
            .words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        for (index, (byte, writable)) in bytes.zip(&self.writable).enumerate() {
            assert!(
                *writable || byte == PATTERN,
                "byte {index:#x} has changed, but no writable region covers it"
            );
        }
    }
}

/// The program with its objects.
pub(super) struct Harness {
    /// Two contexts of the device.
    contexts: [*mut ibv_context; 2],
    pub(super) memory: Memory,
    objects: Vec<Object>,
    /// The identifiers of work requests that were posted and have not completed.
    outstanding: HashSet<u64>,
    last_id: u64,
}

impl Harness {
    pub(super) fn new() -> Harness {
        Harness {
            contexts: [(); 2].map(|()| open()),
            memory: Memory::new(),
            objects: Vec::new(),
            outstanding: HashSet::new(),
            last_id: 0,
        }
    }

    pub(super) fn context(&self, second: bool) -> *mut ibv_context {
        self.contexts[usize::from(second)]
    }

    /// The function table of an opened device.
    pub(super) fn ops(&self) -> &verbs_context {
        // SAFETY: the context is open until `end`, and its function table does not change.
        unsafe { &*verbs_context_of(self.contexts[0]) }
    }

    /// Returns an object; 0 is the newest. Null for 255, and if there is none.
    pub(super) fn pick<T: VerbsObject>(&self, which: u8) -> *mut T {
        match self.find(T::KIND, which) {
            Some(index) => self.objects[index].at.cast(),
            None => ptr::null_mut(),
        }
    }

    fn find(&self, kind: Kind, which: u8) -> Option<usize> {
        let all: Vec<usize> = (0..self.objects.len())
            .rev()
            .filter(|index| self.objects[*index].kind == kind)
            .collect();
        match which {
            u8::MAX => None,
            _ => all.get(usize::from(which) % all.len().max(1)).copied(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.objects.len() >= MAX_OBJECTS
    }

    /// Records a created object and the objects it uses. Checks errno if the call failed.
    pub(super) fn add<T: VerbsObject>(
        &mut self,
        call: &str,
        made: *mut T,
        uses: &[*mut c_void],
    ) -> Option<*mut T> {
        if made.is_null() {
            assert!(
                !check_status(call, errno()),
                "{call}: null without an errno"
            );
            return None;
        }
        self.objects.push(Object {
            kind: T::KIND,
            at: made.cast(),
            uses: uses.iter().copied().filter(|at| !at.is_null()).collect(),
            groups: HashSet::new(),
        });
        Some(made)
    }

    /// Replaces the objects that an object uses.
    pub(super) fn replace_use<T: VerbsObject>(&mut self, of: *mut T, uses: *mut c_void) {
        if let Some(object) = self.objects.iter_mut().find(|o| o.at == of.cast()) {
            object.uses = vec![uses];
        }
    }

    /// The multicast groups of a queue pair.
    pub(super) fn groups_of(&mut self, qp: *mut ibv_qp) -> Option<&mut HashSet<[u8; 16]>> {
        let object = self.objects.iter_mut().find(|o| o.at == qp.cast())?;
        Some(&mut object.groups)
    }

    /// Returns a new identifier. The caller calls `posted` if the work request was posted.
    pub(super) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn posted(&mut self, id: u64) {
        self.outstanding.insert(id);
    }

    pub(super) fn completed(&mut self, id: u64) {
        assert!(
            self.outstanding.remove(&id),
            "work request {id} has completed, but was not outstanding"
        );
    }

    pub(super) fn destroy(&mut self, kind: u8, which: u8) {
        let kind = KINDS[usize::from(kind) % KINDS.len()];
        if let Some(index) = self.find(kind, which) {
            self.try_destroy(index);
        }
    }

    /// Returns whether the object was destroyed. It must be, unless another object uses it.
    fn try_destroy(&mut self, index: usize) -> bool {
        let object = &self.objects[index];
        let used = self.objects.iter().any(|o| o.uses.contains(&object.at));
        let busy = used || !object.groups.is_empty();
        // SAFETY: the object is live, and is removed from the list if the call destroys it.
        let status = unsafe { end(self.ops(), object.kind, object.at) };
        let destroyed = check_status("the destruction of an object", status);
        // Whether a window is bound to a region is only known once its work request has completed.
        let unknown = object.kind == Kind::Mr && self.find(Kind::Mw, 0).is_some();
        assert!(
            destroyed != busy || unknown,
            "status {status} of {object:?}, which is {}used",
            if busy { "" } else { "not " }
        );
        assert!(destroyed || status == libc::EBUSY);
        if destroyed {
            self.objects.swap_remove(index);
        }
        destroyed
    }

    /// Destroys all objects, and checks that only writable memory has changed.
    pub(super) fn end(mut self) {
        for object in &mut self.objects {
            for raw in object.groups.drain() {
                let gid = ibv_gid { raw };
                // SAFETY: the object is a live queue pair, and `gid` outlives the call.
                let status = unsafe { ibv_detach_mcast(object.at.cast(), &raw const gid, 0) };
                assert!(
                    check_status("ibv_detach_mcast", status),
                    "the group is attached"
                );
            }
        }
        // A bound window prevents the deregistration of its region.
        while let Some(index) = self.find(Kind::Mw, 0) {
            self.try_destroy(index);
        }
        while !self.objects.is_empty() {
            let before = self.objects.len();
            for index in (0..before).rev() {
                if index < self.objects.len() {
                    self.try_destroy(index);
                }
            }
            assert!(self.objects.len() < before, "left: {:?}", self.objects);
        }
        for context in self.contexts {
            // SAFETY: all objects of the context are destroyed.
            assert_eq!(unsafe { ibv_close_device(context) }, 0);
        }
        self.memory.check();
    }
}

/// Opens the device, with a non-blocking descriptor for events.
fn open() -> *mut ibv_context {
    // SAFETY: the list is not null and ends with a null pointer; each pointer in it is a device.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null());
        let mut at = list;
        while !(*at).is_null() && CStr::from_ptr(ibv_get_device_name(*at)) != DEVICE {
            at = at.add(1);
        }
        assert!(!(*at).is_null(), "this network has no loopback interface");
        let context = ibv_open_device(*at);
        assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
        ibv_free_device_list(list);
        set_non_blocking((*context).async_fd);
        context
    }
}

/// Makes calls that read this descriptor return instead of blocking.
pub(super) fn set_non_blocking(fd: c_int) {
    // SAFETY: F_SETFL takes an integer and accesses no memory of this process.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Destroys an object.
///
/// # Safety
/// `at` must point to a live object of this kind.
unsafe fn end(ops: &verbs_context, kind: Kind, at: *mut c_void) -> c_int {
    macro_rules! by {
        ($function:expr) => {
            $function.map_or(libc::EOPNOTSUPP, |function| function(at.cast()))
        };
    }
    // SAFETY: `at` points to a live object of this kind, as the section Safety requires.
    unsafe {
        match kind {
            Kind::Pd => ibv_dealloc_pd(at.cast()),
            Kind::Td => by!(ops.dealloc_td),
            Kind::Channel => ibv_destroy_comp_channel(at.cast()),
            Kind::Cq => ibv_destroy_cq(at.cast()),
            Kind::Srq => ibv_destroy_srq(at.cast()),
            Kind::Mr => ibv_dereg_mr(at.cast()),
            Kind::Mw => by!(ops.context.ops.dealloc_mw),
            Kind::Ah => ibv_destroy_ah(at.cast()),
            Kind::Qp => ibv_destroy_qp(at.cast()),
            Kind::Xrcd => by!(ops.close_xrcd),
            Kind::Wq => by!(ops.destroy_wq),
            Kind::Table => by!(ops.destroy_rwq_ind_table),
            Kind::Flow => by!(ops.ibv_destroy_flow),
            Kind::Counters => by!(ops.destroy_counters),
            Kind::Dm => by!(ops.free_dm),
        }
    }
}
