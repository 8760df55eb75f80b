//! A host that checks a state machine: which memory it may access, and which completions it must
//! make. Memory is a plain vector.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives, RemoteKey,
    WindowBind,
};
use urxe_proto::ids::{RKey, Srqn};
use urxe_proto::queue::RecvQueue;
use urxe_proto::work::{Completion, Sge, WcStatus};

/// The key of memory for local use only.
pub const LOCAL: u32 = 1;
/// The key of memory that the peer may access with every operation.
pub const REMOTE: u32 = 2;
/// The key of memory that permits only local reads.
pub const READ_ONLY: u32 = 3;
/// An invalid key.
pub const NO_KEY: u32 = 99;
/// The length of each region, in bytes.
pub const REGION: usize = 16 * 1024;
/// The shared receive queue of the XRC domain.
pub const SRQ: Srqn = Srqn::new(7);

/// The address of the region with this key.
pub fn base(key: u32) -> u64 {
    u64::from(key) << 32
}

/// A send work request that was posted and has not completed.
#[derive(Debug)]
pub struct Outstanding {
    /// Its identifier.
    pub wr_id: u64,
    /// Whether it makes a completion on success.
    pub signaled: bool,
    /// The memory for its response.
    pub response_sges: Vec<Sge>,
}

/// A host with one queue pair, and the observations that the rules refer to.
#[derive(Debug)]
pub struct Host {
    regions: Vec<(u32, Access, RefCell<Vec<u8>>)>,
    /// The remote access rights of the queue pair.
    pub granted: Cell<Access>,
    /// The memory that requests of the peer addressed so far: key, address, length.
    pub requested: Vec<(u32, u64, u64)>,
    /// The posted receives.
    pub receives: RecvQueue,
    /// Whether the receives belong to a shared receive queue.
    pub shared: bool,
    /// The identifiers of receives that were posted and have not completed.
    pub receives_due: VecDeque<u64>,
    /// The receives that were taken and have not completed.
    taken: Vec<(u64, Vec<Sge>)>,
    /// The sends that were posted and have not completed.
    pub sends_due: VecDeque<Outstanding>,
    /// The events so far.
    pub events: Vec<QpEvent>,
    /// The bytes that the current packet has changed.
    pub written: Cell<usize>,
}

impl Host {
    /// Returns a host with three regions and a receive queue of 16 entries.
    pub fn new(shared: bool) -> Self {
        let remote = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let region = |key, access| (key, access, RefCell::new(vec![key as u8; REGION]));
        Host {
            regions: vec![
                region(LOCAL, Access::LOCAL_WRITE),
                region(REMOTE, Access::LOCAL_WRITE | remote),
                region(READ_ONLY, Access::empty()),
            ],
            granted: Cell::default(),
            requested: Vec::new(),
            receives: RecvQueue::new(16, 4).expect("memory"),
            shared,
            receives_due: VecDeque::new(),
            taken: Vec::new(),
            sends_due: VecDeque::new(),
            events: Vec::new(),
            written: Cell::default(),
        }
    }

    /// Discards what is outstanding, as a transition to RESET does.
    pub fn reset(&mut self) {
        self.sends_due.clear();
        self.taken.clear();
        self.requested.clear();
        if !self.shared {
            self.receives_due.clear();
        }
    }

    /// Asserts that nothing is outstanding.
    ///
    /// # Panics
    /// If a work request has not completed.
    pub fn assert_flushed(&self) {
        // Unsignaled sends may have succeeded without a completion.
        let due = self.sends_due.iter().find(|due| due.signaled);
        assert!(due.is_none(), "{due:?}");
        if !self.shared {
            assert!(self.receives_due.is_empty(), "{:?}", self.receives_due);
        }
        assert!(self.taken.is_empty(), "{:?}", self.taken);
    }

    fn with<T>(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
        f: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, MemoryError> {
        let (_, granted, bytes) = self
            .regions
            .iter()
            .find(|(k, ..)| *k == key)
            .ok_or(MemoryError::Key)?;
        if !granted.contains(access) {
            return Err(MemoryError::Permission);
        }
        let start = addr.wrapping_sub(base(key));
        if start > REGION as u64 || len > REGION as u64 - start {
            return Err(MemoryError::Range);
        }
        let start = start as usize;
        Ok(f(&mut bytes.borrow_mut()[start..start + len as usize]))
    }

    /// Accesses memory for the peer. The queue pair must grant the access, and a request must have
    /// addressed the memory.
    fn remote<T>(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
        f: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, MemoryError> {
        assert!(
            self.granted.get().contains(access),
            "{access:?} over a queue pair that grants {:?}",
            self.granted.get()
        );
        let within = |&(k, start, length): &(u32, u64, u64)| {
            k == key.rkey.0
                && addr.wrapping_sub(start) <= length
                && len <= length - addr.wrapping_sub(start)
        };
        assert!(
            len == 0 || self.requested.iter().any(within),
            "no request addressed {addr:#x}+{len} of {key:?}"
        );
        self.with(key.rkey.0, addr, len, access, f)
    }

    fn each_element(
        &self,
        sges: &[Sge],
        mut skip: u64,
        len: usize,
        access: Access,
        mut f: impl FnMut(&mut [u8], usize),
    ) -> Result<(), MemoryError> {
        let mut done = 0;
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = (length - skip).min((len - done) as u64);
            if take > 0 {
                self.with(sge.lkey.0, sge.addr.wrapping_add(skip), take, access, |m| {
                    f(m, done);
                })?;
            }
            done += take as usize;
            skip = 0;
        }
        // The elements for the result of an atomic may be too short, or missing.
        match done < len {
            true => Err(MemoryError::Range),
            false => Ok(()),
        }
    }

    fn put(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let access = Access::LOCAL_WRITE;
        self.each_element(sges, offset, data.len(), access, |memory, at| {
            memory.copy_from_slice(&data[at..at + memory.len()]);
        })
    }
}

impl Memory for Host {
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError> {
        for sge in sges {
            self.with(sge.lkey.0, sge.addr, sge.length.into(), access, |_| ())?;
        }
        Ok(())
    }

    fn gather(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let len = out.len();
        self.each_element(sges, offset, len, Access::empty(), |memory, at| {
            out[at..at + memory.len()].copy_from_slice(memory);
        })
    }

    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        assert!(
            // A request without data has no elements; a response to it stores nothing.
            sges.is_empty() || self.sends_due.iter().any(|due| due.response_sges == sges),
            "data for elements of no outstanding work request: {sges:?}"
        );
        self.put(sges, offset, data)
    }

    fn check_remote(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError> {
        // The check alone accesses no memory.
        self.with(key.rkey.0, addr, len, access, |_| ())
    }

    fn remote_read(&self, key: RemoteKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let len = out.len() as u64;
        self.remote(key, addr, len, Access::REMOTE_READ, |memory| {
            out.copy_from_slice(memory);
        })
    }

    fn remote_write(&self, key: RemoteKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.written.set(self.written.get() + data.len());
        let len = data.len() as u64;
        self.remote(key, addr, len, Access::REMOTE_WRITE, |memory| {
            memory.copy_from_slice(data);
        })
    }

    fn remote_atomic(&self, key: RemoteKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        assert!(addr.is_multiple_of(8), "an atomic at {addr:#x}");
        self.written.set(self.written.get() + 8);
        self.remote(key, addr, 8, op.access(), |memory| {
            let original = u64::from_ne_bytes((&*memory).try_into().expect("8 bytes"));
            let value = match op {
                AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
                AtomicOp::CompareSwap { .. } => original,
                AtomicOp::FetchAdd(add) => original.wrapping_add(add),
                AtomicOp::Store(value) => value,
            };
            memory.copy_from_slice(&value.to_ne_bytes());
            original
        })
    }

    fn flush(
        &self,
        key: RemoteKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemoryError> {
        let (addr, len) = range.unwrap_or((base(key.rkey.0), 0));
        self.with(key.rkey.0, addr, len, access, |_| ())
    }

    fn invalidate(&self, key: RemoteKey) -> Result<(), MemoryError> {
        self.with(key.rkey.0, base(key.rkey.0), 0, Access::REMOTE_READ, |_| ())
    }

    fn bind_window(&self, bind: &WindowBind) -> Result<(), MemoryError> {
        self.invalidate_local(bind.window)
    }

    fn invalidate_local(&self, rkey: RKey) -> Result<(), MemoryError> {
        match rkey.0 {
            NO_KEY => Err(MemoryError::Key),
            _ => Ok(()),
        }
    }
}

impl Receives for Host {
    fn take_receive(&mut self, into: &mut Receive) -> bool {
        if into.srq.is_some_and(|srq| srq != SRQ) {
            return false;
        }
        if !self.receives.take(into) {
            return false;
        }
        self.taken.push((into.wr_id, into.sges.clone()));
        true
    }

    fn has_srq(&self, srq: Srqn) -> bool {
        srq == SRQ
    }

    fn receive_credits(&self) -> Option<u32> {
        (!self.shared).then(|| self.receives.len())
    }

    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let is_taken =
            |(wr_id, sges): &(u64, Vec<Sge>)| *wr_id == receive.wr_id && *sges == receive.sges;
        assert!(
            self.taken.iter().any(is_taken),
            "data for a receive that is not taken: {receive:?}"
        );
        self.put(&receive.sges, offset, data)
    }
}

impl Completions for Host {
    fn send_completed(&mut self, completion: Completion) {
        loop {
            let due = self.sends_due.pop_front();
            let due = due.unwrap_or_else(|| panic!("no work request for {completion:?}"));
            if due.wr_id == completion.wr_id {
                break;
            }
            assert!(
                !due.signaled,
                "{due:?} has no completion before {completion:?}"
            );
        }
    }

    fn receive_completed(&mut self, receive: &Receive, completion: Completion, _solicited: bool) {
        assert_eq!(receive.wr_id, completion.wr_id);
        let at = self
            .taken
            .iter()
            .position(|(wr_id, _)| *wr_id == receive.wr_id);
        let at = at.unwrap_or_else(|| panic!("{completion:?} of a receive that is not taken"));
        self.taken.remove(at);
        let due = self
            .receives_due
            .iter()
            .position(|&due| due == receive.wr_id);
        let due = due.unwrap_or_else(|| panic!("a second completion: {completion:?}"));
        assert!(due == 0 || self.shared, "receives complete in order");
        self.receives_due.remove(due);
        if completion.status == WcStatus::Success && completion.byte_len > 0 {
            assert!(completion.byte_len as usize <= 64 * REGION);
        }
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
}
