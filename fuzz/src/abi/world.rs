//! What the program has: its memory, its objects, and the work that it has posted.

use libc::{c_int, c_void};
use std::collections::HashSet;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

/// The device, which goes nowhere but to this host.
const DEVICE: &CStr = c"urxe_lo";

/// How much a story makes at most.
const MOST: usize = 64;

/// What calls may fail for.
const FITTING: &[c_int] = &[
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

/// Looks at the result of a call that returns an errno. Whether it did what was asked.
pub(super) fn done(call: &str, status: c_int) -> bool {
    assert!(
        status == 0 || FITTING.contains(&status),
        "{call}: {}",
        std::io::Error::from_raw_os_error(status)
    );
    status == 0
}

/// The same for one that returns -1 and sets errno.
pub(super) fn done_by_errno(call: &str, status: c_int) -> bool {
    status >= 0 || {
        done(call, errno());
        false
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Kinds of objects.
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

/// A C structure of an object.
pub(super) trait Shown {
    const KIND: Kind;
}

macro_rules! shown {
    ($($name:ident $kind:ident),* $(,)?) => {
        $(impl Shown for $name { const KIND: Kind = Kind::$kind; })*
    };
}

shown!(
    ibv_pd Pd, ibv_td Td, ibv_comp_channel Channel, ibv_cq Cq, ibv_srq Srq, ibv_mr Mr, ibv_mw Mw, ibv_ah Ah,
    ibv_qp Qp, ibv_xrcd Xrcd, ibv_wq Wq, ibv_rwq_ind_table Table, ibv_flow Flow, ibv_counters Counters, ibv_dm Dm,
);

#[derive(Debug)]
struct Object {
    kind: Kind,
    at: *mut c_void,
    /// What it is made of.
    uses: Vec<*mut c_void>,
    /// The multicast groups of a queue pair.
    groups: HashSet<[u8; 16]>,
}

/// The program's own memory: what changes in it must be in a region for writing.
pub(super) struct Memory {
    /// Atomics, for it changes while there are references to it.
    words: Box<[AtomicU64]>,
    writable: Vec<bool>,
}

/// What it holds at first.
const PATTERN: u8 = 0xa5;

impl Memory {
    /// How much can be registered.
    const LEN: usize = 0x1_0000;
    /// More that inline data may be read from.
    const BEHIND: usize = 0x1000;

    fn new() -> Memory {
        let words = (Self::LEN + Self::BEHIND) / size_of::<u64>();
        Memory {
            words: (0..words)
                .map(|_| AtomicU64::new(u64::from_ne_bytes([PATTERN; 8])))
                .collect(),
            writable: vec![false; Self::LEN + Self::BEHIND],
        }
    }

    pub(super) fn pointer(&self, offset: u16) -> *mut c_void {
        let start = self.words.as_ptr().cast_mut().cast::<c_void>();
        start.wrapping_byte_add(offset.into())
    }

    pub(super) fn addr(&self, offset: u16) -> u64 {
        self.pointer(offset).expose_provenance() as u64
    }

    /// As much of a length as is there after `offset`.
    pub(super) fn within(&self, offset: u16, length: u32) -> usize {
        (length as usize).min(Self::LEN - usize::from(offset))
    }

    /// From now on these bytes may change.
    pub(super) fn grant(&mut self, offset: u16, length: usize) {
        let start = usize::from(offset);
        self.writable[start..start + length].fill(true);
    }

    /// The same for what `addr` points at, if it is here.
    pub(super) fn grant_all(&mut self, addr: *const c_void, length: usize) {
        let offset = addr.addr().wrapping_sub(self.words.as_ptr().addr());
        if offset < Self::LEN {
            self.grant(offset as u16, length);
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
                "byte {index:#x} has changed, which nobody may write"
            );
        }
    }
}

/// A program and what it has.
pub(super) struct World {
    /// The device, opened twice.
    contexts: [*mut ibv_context; 2],
    pub(super) memory: Memory,
    objects: Vec<Object>,
    /// Work requests that have been posted, and have not completed.
    outstanding: HashSet<u64>,
    last_id: u64,
}

impl World {
    pub(super) fn new() -> World {
        World {
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

    /// The functions of an opened device.
    pub(super) fn ops(&self) -> &verbs_context {
        // SAFETY: it is open until the end; of its functions nobody changes any.
        unsafe { &*verbs_context_of(self.contexts[0]) }
    }

    /// An object, the newest one by 0; null for 255 and where there is none.
    pub(super) fn pick<T: Shown>(&self, which: u8) -> *mut T {
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
        self.objects.len() >= MOST
    }

    /// Takes note of what a call has made, of what; or looks at why it has not. Returns it unless it is null.
    pub(super) fn add<T: Shown>(
        &mut self,
        call: &str,
        made: *mut T,
        uses: &[*mut c_void],
    ) -> Option<*mut T> {
        if made.is_null() {
            assert!(!done(call, errno()), "{call}: null without an errno");
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

    /// An object is made of something else from now on.
    pub(super) fn uses_instead<T: Shown>(&mut self, of: *mut T, uses: *mut c_void) {
        if let Some(object) = self.objects.iter_mut().find(|o| o.at == of.cast()) {
            object.uses = vec![uses];
        }
    }

    /// A queue pair has joined a multicast group, or left it.
    pub(super) fn groups_of(&mut self, qp: *mut ibv_qp) -> Option<&mut HashSet<[u8; 16]>> {
        let object = self.objects.iter_mut().find(|o| o.at == qp.cast())?;
        Some(&mut object.groups)
    }

    /// Calls `posted` when the request was taken.
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
            "work request {id} was not outstanding, and has completed"
        );
    }

    pub(super) fn destroy(&mut self, kind: u8, which: u8) {
        let kind = KINDS[usize::from(kind) % KINDS.len()];
        if let Some(index) = self.find(kind, which) {
            self.try_destroy(index);
        }
    }

    /// Whether it is destroyed, which it must be unless something uses it.
    fn try_destroy(&mut self, index: usize) -> bool {
        let object = &self.objects[index];
        let used = self.objects.iter().any(|o| o.uses.contains(&object.at));
        let busy = used || !object.groups.is_empty();
        // SAFETY: it lives, and is forgotten when this has destroyed it.
        let status = unsafe { end(self.ops(), object.kind, object.at) };
        let destroyed = done("the end of an object", status);
        // Whether windows are bound to a region shows when their work requests are carried out.
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

    /// All that was made goes, and no memory has changed that nobody could write.
    pub(super) fn end(mut self) {
        for object in &mut self.objects {
            for raw in object.groups.drain() {
                let gid = ibv_gid { raw };
                // SAFETY: a queue pair, and a GID.
                let status = unsafe { ibv_detach_mcast(object.at.cast(), &raw const gid, 0) };
                assert!(done("ibv_detach_mcast", status), "it is attached");
            }
        }
        // Windows keep regions.
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
            // SAFETY: nothing that was made in it is left.
            assert_eq!(unsafe { ibv_close_device(context) }, 0);
        }
        self.memory.check();
    }
}

/// Opens the device, so that nothing waits for its events.
fn open() -> *mut ibv_context {
    // SAFETY: as a C program does it: the list ends in a null pointer.
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
        do_not_wait((*context).async_fd);
        context
    }
}

/// Calls that would wait at this descriptor return instead.
pub(super) fn do_not_wait(fd: c_int) {
    // SAFETY: an open descriptor, and flags.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Destroys an object.
///
/// # Safety
/// It lives, and is of that kind.
unsafe fn end(ops: &verbs_context, kind: Kind, at: *mut c_void) -> c_int {
    macro_rules! by {
        ($function:expr) => {
            $function.map_or(libc::EOPNOTSUPP, |function| function(at.cast()))
        };
    }
    // SAFETY: the caller's promise.
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
