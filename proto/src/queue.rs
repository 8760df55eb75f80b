//! The send and receive queues of a queue pair: rings allocated once, so that posting and sending
//! allocate nothing.

use crate::psn::Psn;
use crate::work::{Destination, Payload, SendFlags, SendOp, SendWr, Sge};
use crate::{host::Receive, mtu::Mtu};

/// Why a work request was refused. Each variant has the errno that verbs programs expect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The state of the queue pair does not allow it: EINVAL.
    #[error("the queue pair's state does not allow this work request: call ibv_modify_qp first")]
    State,
    /// The queue is full: ENOMEM.
    #[error("the queue is full")]
    Full,
    /// It has more scatter/gather elements than the queue was created for: EINVAL.
    #[error("the work request has more scatter/gather elements than the queue was created for")]
    TooManySges,
    /// It has more inline data than the queue was created for: EINVAL (ENOMEM in some providers).
    #[error("the work request has more inline data than the queue was created for")]
    TooMuchInline,
    /// The message is longer than 2^31 bytes: EINVAL.
    #[error("the message is longer than 2^31 bytes")]
    TooLong,
    /// Fewer bytes of local elements than an atomic returns: EINVAL.
    #[error("an atomic returns 8 bytes, and its elements hold fewer")]
    ShortResult,
    /// The transport has no such operation, or not with such data: EINVAL.
    #[error("this transport has no such operation")]
    Operation,
    /// The queue pair uses a shared receive queue: EINVAL.
    #[error("the queue pair uses a shared receive queue: post the receive there")]
    SharedReceives,
    /// A datagram without a valid destination: EINVAL.
    #[error(
        "a datagram needs a destination queue pair and an address handle of the queue pair's \
         protection domain"
    )]
    Destination,
}

/// A receive queue cannot shrink below the number of receives posted to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("more receives are posted than the new size holds")]
pub struct QueueInUse;

/// The memory for a queue could not be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not enough memory for the work requests of the queue: ask for fewer")]
pub struct NoMemory;

/// Why a queue could not be resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResizeError {
    /// More receives are posted than the new size holds.
    #[error(transparent)]
    InUse(#[from] QueueInUse),
    /// The memory could not be allocated.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// An empty vector with capacity for `count` elements.
fn room<T>(count: usize) -> Result<Vec<T>, NoMemory> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| NoMemory)?;
    Ok(room)
}

/// A slice of `count` clones of `value`.
fn filled<T: Clone>(value: T, count: usize) -> Result<Box<[T]>, NoMemory> {
    let mut all = room(count)?;
    all.resize(count, value);
    Ok(all.into())
}

/// A receive queue.
#[derive(Debug)]
pub struct RecvQueue {
    slots: Box<[(u64, u32)]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    head: usize,
    len: usize,
}

impl RecvQueue {
    /// Returns an empty queue for up to `max_wr` receives of up to `max_sge` elements each.
    ///
    /// # Errors
    /// [`NoMemory`] when the memory could not be allocated.
    pub fn new(max_wr: u32, max_sge: u32) -> Result<Self, NoMemory> {
        let (wr, max_sge) = (max_wr as usize, max_sge as usize);
        Ok(RecvQueue {
            slots: filled((0, 0), wr)?,
            sges: filled(Sge::default(), wr * max_sge)?,
            max_sge,
            head: 0,
            len: 0,
        })
    }

    /// The most receives that the queue holds.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The most scatter/gather elements of one receive.
    pub fn max_sge(&self) -> u32 {
        self.max_sge as u32
    }

    /// The number of posted receives.
    pub fn len(&self) -> u32 {
        self.len as u32
    }

    /// Whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError::TooManySges`] or [`PostError::Full`].
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        if self.len == self.slots.len() {
            return Err(PostError::Full);
        }
        let at = (self.head + self.len) % self.slots.len();
        self.slots[at] = (wr_id, sges.len() as u32);
        let start = at * self.max_sge;
        self.sges[start..start + sges.len()].copy_from_slice(sges);
        self.len += 1;
        Ok(())
    }

    /// Takes the oldest receive into `into`; returns false when there is none.
    pub fn take(&mut self, into: &mut Receive) -> bool {
        if self.len == 0 {
            return false;
        }
        let (wr_id, sges) = self.slots[self.head];
        let start = self.head * self.max_sge;
        into.wr_id = wr_id;
        into.sges.clear();
        into.sges
            .extend_from_slice(&self.sges[start..start + sges as usize]);
        self.head = (self.head + 1) % self.slots.len();
        self.len -= 1;
        true
    }

    /// Changes the capacity. Posted receives stay, in their order.
    ///
    /// # Errors
    /// [`QueueInUse`] when more receives are posted than `max_wr`, and [`NoMemory`].
    pub fn resize(&mut self, max_wr: u32) -> Result<(), ResizeError> {
        if max_wr < self.len() {
            return Err(QueueInUse.into());
        }
        let mut larger = RecvQueue::new(max_wr, self.max_sge())?;
        for offset in 0..self.len {
            let from = (self.head + offset) % self.slots.len();
            larger.slots[offset] = self.slots[from];
            let elements = |at: usize| at * self.max_sge..(at + 1) * self.max_sge;
            larger.sges[elements(offset)].copy_from_slice(&self.sges[elements(from)]);
        }
        larger.len = self.len;
        *self = larger;
        Ok(())
    }

    /// Discards all receives without completions, as the transition to RESET does (10.3.1).
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// A posted send work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    /// The program's number for the work request.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The flags.
    pub flags: SendFlags,
    /// Bytes of the message.
    pub len: u32,
    /// The PSN of the first packet.
    pub first_psn: Psn,
    /// The number of PSNs: one a packet, or for a READ one a response packet (9.7.2). 0 for a local
    /// operation.
    pub packets: u32,
    /// The number of receive-consuming messages posted so far, this one included.
    pub receives: u32,
    /// The destination, where the connection does not determine it.
    pub dest: Option<Destination>,
    sges: u32,
}

impl SendWqe {
    /// The PSN after the last one of the work request.
    #[inline]
    pub fn end_psn(&self) -> Psn {
        self.first_psn + self.packets
    }

    /// Whether all PSNs of the work request are before `psn`, which is not before its first.
    ///
    /// A message may span half of the PSN space, so its end cannot be compared serially with a PSN
    /// near its start.
    #[inline]
    pub fn ends_before(&self, psn: Psn) -> bool {
        (psn - self.first_psn.get()).get() >= self.packets
    }

    /// The payload of packet `index` of the message, in bytes.
    #[inline]
    pub fn payload_of(&self, index: u32, mtu: Mtu) -> usize {
        let sent = u64::from(index) * mtu.bytes() as u64;
        (u64::from(self.len) - sent).min(mtu.bytes() as u64) as usize
    }
}

/// The number of packets of a message of `len` bytes: at least one (9.7.2).
#[inline]
pub fn packets_of(len: u32, mtu: Mtu) -> u32 {
    let rounded_up = u64::from(len) + (mtu.bytes() as u64 - 1);
    ((rounded_up >> mtu.log2()) as u32).max(1)
}

/// The limits of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueueSize {
    /// Work requests.
    pub max_wr: u32,
    /// Scatter/gather elements of one work request.
    pub max_sge: u32,
    /// Bytes of inline data of one work request.
    pub max_inline: u32,
}

impl SendQueueSize {
    /// Whether a queue of this size, with room in it, takes a work request. Returns how many bytes
    /// its data has.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn check(&self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        let len = match wr.payload {
            _ if !wr.op.has_payload() => 0,
            Payload::Sges(sges) if sges.len() > self.max_sge as usize => {
                return Err(PostError::TooManySges);
            }
            Payload::Sges(sges) => Sge::total_length(sges),
            Payload::Inline(data) if data.len() > self.max_inline as usize => {
                return Err(PostError::TooMuchInline);
            }
            Payload::Inline(_) if wr.op.has_response() => return Err(PostError::Operation),
            Payload::Inline(data) => data.len() as u64,
        };
        if len > crate::work::MAX_MESSAGE {
            return Err(PostError::TooLong);
        }
        // Otherwise the peer would execute it, and its result would be lost.
        if wr.op.is_atomic() && len < ATOMIC_RESULT {
            return Err(PostError::ShortResult);
        }
        Ok(len as u32)
    }
}

/// Bytes that an atomic returns (9.4.5).
const ATOMIC_RESULT: u64 = 8;

/// A send queue.
///
/// Work requests are numbered in posting order, from the creation of the queue. An index is never
/// reused.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// The work requests, each at its index modulo the number of slots, a power of two. Those before
    /// `head` are out of date.
    slots: Box<[Option<SendWqe>]>,
    sges: Box<[Sge]>,
    /// Inline data. Capacity is reserved for all slots, but pages are touched only when used.
    inline: Vec<u8>,
    size: SendQueueSize,
    head: u64,
    tail: u64,
    post_psn: Psn,
    receives: u32,
    /// The number of work requests in the queue that the peer answers with a response.
    responses: u32,
}

impl SendQueue {
    /// Returns an empty queue.
    ///
    /// # Errors
    /// [`NoMemory`] when the memory could not be allocated.
    pub fn new(size: SendQueueSize) -> Result<Self, NoMemory> {
        let wr = (size.max_wr as usize).next_power_of_two();
        Ok(SendQueue {
            slots: filled(None, wr)?,
            sges: filled(Sge::default(), wr * size.max_sge as usize)?,
            inline: room(wr * size.max_inline as usize)?,
            size,
            head: 0,
            tail: 0,
            post_psn: Psn::default(),
            receives: 0,
            responses: 0,
        })
    }

    /// The limits that the queue was created with.
    pub fn size(&self) -> SendQueueSize {
        self.size
    }

    /// The index of the oldest work request.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The number of work requests for which the queue has room.
    pub fn room(&self) -> u32 {
        self.size.max_wr - (self.tail - self.head) as u32
    }

    /// The number of work requests in the queue that the peer answers with a response.
    #[inline]
    pub fn responses(&self) -> u32 {
        self.responses
    }

    /// The PSN after those of the last work request.
    pub fn end_psn(&self) -> Psn {
        self.post_psn
    }

    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Empties the queue; the next work request will start at `psn`.
    pub fn reset(&mut self, psn: Psn) {
        self.head = self.tail;
        self.post_psn = psn;
        self.receives = 0;
        self.responses = 0;
    }

    /// Posts a work request. Its PSNs are assigned here, because the queue keeps posting order.
    ///
    /// # Errors
    /// [`PostError`] when the work request exceeds a limit of the queue.
    pub fn post(&mut self, wr: &SendWr<'_>, mtu: Mtu) -> Result<(), PostError> {
        if self.tail - self.head == u64::from(self.size.max_wr) {
            return Err(PostError::Full);
        }
        let len = self.size.check(wr)?;
        let slot = self.slot(self.tail);
        let sges = match wr.payload {
            _ if !wr.op.has_payload() => 0,
            Payload::Sges(sges) => {
                let start = slot * self.size.max_sge as usize;
                match sges {
                    // Most lists have one element, for which the call of a copy takes longer.
                    [sge] => self.sges[start] = *sge,
                    _ => self.sges[start..start + sges.len()].copy_from_slice(sges),
                }
                sges.len() as u32
            }
            Payload::Inline(data) => {
                let start = slot * self.size.max_inline as usize;
                let end = start + data.len();
                if self.inline.len() < end {
                    self.inline.resize(end, 0);
                }
                self.inline[start..end].copy_from_slice(data);
                0
            }
        };
        let mut flags = wr.flags;
        let inline = matches!(wr.payload, Payload::Inline(_)) && wr.op.has_payload();
        flags.set(SendFlags::INLINE, inline);
        let len = match wr.op {
            SendOp::AtomicWrite { .. } => 8,
            op if op.is_atomic() => ATOMIC_RESULT as u32,
            _ => len,
        };
        let packets = match wr.op.is_local() {
            true => 0,
            false => packets_of(len, mtu),
        };
        if wr.op.consumes_receive() {
            self.receives = self.receives.wrapping_add(1);
        }
        self.responses += u32::from(wr.op.has_response());
        self.slots[slot] = Some(SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            flags,
            len,
            first_psn: self.post_psn,
            packets,
            receives: self.receives,
            dest: wr.dest,
            sges,
        });
        self.post_psn = self.post_psn + packets;
        self.tail += 1;
        Ok(())
    }

    /// The work request with this index, if it is still in the queue.
    #[inline]
    pub fn get(&self, index: u64) -> Option<&SendWqe> {
        if index < self.head || index >= self.tail {
            return None;
        }
        self.slots[self.slot(index)].as_ref()
    }

    /// The data of work request `index`.
    #[inline]
    pub fn payload(&self, index: u64, wqe: &SendWqe) -> Payload<'_> {
        let slot = self.slot(index);
        if wqe.flags.contains(SendFlags::INLINE) {
            let start = slot * self.size.max_inline as usize;
            Payload::Inline(&self.inline[start..start + wqe.len as usize])
        } else {
            let start = slot * self.size.max_sge as usize;
            Payload::Sges(&self.sges[start..start + wqe.sges as usize])
        }
    }

    /// Removes and returns the oldest work request.
    #[inline]
    pub fn pop(&mut self) -> Option<SendWqe> {
        let wqe = self.get(self.head).copied()?;
        self.remove();
        Some(wqe)
    }

    /// Removes the oldest work request. There must be one.
    #[inline]
    pub fn remove(&mut self) {
        debug_assert!(!self.is_empty());
        if self.responses > 0 && self.get(self.head).is_some_and(|wqe| wqe.op.has_response()) {
            self.responses -= 1;
        }
        self.head += 1;
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        index as usize & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LKey;

    fn sge(length: u32) -> Sge {
        Sge {
            addr: 0x1000,
            length,
            lkey: LKey(7),
        }
    }

    #[test]
    fn receives_are_taken_in_order_and_a_full_queue_refuses() {
        let mut queue = RecvQueue::new(2, 2).unwrap();
        queue.post(1, &[sge(10)]).unwrap();
        queue.post(2, &[sge(20), sge(30)]).unwrap();
        assert_eq!(queue.post(3, &[]), Err(PostError::Full));
        let mut receive = Receive::default();
        assert!(queue.take(&mut receive));
        assert_eq!((receive.wr_id, receive.sges.len()), (1, 1));
        queue.post(3, &[]).unwrap();
        assert!(queue.take(&mut receive) && receive.wr_id == 2 && receive.sges.len() == 2);
        assert!(queue.take(&mut receive) && receive.wr_id == 3 && receive.sges.is_empty());
        assert!(!queue.take(&mut receive));
    }

    #[test]
    fn resize_keeps_the_order_of_receives() {
        let mut queue = RecvQueue::new(3, 2).unwrap();
        let mut receive = Receive::default();
        for id in 0..3 {
            queue.post(id, &[sge(1), sge(id as u32)]).unwrap();
        }
        assert!(queue.take(&mut receive));
        queue.post(3, &[sge(3)]).unwrap();
        assert_eq!(queue.resize(2), Err(QueueInUse.into()));
        assert_eq!((queue.capacity(), queue.len()), (3, 3));
        queue.resize(4).unwrap();
        queue.post(4, &[]).unwrap();
        assert_eq!(queue.post(5, &[]), Err(PostError::Full));
        for (id, elements) in [(1, 2), (2, 2), (3, 1), (4, 0)] {
            assert!(queue.take(&mut receive));
            assert_eq!((receive.wr_id, receive.sges.len()), (id, elements));
            assert!(elements < 2 || receive.sges[1] == sge(id as u32));
        }
        queue.resize(0).unwrap();
        assert_eq!(queue.post(6, &[]), Err(PostError::Full));
    }

    #[test]
    fn failed_allocation_of_a_queue_is_reported() {
        assert_eq!(RecvQueue::new(u32::MAX, u32::MAX).err(), Some(NoMemory));
        let size = SendQueueSize {
            max_wr: u32::MAX,
            max_sge: 0,
            max_inline: u32::MAX,
        };
        assert_eq!(SendQueue::new(size).err(), Some(NoMemory));
        let mut queue = RecvQueue::new(1, u32::MAX >> 16).unwrap();
        queue.post(7, &[]).unwrap();
        assert_eq!(queue.resize(u32::MAX), Err(NoMemory.into()));
        assert_eq!((queue.capacity(), queue.len()), (1, 1));
    }

    #[test]
    fn queue_of_capacity_0_is_full_and_empty() {
        let mut queue = RecvQueue::new(0, 0).unwrap();
        assert_eq!(queue.post(1, &[]), Err(PostError::Full));
        assert!(!queue.take(&mut Receive::default()));
        let mut queue = SendQueue::new(SendQueueSize {
            max_wr: 0,
            max_sge: 0,
            max_inline: 0,
        })
        .unwrap();
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
            dest: None,
        };
        assert_eq!(queue.post(&wr, Mtu::B256), Err(PostError::Full));
    }

    #[test]
    fn work_request_takes_one_psn_a_packet_and_at_least_one() {
        let mut queue = SendQueue::new(SendQueueSize {
            max_wr: 8,
            max_sge: 1,
            max_inline: 4,
        })
        .unwrap();
        queue.reset(Psn::new(0xff_fffe));
        for len in [0, 256, 257] {
            let wr = SendWr {
                wr_id: u64::from(len),
                op: SendOp::Send,
                flags: SendFlags::empty(),
                payload: Payload::Sges(&[sge(len)]),
                dest: None,
            };
            queue.post(&wr, Mtu::B256).unwrap();
        }
        let firsts: Vec<_> = (0..3)
            .map(|i| queue.get(i).unwrap().first_psn.get())
            .collect();
        assert_eq!(firsts, [0xff_fffe, 0xff_ffff, 0]);
        assert_eq!(queue.post_psn, Psn::new(2));
        assert_eq!(queue.get(2).unwrap().payload_of(1, Mtu::B256), 1);
    }
}
