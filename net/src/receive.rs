//! Receiving: one system call for many datagrams, and the stages between a socket and the caller.
//!
//! `recvmmsg` fills several buffers. With `UDP_GRO` each holds a batch of datagrams of one sender,
//! which this module splits. [`Inbound`] then injects faults if requested, verifies each ICRC,
//! counts and captures. Without faults and capture nothing is allocated per packet.

use crate::address::{LocalAddress, ROCE_PORT};
use crate::capture::{CaptureHook, Direction, Record};
use crate::clock;
use crate::counters::NetCounters;
use crate::datagram::{Datagram, OwnedDatagram};
use crate::faults::FaultSpec;
use crate::faults::injector::Injector;
use crate::icrc::SenderCache;
use crate::message_headers::{MESSAGE_SIZE, Message, MessageHeaders};
use crate::sync::lock;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use urxe_proto::icrc::IcrcError;
use urxe_proto::time::Time;

/// The maximum number of messages per call.
const MESSAGES: usize = 8;

/// Buffers for one receive call. A thread has one and uses it for every socket.
pub struct RecvBatch {
    buffers: Vec<u8>,
    headers: MessageHeaders,
    /// The messages of the last receive whose metadata has not been read.
    unread: Range<usize>,
    /// The number of messages that the next call requests.
    next_count: usize,
    /// The last receive may have moved the endpoint's deadline.
    deadline_moved: bool,
    state: InboundState,
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("unread", &self.unread)
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
            unread: 0..0,
            next_count: 1,
            deadline_moved: false,
            state: InboundState {
                senders: SenderCache::new(),
                tally: ReceiveCounts::default(),
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

    /// Receives into the batch. Returns the number of messages, 0 when there is none. Unless it
    /// returns 0, the caller must call [`RecvBatch::parts`] before the next receive.
    #[inline]
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
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
        self.unread = 0..count;
        Ok(count)
    }

    /// Returns the messages of the last [`RecvBatch::fill`] with their bytes, and the state that
    /// [`Inbound`] keeps.
    #[inline]
    pub(super) fn parts(&mut self) -> (Messages<'_>, &mut InboundState) {
        let messages = Messages {
            headers: &mut self.headers,
            unread: &mut self.unread,
            buffers: &self.buffers,
        };
        (messages, &mut self.state)
    }
}

/// A received message: one datagram or a GRO batch.
pub(super) struct Arrival<'a> {
    src: SocketAddr,
    dst: LocalAddress,
    message: Message,
    pub(super) bytes: &'a [u8],
}

impl<'a> Arrival<'a> {
    /// Whether the message is one datagram.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        let segment = self.message.controls.segment;
        (segment == 0 || segment >= self.bytes.len()) && !self.bytes.is_empty()
    }

    /// Returns the message as one datagram, see [`Arrival::is_single`].
    #[inline]
    pub(super) fn datagram(&self) -> Datagram<'a> {
        Datagram {
            src: self.src,
            dst: self.dst,
            tos: self.message.controls.tos,
            ttl: self.message.controls.ttl,
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
            tos: self.message.controls.tos,
            ttl: self.message.controls.ttl,
            first_index: 0,
            segment: self.message.controls.segment,
            bytes: self.bytes,
        }
    }
}

/// The received messages with their bytes. Dropping it reads those that are left: that closes the
/// descriptors in them, and makes their headers ready.
pub(super) struct Messages<'a> {
    headers: &'a mut MessageHeaders,
    unread: &'a mut Range<usize>,
    /// A buffer for each header, [`MESSAGE_SIZE`] bytes each.
    buffers: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = (Message, &'a [u8]);

    /// Reads the metadata of a message where it is needed, so that it is not copied.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let index = self.unread.next()?;
        // SAFETY: the last recvmmsg has filled the headers in `unread`, and each leaves that range
        // when it is taken.
        let message = unsafe { self.headers.take(index) };
        let at = index * MESSAGE_SIZE;
        Some((message, &self.buffers[at..at + message.len]))
    }
}

impl Drop for Messages<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.unread.start != self.unread.end {
            self.discard();
        }
    }
}

impl Messages<'_> {
    #[cold]
    fn discard(&mut self) {
        while self.next().is_some() {}
    }
}

/// Returns the thread's `errno`. Polls that find nothing are frequent, and need no [`io::Error`].
fn last_errno() -> libc::c_int {
    // SAFETY: the pointer is to this thread's `errno`, which is initialized and valid for the
    // thread's life.
    unsafe { *libc::__errno_location() }
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
    tally: ReceiveCounts,
}

/// Datagrams with a correct ICRC that the counters do not include yet. Counting each by itself
/// would make the processor wait for the stores of the one before.
#[derive(Default)]
struct ReceiveCounts {
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
        mut f: impl FnMut(&Datagram<'_>),
    ) {
        if let Some(injector) = &self.faults {
            self.deliver_through_faults(injector, state, datagram, &mut f);
        } else if self.verify(state, datagram) {
            f(datagram);
        }
    }

    /// Passes a datagram to the fault injector, and delivers those that the injector releases.
    #[cold]
    fn deliver_through_faults(
        &self,
        injector: &Mutex<Injector<OwnedDatagram>>,
        state: &mut InboundState,
        datagram: &Datagram<'_>,
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        let mut released = Vec::new();
        lock(injector).pass(datagram.into(), clock::now(), &mut |p| released.push(p));
        self.deliver_released(state, &released, f);
    }

    /// Calls `f` with each datagram that the fault injector has released and whose ICRC is correct.
    fn deliver_released(
        &self,
        state: &mut InboundState,
        released: &[OwnedDatagram],
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        for datagram in released {
            let mut datagram = datagram.datagram();
            if self.verify(state, &mut datagram) {
                f(&datagram);
            }
        }
    }

    /// Verifies the ICRC of a datagram, sets its identification, counts and captures it. Returns
    /// whether the ICRC is correct.
    #[inline(always)]
    fn verify(&self, state: &mut InboundState, datagram: &mut Datagram<'_>) -> bool {
        let (src, dst) = (&datagram.src, datagram.dst.ip());
        let verdict = (state.senders).verify(src, dst, datagram.index, datagram.bytes);
        datagram.ip_id = verdict.unwrap_or(None);
        if self.capture.is_active() {
            self.capture(datagram, verdict.is_ok());
        }
        match verdict {
            Ok(_) => {
                state.tally.datagrams += 1;
                state.tally.bytes += datagram.bytes.len() as u64;
                true
            }
            Err(error) => {
                self.drop_invalid(datagram, &error);
                false
            }
        }
    }

    /// Captures a datagram.
    #[cold]
    fn capture(&self, datagram: &Datagram<'_>, is_valid: bool) {
        self.capture.record(&Record {
            direction: Direction::In,
            src: datagram.src,
            dst: datagram.dst.with_port(ROCE_PORT),
            tos: datagram.tos,
            ttl: datagram.ttl,
            ip_id: datagram.ip_id,
            comment: (!is_valid).then_some("wrong ICRC"),
            bytes: datagram.bytes,
        });
    }

    /// Counts a datagram that is dropped for its ICRC or length.
    #[cold]
    fn drop_invalid(&self, datagram: &Datagram<'_>, error: &IcrcError) {
        match error {
            IcrcError::Length(_) => self.counters.malformed.add(1),
            IcrcError::Mismatch { .. } => self.counters.icrc_errors.add(1),
        }
        self.counters.count_invalid(datagram.dst);
        tracing::debug!(src = %datagram.src, %error, "dropped a datagram");
    }

    /// Counts the datagrams delivered since the last call, and writes the capture. To be called
    /// after each batch.
    #[inline]
    pub(super) fn finish(&self, state: &mut InboundState) {
        let ReceiveCounts { datagrams, bytes } = std::mem::take(&mut state.tally);
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
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        let Some(injector) = &self.faults else {
            return;
        };
        let mut released = Vec::new();
        lock(injector).release(now, &mut |p| released.push(p));
        self.deliver_released(&mut batch.state, &released, f);
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
    #[inline(always)]
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
    #[inline]
    pub(super) fn deliver(&mut self, datagram: &mut Datagram<'_>, f: impl FnMut(&Datagram<'_>)) {
        self.inbound.deliver(self.state, datagram, f);
    }
}

impl Drop for Received<'_> {
    #[inline]
    fn drop(&mut self) {
        self.inbound.finish(self.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_headers::Controls;
    use crate::sys::ControlList;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

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

    /// Sends a byte with eight copies of `fd`: their control message is as long as those of a
    /// datagram that arrives alone.
    fn send_copies(socket: &UnixDatagram, fd: BorrowedFd<'_>) {
        let mut list = ControlList::new();
        // The kernel merges these.
        for _ in 0..4 {
            list.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, [fd.as_raw_fd(); 2]);
        }
        let mut zero = [0_u8; 1];
        let byte = libc::iovec {
            iov_base: zero.as_mut_ptr().cast(),
            iov_len: 1,
        };
        // SAFETY: zeroes are a valid `msghdr`: it consists of integers and raw pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = (&raw const byte).cast_mut();
        header.msg_iovlen = 1;
        let (control, len) = list.as_list();
        header.msg_control = control;
        header.msg_controllen = len as _;
        // SAFETY: the header points to a byte and a list of control messages, which live through
        // the call, and has their lengths.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, 0) };
        assert_eq!(sent, 1);
    }

    #[test]
    fn descriptors_of_each_message_are_closed() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let mut batch = RecvBatch::new();
        // Of two messages the kernel gives the descriptors the same numbers.
        for _ in 0..2 {
            send_copies(&near, writer.as_fd());
            assert_eq!(batch.fill(far.as_fd()).unwrap(), 1);
            let (mut messages, _) = batch.parts();
            let (message, bytes) = messages.next().unwrap();
            assert_eq!((message.src, bytes.len()), (None, 1));
        }
        send_copies(&near, writer.as_fd());
        assert_eq!(batch.fill(far.as_fd()).unwrap(), 1);
        // This one is not read.
        drop(batch.parts());
        drop(writer);
        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1);
        assert!(fds[0].revents().contains(PollFlags::HUP));
    }

    #[test]
    fn single_datagram_is_that_of_the_split_batch() {
        let bytes: Vec<u8> = (0..=255).collect();
        for segment in [0, 100, 255, 256, 1000] {
            let message = Message {
                src: None,
                controls: Controls {
                    tos: 1,
                    ttl: 64,
                    segment,
                    ..Controls::default()
                },
                len: bytes.len(),
                truncated: false,
            };
            let arrival = Arrival {
                src: "192.0.2.1:49152".parse().unwrap(),
                dst: LocalAddress::new([192, 0, 2, 2].into(), 0),
                message,
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
