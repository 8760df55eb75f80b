//! A host whose memory consists of vectors, and a sink that records packets, for the tests of all
//! services.

use crate::host::{
    Access, AtomicOp, BatchPlace, Completions, Memory, MemoryError, QpEvent, Receive, Receives,
    RemoteKey, Transmit, WindowBind,
};
use crate::ids::{LKey, RKey, Srqn};
use crate::mtu::Mtu;
use crate::queue::RecvQueue;
use crate::time::Time;
use crate::wire::{Header, Opcode, Packet, Syndrome};
use crate::work::{Completion, Sge};
use std::cell::RefCell;
use std::sync::LazyLock;

/// The key of memory with local rights only.
pub(crate) const LOCAL: u32 = 1;
/// The key of memory with all remote rights.
pub(crate) const REMOTE: u32 = 2;
/// The key of memory that may only be read locally.
pub(crate) const READ_ONLY: u32 = 3;
/// A key of no region, or of a region in another protection domain; the host does not distinguish
/// them.
pub(crate) const NO_KEY: u32 = 99;
/// The size of each region, in bytes.
pub(crate) const REGION: usize = 256 * 1024;

pub(crate) fn base(key: u32) -> u64 {
    u64::from(key) << 32
}

pub(crate) fn sge(key: u32, offset: usize, length: usize) -> Sge {
    Sge {
        addr: base(key) + offset as u64,
        length: length as u32,
        lkey: LKey(key),
    }
}

/// The initial value of a byte of region `key`.
pub(crate) fn pattern(key: u32, offset: usize) -> u8 {
    ((offset + 7 * key as usize) % 251) as u8
}

/// The initial contents of the regions by key, computed once.
static PATTERNS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let region = |key| (0..REGION).map(|i| pattern(key, i)).collect();
    (0..=READ_ONLY).map(region).collect()
});

/// A FLUSH: its range, or `None` for the whole region, and its placement.
pub(crate) type Flushed = (Option<(u64, u64)>, Access);

/// A host over three regions.
#[derive(Debug)]
pub(crate) struct TestHost {
    regions: Vec<(u32, Access, RefCell<Vec<u8>>)>,
    /// Whether every range of an existing region is accessible. All accesses are then to the first
    /// 4096 bytes of the region.
    pub(crate) boundless: bool,
    /// Whether the receives are those of a shared receive queue, which has no credits.
    pub(crate) shared: bool,
    pub(crate) receives: RecvQueue,
    /// The shared receive queues of the XRC domain.
    pub(crate) domain: Vec<(Srqn, RecvQueue)>,
    /// The shared receive queue whose protection domain has no memory.
    pub(crate) without_memory: Option<Srqn>,
    /// The FLUSHes executed for the peer.
    pub(crate) flushes: RefCell<Vec<Flushed>>,
    pub(crate) sends: Vec<Completion>,
    pub(crate) receptions: Vec<(Completion, bool)>,
    /// The shared receive queue of each completed receive.
    pub(crate) sources: Vec<Option<Srqn>>,
    pub(crate) events: Vec<QpEvent>,
    /// The keys of bound windows and local invalidations, in order, each with the number of send
    /// completions before it.
    pub(crate) local: RefCell<Vec<(u32, usize)>>,
}

impl TestHost {
    pub(crate) fn new() -> Self {
        let remote = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let region = |key, access| (key, access, RefCell::new(PATTERNS[key as usize].clone()));
        TestHost {
            regions: vec![
                region(LOCAL, Access::LOCAL_WRITE),
                region(REMOTE, Access::LOCAL_WRITE | remote),
                region(READ_ONLY, Access::empty()),
            ],
            boundless: false,
            shared: false,
            receives: RecvQueue::new(16, 4).unwrap(),
            domain: Vec::new(),
            without_memory: None,
            flushes: RefCell::default(),
            sends: Vec::new(),
            receptions: Vec::new(),
            sources: Vec::new(),
            events: Vec::new(),
            local: RefCell::default(),
        }
    }

    /// Records the bind or the invalidation of `key`.
    fn record_local(&self, key: u32) -> Result<(), MemoryError> {
        if key == NO_KEY {
            return Err(MemoryError::Key);
        }
        self.local.borrow_mut().push((key, self.sends.len()));
        Ok(())
    }

    /// Calls `f` with the bytes of a range, if the region permits `access`.
    fn access<T>(
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
        if self.boundless {
            return Ok(f(&mut bytes.borrow_mut()[..(len as usize).min(4096)]));
        }
        let start = addr.wrapping_sub(base(key));
        if start > REGION as u64 || len > REGION as u64 - start {
            return Err(MemoryError::Range);
        }
        let start = start as usize;
        Ok(f(&mut bytes.borrow_mut()[start..start + len as usize]))
    }

    /// Accesses memory for a remote requester.
    fn remote<T>(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
        f: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, MemoryError> {
        self.check_domain(key.srq)?;
        self.access(key.rkey.0, addr, len, access, f)
    }

    fn check_domain(&self, srq: Option<Srqn>) -> Result<(), MemoryError> {
        match srq.is_some() && srq == self.without_memory {
            true => Err(MemoryError::Key),
            false => Ok(()),
        }
    }

    /// Calls `f` with each contiguous part of the `len` bytes after the first `skip` of the list,
    /// and with the part's offset in these bytes.
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
                self.access(sge.lkey.0, sge.addr + skip, take, access, |m| f(m, done))?;
            }
            done += take as usize;
            skip = 0;
        }
        if done == len {
            Ok(())
        } else {
            Err(MemoryError::Range)
        }
    }

    pub(crate) fn bytes(&self, key: u32, offset: usize, len: usize) -> Vec<u8> {
        let (.., bytes) = self.regions.iter().find(|(k, ..)| *k == key).unwrap();
        bytes.borrow()[offset..offset + len].to_vec()
    }

    /// Deregisters a region.
    pub(crate) fn deregister(&mut self, key: u32) {
        self.regions.retain(|(k, ..)| *k != key);
    }
}

impl Memory for TestHost {
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError> {
        for sge in sges {
            self.access(sge.lkey.0, sge.addr, sge.length.into(), access, |_| ())?;
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
        self.each_piece(
            sges,
            offset,
            data.len(),
            Access::LOCAL_WRITE,
            |memory, at| {
                memory.copy_from_slice(&data[at..at + memory.len()]);
            },
        )
    }

    fn check_remote(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        a: Access,
    ) -> Result<(), MemoryError> {
        self.remote(key, addr, len, a, |_| ())
    }

    fn remote_read(&self, key: RemoteKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.remote(key, addr, out.len() as u64, Access::REMOTE_READ, |memory| {
            out.copy_from_slice(memory);
        })
    }

    fn remote_write(&self, key: RemoteKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.remote(
            key,
            addr,
            data.len() as u64,
            Access::REMOTE_WRITE,
            |memory| {
                memory.copy_from_slice(data);
            },
        )
    }

    fn remote_atomic(&self, key: RemoteKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        self.remote(key, addr, 8, op.access(), |memory| {
            let original = u64::from_ne_bytes((&*memory).try_into().unwrap());
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
        self.remote(key, addr, len, access, |_| ())?;
        self.flushes.borrow_mut().push((range, access));
        Ok(())
    }

    fn invalidate(&self, key: RemoteKey) -> Result<(), MemoryError> {
        self.remote(key, base(key.rkey.0), 0, Access::REMOTE_READ, |_| ())
    }

    fn bind_window(&self, bind: &WindowBind) -> Result<(), MemoryError> {
        self.record_local(bind.window.0)
    }

    fn invalidate_local(&self, key: RKey) -> Result<(), MemoryError> {
        self.record_local(key.0)
    }
}

impl Receives for TestHost {
    fn take_receive(&mut self, into: &mut Receive) -> bool {
        let queue = match into.srq {
            None => &mut self.receives,
            Some(srqn) => match self.domain.iter_mut().find(|(n, _)| *n == srqn) {
                Some((_, queue)) => queue,
                None => return false,
            },
        };
        queue.take(into)
    }

    fn has_srq(&self, srq: Srqn) -> bool {
        self.domain.iter().any(|(n, _)| *n == srq)
    }

    fn receive_credits(&self) -> Option<u32> {
        (!self.shared).then(|| self.receives.len())
    }

    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.check_domain(receive.srq)?;
        self.scatter(&receive.sges, offset, data)
    }
}

impl Completions for TestHost {
    fn send_completed(&mut self, completion: Completion) {
        self.sends.push(completion);
    }

    fn receive_completed(&mut self, receive: &Receive, completion: Completion, solicited: bool) {
        self.sources.push(receive.srq);
        self.receptions.push((completion, solicited));
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
}

/// A packet that was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    pub(crate) fn opcode(&self) -> Opcode {
        self.header.bth.opcode
    }

    pub(crate) fn psn(&self) -> u32 {
        self.header.bth.psn.get()
    }

    pub(crate) fn syndrome(&self) -> Syndrome {
        self.header.aeth.expect("an AETH").syndrome
    }

    pub(crate) fn msn(&self) -> u32 {
        self.header.aeth.expect("an AETH").msn
    }
}

/// A sink that records packets.
pub(crate) struct Sink {
    now: Time,
    room: usize,
    staged: Vec<u8>,
    /// The packets in a batch; 1 for no batches.
    batch: u32,
    pub(crate) packets: Vec<Sent>,
}

impl Sink {
    /// Returns a sink with room for `room` packets.
    pub(crate) fn new(now: Time, room: usize) -> Self {
        Sink {
            now,
            room,
            staged: Vec::new(),
            batch: 1,
            packets: Vec::new(),
        }
    }

    /// Makes the sink pass packets on in batches of `batch`.
    pub(crate) fn in_batches(self, batch: u32) -> Self {
        Sink { batch, ..self }
    }
}

impl Transmit for Sink {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() == self.room {
            return None;
        }
        self.staged = vec![0xa5; len];
        Some(&mut self.staged)
    }

    fn commit(&mut self) {
        let packet = Packet::parse(&self.staged).expect("packets sent are well-formed");
        let rule = packet.header.bth.opcode.info().payload;
        let len = packet.payload.len();
        let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        assert!(
            mtus.iter().any(|mtu| rule.accepts(len, mtu.bytes())),
            "{len} bytes in a packet with {rule:?}"
        );
        self.packets.push(Sent {
            header: packet.header,
            payload: packet.payload.to_vec(),
        });
    }

    fn cancel(&mut self) {}

    fn now(&self) -> Time {
        self.now
    }

    fn place_in_batch(&self, _len: usize) -> BatchPlace {
        BatchPlace {
            begins: (self.packets.len() as u32).is_multiple_of(self.batch),
            ends: (self.packets.len() as u32 + 1).is_multiple_of(self.batch),
            capacity: self.batch,
        }
    }
}
