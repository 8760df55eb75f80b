//! A [`Host`](urxe_proto::host::Host) over plain vectors.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use urxe_proto::host::{
    Access, AtomicOp, Completions, Memory, MemoryError, QpEvent, Receive, Receives, RemoteKey,
    WindowBind,
};
use urxe_proto::ids::{RKey, Srqn};
use urxe_proto::queue::RecvQueue;
use urxe_proto::time::Time;
use urxe_proto::work::{Completion, Sge};

/// A memory region. Its local and its remote key are equal.
#[derive(Debug)]
pub struct Region {
    /// The key.
    pub key: u32,
    /// The address of its first byte.
    pub base: u64,
    /// The permitted accesses.
    pub access: Access,
    /// The content.
    pub bytes: RefCell<Vec<u8>>,
}

impl Region {
    fn range(
        &self,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<std::ops::Range<usize>, MemoryError> {
        if !self.access.contains(access) {
            return Err(MemoryError::Permission);
        }
        let start = addr.checked_sub(self.base).ok_or(MemoryError::Range)?;
        let start = usize::try_from(start).map_err(|_| MemoryError::Range)?;
        let end = start.checked_add(len).ok_or(MemoryError::Range)?;
        if end > self.bytes.borrow().len() {
            return Err(MemoryError::Range);
        }
        Ok(start..end)
    }
}

/// The host of an endpoint's queue pairs: memory, receives and completions.
#[derive(Debug)]
pub struct SimHost {
    /// The memory regions.
    pub regions: Vec<Region>,
    /// Keys that a SEND with Invalidate may invalidate, each once.
    pub invalidatable: RefCell<HashSet<u32>>,
    /// Keys that were bound or invalidated by local work requests, in order.
    pub local: RefCell<Vec<u32>>,
    /// The receives.
    pub receives: RecvQueue,
    /// Whether the receives count as a shared receive queue's.
    pub shared: bool,
    /// Over XRC, the number of the shared receive queue.
    pub srq: Option<Srqn>,
    /// Completions of sends, oldest first.
    pub sends: VecDeque<Completion>,
    /// Completions of receives, each with whether it was solicited, and the content of the watched
    /// region at that time. One packet may complete several, if requests behind it were in the
    /// out-of-order queue.
    pub receptions: VecDeque<(Completion, bool, Vec<u8>)>,
    /// The key of the watched region.
    pub watched: Option<u32>,
    /// The region that a second writer changes, and the time of its last write.
    pub versions: Option<(u32, Time)>,
    /// Asynchronous events.
    pub events: VecDeque<QpEvent>,
}

impl SimHost {
    fn record_local(&self, key: RKey) -> Result<(), MemoryError> {
        self.local.borrow_mut().push(key.0);
        Ok(())
    }

    fn region(&self, key: u32) -> Result<&Region, MemoryError> {
        self.regions
            .iter()
            .find(|region| region.key == key)
            .ok_or(MemoryError::Key)
    }

    /// Calls `each` for the pieces of `len` bytes that start `offset` bytes into the list.
    fn walk(
        &self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        access: Access,
        mut each: impl FnMut(&Region, std::ops::Range<usize>, std::ops::Range<usize>),
    ) -> Result<(), MemoryError> {
        let (mut skip, mut done) = (offset, 0);
        for sge in sges {
            if done == len {
                break;
            }
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = ((length - skip) as usize).min(len - done);
            let region = self.region(sge.lkey.0)?;
            let range = region.range(sge.addr + skip, take, access)?;
            each(region, range, done..done + take);
            skip = 0;
            done += take;
        }
        assert_eq!(
            done, len,
            "the list of elements is shorter than the message"
        );
        Ok(())
    }
}

impl Memory for SimHost {
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.region(sge.lkey.0)?
                .range(sge.addr, sge.length as usize, access)?;
        }
        Ok(())
    }

    fn gather(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let len = out.len();
        self.walk(sges, offset, len, Access::empty(), |region, from, to| {
            out[to].copy_from_slice(&region.bytes.borrow()[from]);
        })
    }

    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let len = data.len();
        self.walk(
            sges,
            offset,
            len,
            Access::LOCAL_WRITE,
            |region, to, from| {
                region.bytes.borrow_mut()[to].copy_from_slice(&data[from]);
            },
        )
    }

    fn check_remote(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError> {
        let len = usize::try_from(len).map_err(|_| MemoryError::Range)?;
        self.region(key.rkey.0)?
            .range(addr, len, access)
            .map(|_| ())
    }

    fn remote_read(&self, key: RemoteKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let region = self.region(key.rkey.0)?;
        let range = region.range(addr, out.len(), Access::REMOTE_READ)?;
        match self.versions {
            // Each word of the region has the time at which the second writer last wrote.
            Some((versions, written)) if versions == region.key => {
                let word = written.0.to_le_bytes();
                for (byte, at) in out.iter_mut().zip(range) {
                    *byte = word[at % word.len()];
                }
            }
            _ => out.copy_from_slice(&region.bytes.borrow()[range]),
        }
        Ok(())
    }

    fn remote_write(&self, key: RemoteKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        let region = self.region(key.rkey.0)?;
        let range = region.range(addr, data.len(), Access::REMOTE_WRITE)?;
        region.bytes.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }

    fn remote_atomic(&self, key: RemoteKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        assert!(addr.is_multiple_of(8), "the responder checks alignment");
        let region = self.region(key.rkey.0)?;
        let range = region.range(addr, 8, op.access())?;
        let bytes = &mut region.bytes.borrow_mut()[range];
        let original = u64::from_ne_bytes(bytes.try_into().unwrap());
        let value = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd(add) => original.wrapping_add(add),
            AtomicOp::Store(value) => value,
        };
        bytes.copy_from_slice(&value.to_ne_bytes());
        Ok(original)
    }

    fn flush(
        &self,
        key: RemoteKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemoryError> {
        let region = self.region(key.rkey.0)?;
        let (addr, len) = range.unwrap_or((region.base, 0));
        region.range(addr, len as usize, access).map(|_| ())
    }

    fn invalidate(&self, key: RemoteKey) -> Result<(), MemoryError> {
        if self.invalidatable.borrow_mut().remove(&key.rkey.0) {
            Ok(())
        } else {
            Err(MemoryError::Key)
        }
    }

    fn bind_window(&self, bind: &WindowBind) -> Result<(), MemoryError> {
        self.record_local(bind.window)
    }

    fn invalidate_local(&self, rkey: RKey) -> Result<(), MemoryError> {
        self.record_local(rkey)
    }
}

impl Receives for SimHost {
    fn take_receive(&mut self, into: &mut Receive) -> bool {
        into.srq == self.srq && self.receives.take(into)
    }

    fn has_srq(&self, srq: Srqn) -> bool {
        self.srq == Some(srq)
    }

    fn receive_credits(&self) -> Option<u32> {
        (!self.shared).then(|| self.receives.len())
    }

    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.scatter(&receive.sges, offset, data)
    }
}

impl Completions for SimHost {
    fn send_completed(&mut self, completion: Completion) {
        self.sends.push_back(completion);
    }

    fn receive_completed(&mut self, _receive: &Receive, completion: Completion, solicited: bool) {
        let watched = self
            .regions
            .iter()
            .find(|region| Some(region.key) == self.watched);
        let held = watched.map_or_else(Vec::new, |region| region.bytes.borrow().clone());
        self.receptions.push_back((completion, solicited, held));
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push_back(event);
    }
}
