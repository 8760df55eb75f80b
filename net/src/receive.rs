//! Receiving: one system call for many datagrams, and the stages between a socket and the caller.
//!
//! `recvmmsg` fills several buffers. With `UDP_GRO` each holds a batch of datagrams of one sender,
//! which this module splits. [`Inbound`] then injects faults if requested, verifies each ICRC,
//! counts and captures. Without faults and capture nothing is allocated per packet.

use crate::address::{DEFAULT_TTL, LocalAddress, ROCE_PORT};
use crate::capture::{CaptureHook, Direction, Record};
use crate::clock;
use crate::counters::NetCounters;
use crate::faults::FaultSpec;
use crate::faults::injector::{self, Injector};
use crate::icrc::{self, SenderCache};
use crate::sync::lock;
use crate::sys::{Control, RawAddress, control_int, for_each_control};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use urxe_proto::icrc::{IcrcError, IpId};
use urxe_proto::time::Time;

/// The maximum number of messages per call.
const MESSAGES: usize = 8;

/// The buffer size for one message: the largest GRO batch behind the header of a forwarded one.
const MESSAGE_SIZE: usize = (64 << 10) + 256;

/// One received RoCE packet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Datagram<'a> {
    /// The sender. It chooses the port, usually the same one for all packets of a connection.
    pub src: SocketAddr,
    /// The address of this host that the packet was sent to.
    pub dst: LocalAddress,
    /// The IPv4 type of service or IPv6 traffic class. The low two bits are ECN.
    pub tos: u8,
    /// The remaining IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// The position in the batch that the kernel delivered. Where the sender's GSO batch crossed
    /// the kernel unsplit, it equals the IPv4 identification.
    pub index: u16,
    /// Whether the batch starts with this packet. The kernel steers a batch by its first packet.
    pub first_of_batch: bool,
    /// Whether another process received the packet and forwarded it.
    pub forwarded: bool,
    /// The IPv4 identification that the ICRC was computed with; `None` for IPv6, and before the
    /// ICRC is verified.
    pub ip_id: Option<IpId>,
    /// The UDP payload: from the BTH to the ICRC, which is the last four bytes.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Returns a datagram with these addresses and this UDP payload, the default TTL and no traffic
    /// class, as if it had arrived alone.
    pub fn new(src: SocketAddr, dst: LocalAddress, bytes: &'a [u8]) -> Self {
        Datagram {
            src,
            dst,
            tos: 0,
            ttl: DEFAULT_TTL,
            index: 0,
            first_of_batch: true,
            forwarded: false,
            ip_id: None,
            bytes,
        }
    }

    /// Returns the bytes from the BTH to the end of the pad.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(icrc::LEN);
        &self.bytes[..end]
    }
}

/// The metadata of one received message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    /// The sender; `None` for a Unix socket.
    pub(super) src: Option<SocketAddr>,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The length of each datagram except the last; 0 when there is only one.
    pub(super) segment: usize,
    pub(super) len: usize,
    /// The message did not fit: the buffer holds only a part of it.
    pub(super) truncated: bool,
}

/// Buffers for one receive call. A thread has one and uses it for every socket.
pub struct RecvBatch {
    buffers: Vec<u8>,
    headers: MessageHeaders,
    messages: Vec<Message>,
    /// The number of messages that the next call requests.
    next_count: usize,
    /// The last receive may have moved the endpoint's deadline.
    deadline_moved: bool,
    state: InboundState,
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl RecvBatch {
    /// Allocates half a MiB of buffers. Only the pages that messages are received into are touched.
    pub fn new() -> Self {
        let mut buffers = vec![0; MESSAGES * MESSAGE_SIZE];
        RecvBatch {
            headers: MessageHeaders::new(&mut buffers),
            buffers,
            messages: Vec::with_capacity(MESSAGES),
            next_count: 1,
            deadline_moved: false,
            state: InboundState {
                senders: SenderCache::new(),
                tally: Tally::default(),
            },
        }
    }

    /// Whether the last [`Endpoint::recv`](crate::Endpoint::recv) may have moved
    /// [`Endpoint::next_deadline`](crate::Endpoint::next_deadline): it received a datagram that
    /// was not for this process, or one that `URXE_FAULTS` delays.
    pub fn has_moved_deadline(&self) -> bool {
        self.deadline_moved
    }

    pub(super) fn set_moved_deadline(&mut self, moved: bool) {
        self.deadline_moved = moved;
    }

    /// Receives into the batch. Returns the number of messages, 0 when there is none.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.messages.clear();
        let count = loop {
            // Not through the C library's function, which is a cancellation point and costs time.
            // SAFETY: the first `next_count` headers, at most `MESSAGES`, point to a name, an
            // iovec, a buffer and a control buffer, and hold their lengths (see `MessageHeaders`).
            // All of them outlive the call, and no reference to them exists.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    fd.as_raw_fd(),
                    self.headers.headers.as_mut_ptr(),
                    self.next_count as libc::c_uint,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            if let Ok(n) = usize::try_from(n) {
                break n;
            }
            match last_errno() {
                libc::EAGAIN => {
                    self.next_count = (self.next_count / 2).max(1);
                    return Ok(0);
                }
                libc::EINTR => {}
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        };
        // When no second message is queued, finding that out costs the kernel a third of the time
        // of a receive. So where messages arrive one by one, the next call requests one.
        self.next_count = match count == self.next_count {
            true => (2 * count).min(MESSAGES),
            false => count.max(self.next_count / 2),
        };
        for index in 0..count {
            // SAFETY: recvmmsg has just filled the first `count` headers.
            self.messages.push(unsafe { self.headers.take(index) });
        }
        Ok(count)
    }

    /// Returns the messages of the last [`RecvBatch::fill`] with their bytes, and the state that
    /// [`Inbound`] keeps.
    #[inline]
    pub(super) fn parts(&mut self) -> (Messages<'_>, &mut InboundState) {
        let messages = Messages {
            messages: self.messages.iter(),
            buffers: &self.buffers,
        };
        (messages, &mut self.state)
    }
}

/// A received message: one datagram or a GRO batch.
pub(super) struct Arrival<'a> {
    src: SocketAddr,
    dst: LocalAddress,
    message: &'a Message,
    pub(super) bytes: &'a [u8],
}

impl<'a> Arrival<'a> {
    /// Whether the message is one datagram.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        let segment = self.message.segment;
        (segment == 0 || segment >= self.bytes.len()) && !self.bytes.is_empty()
    }

    /// Returns the message as one datagram, see [`Arrival::is_single`].
    #[inline]
    pub(super) fn datagram(&self) -> Datagram<'a> {
        Datagram {
            src: self.src,
            dst: self.dst,
            tos: self.message.tos,
            ttl: self.message.ttl,
            index: 0,
            first_of_batch: true,
            forwarded: false,
            ip_id: None,
            bytes: self.bytes,
        }
    }

    /// Returns the message as a batch of datagrams.
    pub(super) fn batch(&self) -> GroBatch<'a> {
        GroBatch {
            src: self.src,
            dst: self.dst,
            tos: self.message.tos,
            ttl: self.message.ttl,
            first_index: 0,
            segment: self.message.segment,
            bytes: self.bytes,
        }
    }
}

/// The received messages with their bytes.
pub(super) struct Messages<'a> {
    messages: std::slice::Iter<'a, Message>,
    /// The buffers of these messages, [`MESSAGE_SIZE`] bytes each.
    buffers: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = (&'a Message, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let message = self.messages.next()?;
        let (buffer, rest) = self.buffers.split_at_checked(MESSAGE_SIZE)?;
        self.buffers = rest;
        Some((message, &buffer[..message.len]))
    }
}

/// The headers that recvmmsg(2) fills, and the names and control messages that they point to.
///
/// Between two calls every header is ready, so that a receive sets nothing up: of those that it
/// fills the kernel changes lengths and flags, and [`MessageHeaders::take`] restores the lengths.
struct MessageHeaders {
    headers: Vec<libc::mmsghdr>,
    /// Owned here, and accessed through the headers only. They are never reallocated.
    _parts: (Vec<libc::iovec>, Vec<RawAddress>, Vec<Control>),
}

// SAFETY: the raw pointers in the headers and iovecs point to heap memory that this value owns, or
// that the batch owns which owns this value. They are used only with exclusive access to both.
// Nothing about that memory depends on the thread.
unsafe impl Send for MessageHeaders {}

impl MessageHeaders {
    /// Creates a header for each part of `buffers` that holds a message. `buffers` must live as
    /// long as this value, in the same place.
    fn new(buffers: &mut [u8]) -> Self {
        let mut iovecs: Vec<_> = buffers
            .chunks_exact_mut(MESSAGE_SIZE)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let mut names = vec![RawAddress::empty(); iovecs.len()];
        let mut controls = vec![Control::new(); iovecs.len()];
        let of = (
            iovecs.as_mut_ptr(),
            names.as_mut_ptr(),
            controls.as_mut_ptr(),
        );
        let header = |index| {
            // SAFETY: `mmsghdr` consists of integers and raw pointers, for which zeroes are valid.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = of.0.wrapping_add(index);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = of.1.wrapping_add(index).cast();
            header.msg_hdr.msg_control = of.2.wrapping_add(index).cast();
            make_ready(&mut header.msg_hdr);
            header
        };
        MessageHeaders {
            headers: (0..iovecs.len()).map(header).collect(),
            _parts: (iovecs, names, controls),
        }
    }

    /// Returns the metadata of the message that the kernel stored with a header, and makes the
    /// header ready for the next one.
    ///
    /// # Safety
    /// The last recvmmsg(2) must have filled the header, and `take` not been called for it since.
    unsafe fn take(&mut self, index: usize) -> Message {
        let header = &mut self.headers[index];
        let mut message = Message {
            // For an unnamed Unix socket the kernel leaves the buffer unchanged.
            src: match header.msg_hdr.msg_namelen {
                0 => None,
                // SAFETY: the name points to a live `RawAddress` (see `new`), which holds an
                // address of the kernel's or its initial value, and no reference to it exists.
                _ => unsafe { &*header.msg_hdr.msg_name.cast::<RawAddress>() }.ip(),
            },
            tos: 0,
            ttl: 0,
            segment: 0,
            len: (header.msg_len as usize).min(MESSAGE_SIZE),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        // SAFETY: recvmmsg has filled the header and its control buffer, and neither has been
        // modified since: this function's contract, section Safety.
        unsafe {
            for_each_control(&header.msg_hdr, |level, kind, value| {
                message.apply_control(level, kind, value);
            });
        }
        make_ready(&mut header.msg_hdr);
        message
    }
}

/// Returns the thread's `errno`. Polls that find nothing are frequent, and need no [`io::Error`].
fn last_errno() -> libc::c_int {
    // SAFETY: the pointer is to this thread's `errno`, which is initialized and valid for the
    // thread's life.
    unsafe { *libc::__errno_location() }
}

/// Sets the lengths that a receive overwrites.
fn make_ready(header: &mut libc::msghdr) {
    header.msg_namelen = RawAddress::SIZE;
    header.msg_controllen = Control::SIZE as _;
}

impl Message {
    fn apply_control(&mut self, level: i32, kind: i32, value: &[u8]) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.tos = control_int(value) as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = control_int(value) as u8;
            }
            (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                self.segment = usize::try_from(control_int(value)).unwrap_or(0);
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                // Before Linux 6.16 a process of this user can send descriptors. urxe never does,
                // so they are closed.
                for fd in value.chunks_exact(4) {
                    // SAFETY: the kernel has just installed this descriptor, and nothing else owns
                    // it.
                    unsafe { libc::close(control_int(fd)) };
                }
            }
            _ => {}
        }
    }
}

/// A copy of a datagram, for later.
#[derive(Clone, Debug)]
pub struct OwnedDatagram {
    src: SocketAddr,
    dst: LocalAddress,
    tos: u8,
    ttl: u8,
    index: u16,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

impl From<&Datagram<'_>> for OwnedDatagram {
    fn from(datagram: &Datagram<'_>) -> Self {
        OwnedDatagram {
            src: datagram.src,
            dst: datagram.dst,
            tos: datagram.tos,
            ttl: datagram.ttl,
            index: datagram.index,
            bytes: datagram.bytes.to_vec(),
        }
    }
}

impl OwnedDatagram {
    /// Returns the datagram, without its flags (`first_of_batch`, `forwarded`) and identification.
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            src: self.src,
            dst: self.dst,
            tos: self.tos,
            ttl: self.ttl,
            index: self.index,
            first_of_batch: false,
            forwarded: false,
            ip_id: None,
            bytes: &self.bytes,
        }
    }
}

/// Datagrams of one sender that the kernel or another process delivered as one message.
#[derive(Clone, Copy)]
pub(super) struct GroBatch<'a> {
    pub(super) src: SocketAddr,
    pub(super) dst: LocalAddress,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The position of the first datagram in the kernel's batch.
    pub(super) first_index: u16,
    /// The length of each datagram except the last; 0 when there is only one.
    pub(super) segment: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> GroBatch<'a> {
    /// Returns the datagrams: the bytes cut at every `segment`.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'a>> + use<'a> {
        let batch = *self;
        let segment = if self.segment == 0 {
            self.bytes.len()
        } else {
            self.segment
        };
        self.bytes
            .chunks(segment.max(1))
            .zip(0_u16..)
            .map(move |(bytes, i)| Datagram {
                src: batch.src,
                dst: batch.dst,
                tos: batch.tos,
                ttl: batch.ttl,
                index: batch.first_index.wrapping_add(i),
                first_of_batch: batch.first_index == 0 && i == 0,
                forwarded: false,
                ip_id: None,
                bytes,
            })
    }
}

impl injector::Packet for OwnedDatagram {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// The stages that each received datagram passes on its way to the caller: fault injection, the
/// check of the ICRC, counters and capture. Cloning shares them.
#[derive(Clone)]
pub(super) struct Inbound {
    counters: Arc<NetCounters>,
    capture: CaptureHook,
    faults: Option<Arc<Mutex<Injector<OwnedDatagram>>>>,
}

/// The state of [`Inbound`] that each receiving thread has for itself.
pub(super) struct InboundState {
    senders: SenderCache,
    tally: Tally,
}

/// Datagrams with a correct ICRC that the counters do not include yet. Counting each by itself
/// would make the processor wait for the stores of the one before.
#[derive(Default)]
struct Tally {
    datagrams: u64,
    bytes: u64,
}

impl Inbound {
    /// Returns stages without fault injection.
    pub(super) fn new(counters: Arc<NetCounters>, capture: CaptureHook) -> Self {
        Inbound {
            counters,
            capture,
            faults: None,
        }
    }

    /// Returns these stages with fault injection, if `spec` applies to received packets.
    pub(super) fn with_faults(&self, spec: Option<FaultSpec>) -> Self {
        let injector = |spec| Arc::new(Mutex::new(Injector::new(spec, self.counters.clone())));
        Inbound {
            faults: spec.filter(FaultSpec::receives).map(injector),
            ..self.clone()
        }
    }

    /// Receives once from a socket. Returns the number of messages.
    ///
    /// # Errors
    /// When the socket fails.
    #[inline]
    pub(super) fn receive(
        &self,
        batch: &mut RecvBatch,
        socket: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        self.counters.receive_calls.add(1);
        let count = batch.fill(socket)?;
        if count > 0 {
            self.counters.messages_in.add(count as u64);
        }
        Ok(count)
    }

    /// Returns the messages that the last call of [`Inbound::receive`] has received from a socket
    /// that is bound to `dst`.
    #[inline]
    pub(super) fn received<'a>(
        &'a self,
        batch: &'a mut RecvBatch,
        dst: LocalAddress,
    ) -> Received<'a> {
        let (messages, state) = batch.parts();
        Received {
            inbound: self,
            dst,
            messages,
            state,
        }
    }

    /// Whether [`Inbound::deliver`] may keep a datagram for later.
    pub(super) fn delays(&self) -> bool {
        self.faults.is_some()
    }

    /// Passes a datagram through all stages, and calls `f` if its ICRC is correct. The injector may
    /// release earlier datagrams as well, or none.
    #[inline]
    pub(super) fn deliver(
        &self,
        state: &mut InboundState,
        datagram: &mut Datagram<'_>,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        let Some(injector) = &self.faults else {
            return self.verify(state, datagram, f);
        };
        let mut released = Vec::new();
        lock(injector).pass((&*datagram).into(), clock::now(), &mut |p| released.push(p));
        for datagram in &released {
            self.verify(state, &mut datagram.datagram(), f);
        }
    }

    /// Verifies the ICRC of a datagram, captures it, and calls `f` if the ICRC is correct.
    fn verify(
        &self,
        state: &mut InboundState,
        datagram: &mut Datagram<'_>,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        let (src, dst) = (datagram.src, datagram.dst.ip());
        let verdict = (state.senders).verify(src, dst, datagram.index, datagram.bytes);
        datagram.ip_id = verdict.unwrap_or(None);
        if self.capture.is_active() {
            self.capture.record(&Record {
                direction: Direction::In,
                src: datagram.src,
                dst: datagram.dst.with_port(ROCE_PORT),
                tos: datagram.tos,
                ttl: datagram.ttl,
                ip_id: datagram.ip_id,
                comment: verdict.is_err().then_some("wrong ICRC"),
                bytes: datagram.bytes,
            });
        }
        match verdict {
            Ok(_) => {
                state.tally.datagrams += 1;
                state.tally.bytes += datagram.bytes.len() as u64;
                f(datagram);
            }
            Err(error) => {
                match error {
                    IcrcError::Length(_) => self.counters.malformed.add(1),
                    IcrcError::Mismatch { .. } => self.counters.icrc_errors.add(1),
                }
                self.counters.count_invalid(datagram.dst);
                tracing::debug!(src = %datagram.src, %error, "dropped a datagram");
            }
        }
    }

    /// Counts the datagrams delivered since the last call, and writes the capture. To be called
    /// after each batch.
    pub(super) fn finish(&self, state: &mut InboundState) {
        let Tally { datagrams, bytes } = std::mem::take(&mut state.tally);
        if datagrams > 0 {
            self.counters.datagrams_in.add(datagrams);
            self.counters.bytes_in.add(bytes);
        }
        self.capture.flush();
    }

    /// The time of the next call of [`Inbound::release`].
    pub(super) fn next_deadline(&self) -> Time {
        let injector = self.faults.as_ref();
        injector.map_or(Time::NEVER, |injector| lock(injector).next_deadline())
    }

    /// Delivers the datagrams whose injected delay has ended.
    pub(super) fn release(
        &self,
        now: Time,
        batch: &mut RecvBatch,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        let Some(injector) = &self.faults else {
            return;
        };
        let mut released = Vec::new();
        lock(injector).release(now, &mut |p| released.push(p));
        for datagram in &released {
            self.verify(&mut batch.state, &mut datagram.datagram(), f);
        }
        self.finish(&mut batch.state);
    }
}

/// The messages of one receive call. Dropping it counts the delivered datagrams, and writes the
/// capture.
pub(super) struct Received<'a> {
    inbound: &'a Inbound,
    dst: LocalAddress,
    messages: Messages<'a>,
    state: &'a mut InboundState,
}

impl<'a> Received<'a> {
    /// Returns the next message. Truncated messages are counted and skipped.
    #[inline]
    pub(super) fn next_arrival(&mut self) -> Option<Arrival<'a>> {
        loop {
            let (message, bytes) = self.messages.next()?;
            if let Some(src) = message.src.filter(|_| !message.truncated) {
                return Some(Arrival {
                    src,
                    dst: self.dst,
                    message,
                    bytes,
                });
            }
            self.inbound.counters.malformed.add(1);
        }
    }

    /// See [`Inbound::deliver`].
    pub(super) fn deliver(
        &mut self,
        datagram: &mut Datagram<'_>,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        self.inbound.deliver(self.state, datagram, f);
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        self.inbound.finish(self.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(bytes: &[u8], segment: usize) -> GroBatch<'_> {
        GroBatch {
            src: "192.0.2.1:49152".parse().unwrap(),
            dst: LocalAddress::new([192, 0, 2, 2].into(), 0),
            tos: 0,
            ttl: 64,
            first_index: 0,
            segment,
            bytes,
        }
    }

    #[test]
    fn batch_is_split_into_equal_datagrams_and_a_shorter_last_one() {
        let bytes: Vec<u8> = (0..=255).collect();
        let parts: Vec<_> = batch(&bytes, 100).datagrams().collect();
        let lengths: Vec<_> = parts.iter().map(|d| d.bytes.len()).collect();
        assert_eq!(lengths, [100, 100, 56]);
        assert_eq!(parts[2].index, 2);
        assert!(parts[0].first_of_batch && !parts[1].first_of_batch);
        assert_eq!(parts[1].bytes[0], 100);
        assert_eq!(batch(&bytes, 0).datagrams().count(), 1);
        assert_eq!(batch(&[], 0).datagrams().count(), 0);
    }

    #[test]
    fn single_datagram_is_that_of_the_split_batch() {
        let bytes: Vec<u8> = (0..=255).collect();
        for segment in [0, 100, 255, 256, 1000] {
            let message = Message {
                src: None,
                tos: 1,
                ttl: 64,
                segment,
                len: bytes.len(),
                truncated: false,
            };
            let arrival = Arrival {
                src: "192.0.2.1:49152".parse().unwrap(),
                dst: LocalAddress::new([192, 0, 2, 2].into(), 0),
                message: &message,
                bytes: &bytes,
            };
            let parts: Vec<_> = arrival.batch().datagrams().collect();
            assert_eq!(arrival.is_single(), parts.len() == 1, "{segment}");
            if arrival.is_single() {
                let single = arrival.datagram();
                assert_eq!(format!("{single:?}"), format!("{:?}", parts[0]));
            }
            let empty = Arrival {
                bytes: &[],
                ..arrival
            };
            assert!(!empty.is_single());
        }
    }
}
