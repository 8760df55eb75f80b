//! Receiving: one system call for many datagrams.
//!
//! `recvmmsg` fills several buffers. With `UDP_GRO` each holds a batch of datagrams of one sender,
//! which this module splits.

use crate::address::LocalAddress;
use crate::datagram::Datagram;
use crate::icrc::SenderCache;
use crate::message_headers::{MESSAGE_SIZE, Message, MessageHeaders};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The maximum number of messages per call.
const MESSAGES: usize = 8;

/// Buffers for one receive call. The pages that no message has needed take no memory.
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

    /// Returns the messages of the last [`RecvBatch::fill`] with their bytes, and the state of
    /// [`Inbound`](crate::inbound::Inbound).
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
    pub(super) src: SocketAddr,
    pub(super) dst: LocalAddress,
    pub(super) message: Message,
    pub(super) bytes: &'a [u8],
}

impl<'a> Arrival<'a> {
    /// Whether the message is one datagram.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        let segment = usize::from(self.message.controls.segment);
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
            segment: usize::from(self.message.controls.segment),
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
#[inline]
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

/// The state of [`Inbound`](crate::inbound::Inbound) that each receiving thread has for itself.
pub(super) struct InboundState {
    pub(super) senders: SenderCache,
    pub(super) tally: ReceiveCounts,
}

/// Datagrams with a correct ICRC that the counters do not include yet. Counting each by itself
/// would make the processor wait for the stores of the one before.
#[derive(Default)]
pub(super) struct ReceiveCounts {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
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
