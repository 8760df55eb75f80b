//! The table of the program's descriptors. Duplicates share a target, which is closed with the last
//! of them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::kernel;
use crate::rdma;

/// The object behind a descriptor of the program.
#[derive(Debug)]
pub struct Target {
    number: AtomicI32,
    kind: AtomicU8,
    resolving: Mutex<()>,
}

/// The kind of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An rsocket.
    Rsocket,
    /// An epoll instance of librdmacm.
    Epoll,
    /// A kernel socket.
    Kernel,
    /// A kernel socket whose connection becomes an rsocket on its first use ([`crate::fork`]).
    Deferred(Deferred),
}

/// The state of a deferred socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferred {
    /// Created, possibly listening.
    Fresh,
    /// Connected or connecting.
    Connected,
    /// Accepted.
    Accepted,
}

const KINDS: [Kind; 6] = [
    Kind::Rsocket,
    Kind::Epoll,
    Kind::Kernel,
    Kind::Deferred(Deferred::Fresh),
    Kind::Deferred(Deferred::Connected),
    Kind::Deferred(Deferred::Accepted),
];

impl Kind {
    fn code(self) -> u8 {
        let at = KINDS.iter().position(|kind| *kind == self);
        at.expect("all kinds are in the list") as u8
    }
}

impl Target {
    /// Returns the number that librdmacm or the kernel uses.
    pub fn target(&self) -> c_int {
        self.number.load(Ordering::Acquire)
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        KINDS[usize::from(self.kind.load(Ordering::Acquire))]
    }

    /// Returns whether it is an rsocket.
    pub fn is_rsocket(&self) -> bool {
        self.kind() == Kind::Rsocket
    }

    /// Returns whether it is an epoll instance of librdmacm.
    pub fn is_epoll(&self) -> bool {
        self.kind() == Kind::Epoll
    }

    /// Changes the kind and keeps the number.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind.code(), Ordering::Release);
    }

    /// Changes kind and number. Returns the former number.
    pub fn replace(&self, kind: Kind, number: c_int) -> c_int {
        self.set_kind(kind);
        self.number.swap(number, Ordering::AcqRel)
    }

    /// Locks the resolution of a deferred socket.
    pub fn resolving(&self) -> MutexGuard<'_, ()> {
        self.resolving
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let number = self.target();
        if matches!(self.kind(), Kind::Kernel | Kind::Deferred(_)) {
            // SAFETY: the target owns the number, and this is its last use.
            unsafe { kernel::close_descriptor(number) };
            return;
        }
        rdma::close(number);
    }
}

type Table = HashMap<c_int, Arc<Target>>;

static TABLE: RwLock<Option<Table>> = RwLock::new(None);

/// Descriptors that are or were in the table. Other descriptors need no lookup and no lock.
const TRACKED_MAX: usize = 1 << 16;
static TRACKED: [AtomicBool; TRACKED_MAX] = [const { AtomicBool::new(false) }; TRACKED_MAX];

fn is_tracked(number: c_int) -> bool {
    match usize::try_from(number) {
        Ok(number) => TRACKED
            .get(number)
            .is_none_or(|flag| flag.load(Ordering::Acquire)),
        Err(_) => false,
    }
}

/// Returns the target of a descriptor, unless it is the kernel's alone.
pub fn find(number: c_int) -> Option<Arc<Target>> {
    if !is_tracked(number) {
        return None;
    }
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.as_ref()?.get(&number).cloned()
}

fn insert(number: c_int, target: Arc<Target>) {
    let before = TABLE
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert(number, target);
    if let Some(flag) = usize::try_from(number).ok().and_then(|n| TRACKED.get(n)) {
        flag.store(true, Ordering::Release);
    }
    drop(before);
}

/// Adds a descriptor with a new target.
pub fn insert_as(number: c_int, kind: Kind, target: c_int) {
    let target = Target {
        number: AtomicI32::new(target),
        kind: AtomicU8::new(kind.code()),
        resolving: Mutex::new(()),
    };
    insert(number, Arc::new(target));
}

/// Adds a descriptor that shares a target.
pub fn share(number: c_int, target: Arc<Target>) {
    insert(number, target);
}

/// Removes a descriptor. Dropping the result closes the target, unless it is shared.
pub fn remove(number: c_int) -> Option<Arc<Target>> {
    if !is_tracked(number) {
        return None;
    }
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.as_mut()?.remove(&number)
}
