//! A host over plain vectors that holds a state machine to what it may do: which memory it may touch
//! for whom, and which completions it owes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives, RemoteKey,
    WindowBind,
};
use urxe_proto::ids::{RKey, Srqn};
use urxe_proto::queue::RecvQueue;
use urxe_proto::work::{Completion, Sge, WcStatus};

/// Memory that may be used locally, and nothing else.
pub const LOCAL: u32 = 1;
/// Memory with which the peer may do anything.
pub const REMOTE: u32 = 2;
/// Memory without any right but that of sending from it.
pub const READ_ONLY: u32 = 3;
/// No memory.
pub const NO_KEY: u32 = 99;
/// Bytes of each region.
pub const REGION: usize = 16 * 1024;
/// The shared receive queue of the XRC domain.
pub const SRQ: Srqn = Srqn::new(7);

/// Where region `key` begins.
pub fn base(key: u32) -> u64 {
    u64::from(key) << 32
}

/// A send work request that was taken and has not completed.
#[derive(Debug)]
pub struct Outstanding {
    /// Its number.
    pub wr_id: u64,
    /// Whether it makes a completion though it succeeds.
    pub signaled: bool,
    /// Where its response goes.
    pub sink: Vec<Sge>,
}

/// A host, and what it knows of its queue pair.
#[derive(Debug)]
pub struct Host {
    regions: Vec<(u32, Access, RefCell<Vec<u8>>)>,
    /// The remote rights of the queue pair itself.
    pub granted: Cell<Access>,
    /// What requests have named so far: key, address, length.
    pub named: Vec<(u32, u64, u64)>,
    /// Receives that wait.
    pub receives: RecvQueue,
    /// Whether they pose as those of a shared queue.
    pub shared: bool,
    /// Numbers of receives that were posted and have not completed.
    pub receives_due: VecDeque<u64>,
    /// Receives taken and not completed.
    taken: Vec<(u64, Vec<Sge>)>,
    /// Sends that were posted and have not completed.
    pub sends_due: VecDeque<Outstanding>,
    /// Events so far.
    pub events: Vec<QpEvent>,
    /// Bytes the peer changed by the packet at hand.
    pub written: Cell<usize>,
}

impl Host {
    /// A host of three regions whose receive queue holds 16.
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
            named: Vec::new(),
            receives: RecvQueue::new(16, 4).expect("memory"),
            shared,
            receives_due: VecDeque::new(),
            taken: Vec::new(),
            sends_due: VecDeque::new(),
            events: Vec::new(),
            written: Cell::default(),
        }
    }

    /// The queue pair went to RESET: nothing outstanding will complete.
    pub fn forget(&mut self) {
        self.sends_due.clear();
        self.taken.clear();
        self.named.clear();
        if !self.shared {
            self.receives_due.clear();
        }
    }

    /// # Panics
    /// When something is still due.
    pub fn assert_flushed(&self) {
        // Those that nobody wanted to hear of may have succeeded.
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

    /// What the peer asks for must be something that the queue pair grants and that a request named.
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
            len == 0 || self.named.iter().any(within),
            "{addr:#x}+{len} of {key:?} was named by no request"
        );
        self.with(key.rkey.0, addr, len, access, f)
    }

    fn each_piece(
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
        // What an atomic found may have too little room, or none.
        match done < len {
            true => Err(MemoryError::Range),
            false => Ok(()),
        }
    }

    fn put(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let access = Access::LOCAL_WRITE;
        self.each_piece(sges, offset, data.len(), access, |memory, at| {
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
        self.each_piece(sges, offset, len, Access::empty(), |memory, at| {
            out[at..at + memory.len()].copy_from_slice(memory);
        })
    }

    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        assert!(
            // What asks for no data has no elements, and an answer with data touches nothing.
            sges.is_empty() || self.sends_due.iter().any(|due| due.sink == sges),
            "data for elements that no outstanding work request has: {sges:?}"
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
        // Asking touches nothing.
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
            let due = due.unwrap_or_else(|| panic!("nobody waits for {completion:?}"));
            if due.wr_id == completion.wr_id {
                break;
            }
            assert!(!due.signaled, "{due:?} is skipped by {completion:?}");
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
        let due = due.unwrap_or_else(|| panic!("{completion:?} comes twice"));
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
