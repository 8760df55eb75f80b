//! What the program's numbers stand for. Numbers that were duplicated stand for the same; when the last one is
//! closed it ends.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::descriptor;
use crate::rdma::{self, inside};

/// What is behind a number.
#[derive(Debug)]
pub struct Target {
    number: AtomicI32,
    kind: AtomicU8,
}

const RSOCKET: u8 = 0;
const KERNEL: u8 = 1;
const EPOLL: u8 = 2;

impl Target {
    /// The number that librdmacm, or the kernel, knows.
    pub fn target(&self) -> c_int {
        self.number.load(Ordering::Acquire)
    }

    /// Whether librdmacm's functions are for it.
    pub fn is_rsocket(&self) -> bool {
        self.kind.load(Ordering::Acquire) == RSOCKET
    }

    /// Whether it is librdmacm's kind of epoll.
    pub fn is_epoll(&self) -> bool {
        self.kind.load(Ordering::Acquire) == EPOLL
    }

    /// From now on it is a socket of the kernel's; the number of what it was.
    pub fn replace(&self, kernel: c_int) -> c_int {
        self.kind.store(KERNEL, Ordering::Release);
        self.number.swap(kernel, Ordering::AcqRel)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let number = self.target();
        if self.kind.load(Ordering::Acquire) == KERNEL {
            // SAFETY: its own.
            unsafe { descriptor::close_really(number) };
            return;
        }
        // SAFETY: the function's type.
        let close = unsafe { rdma::RCLOSE.get::<unsafe extern "C" fn(c_int) -> c_int>() };
        if let Some(close) = close {
            // SAFETY: nobody else has the number any more.
            inside(|| unsafe { close(number) });
        }
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

/// A number stands for an rsocket.
pub fn insert_rsocket(number: c_int, rsocket: c_int) {
    insert_as(number, rsocket, RSOCKET);
}

/// A number stands for librdmacm's kind of epoll.
pub fn insert_epoll(number: c_int, epoll: c_int) {
    insert_as(number, epoll, EPOLL);
}

fn insert_as(number: c_int, target: c_int, kind: u8) {
    let target = Target {
        number: AtomicI32::new(target),
        kind: AtomicU8::new(kind),
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
