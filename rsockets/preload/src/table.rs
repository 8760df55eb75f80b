//! What the program's numbers stand for. Numbers that were duplicated stand for the same; when the last one is
//! closed it ends.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::descriptor;
use crate::rdma;

/// What is behind a number.
#[derive(Debug)]
pub struct Target {
    number: AtomicI32,
    kind: AtomicU8,
    settling: Mutex<()>,
}

/// What kinds of things are behind numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// librdmacm's socket.
    Rsocket,
    /// librdmacm's kind of epoll.
    Epoll,
    /// A socket of the kernel's.
    Kernel,
    /// A socket of the kernel's whose connections become rsockets when they are first used ([`crate::fork`]).
    Deferred(Deferred),
}

/// How far such a socket has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferred {
    /// Just made; it may listen.
    Fresh,
    /// It has connected, or is about to.
    Connected,
    /// It was accepted.
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
    /// The number that librdmacm, or the kernel, knows.
    pub fn target(&self) -> c_int {
        self.number.load(Ordering::Acquire)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        KINDS[usize::from(self.kind.load(Ordering::Acquire))]
    }

    /// Whether librdmacm's functions are for it.
    pub fn is_rsocket(&self) -> bool {
        self.kind() == Kind::Rsocket
    }

    /// Whether it is librdmacm's kind of epoll.
    pub fn is_epoll(&self) -> bool {
        self.kind() == Kind::Epoll
    }

    /// Takes note that it is something else now, behind the same number.
    pub fn becomes(&self, kind: Kind) {
        self.kind.store(kind.code(), Ordering::Release);
    }

    /// From now on it is this; the number of what it was.
    pub fn replace(&self, kind: Kind, number: c_int) -> c_int {
        self.becomes(kind);
        self.number.swap(number, Ordering::AcqRel)
    }

    /// Held by the thread that finds out what it becomes.
    pub fn settling(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let number = self.target();
        if matches!(self.kind(), Kind::Kernel | Kind::Deferred(_)) {
            // SAFETY: its own.
            unsafe { descriptor::close_really(number) };
            return;
        }
        rdma::close(number);
    }
}

type Table = HashMap<c_int, Arc<Target>>;

static TABLE: RwLock<Option<Table>> = RwLock::new(None);

/// Numbers that are, or were, in the table: for all others nobody looks there, and takes no lock.
const MARKS: usize = 1 << 16;
static MARKED: [AtomicBool; MARKS] = [const { AtomicBool::new(false) }; MARKS];

fn is_marked(number: c_int) -> bool {
    match usize::try_from(number) {
        Ok(number) => MARKED
            .get(number)
            .is_none_or(|mark| mark.load(Ordering::Acquire)),
        Err(_) => false,
    }
}

/// What a number stands for, unless it is the kernel's alone.
pub fn find(number: c_int) -> Option<Arc<Target>> {
    if !is_marked(number) {
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
    if let Some(mark) = usize::try_from(number).ok().and_then(|n| MARKED.get(n)) {
        mark.store(true, Ordering::Release);
    }
    drop(before);
}

/// A number stands for this.
pub fn insert_as(number: c_int, kind: Kind, target: c_int) {
    let target = Target {
        number: AtomicI32::new(target),
        kind: AtomicU8::new(kind.code()),
        settling: Mutex::new(()),
    };
    insert(number, Arc::new(target));
}

/// A number stands for what another one does.
pub fn share(number: c_int, target: Arc<Target>) {
    insert(number, target);
}

/// Takes a number out. What it stood for ends with what is returned, unless others stand for it.
pub fn remove(number: c_int) -> Option<Arc<Target>> {
    if !is_marked(number) {
        return None;
    }
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.as_mut()?.remove(&number)
}
