//! Receiving many datagrams with one system call.
//!
//! `recvmmsg` fills several buffers. With `UDP_GRO` each holds a batch of datagrams of one sender,
//! which this module splits. Nothing is allocated per packet.

use crate::socket::LocalAddress;
use crate::sys::{Control, RawAddress, control_int, for_each_control};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use urxe_proto::icrc::{self, Flow, FlowIcrc, IcrcError, IpId};

/// The maximum number of messages per call.
const MESSAGES: usize = 8;

/// The buffer size for one message: the largest GRO batch behind the header of a forwarded one.
const MESSAGE_ROOM: usize = (64 << 10) + 256;

/// One RoCE packet as it arrived.
#[derive(Clone, Copy, Debug)]
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
    pub passed_on: bool,
    /// The IPv4 identification that the ICRC was computed with; `None` for IPv6, and before the
    /// ICRC is verified.
    pub ip_id: Option<IpId>,
    /// The UDP payload: from the BTH to the ICRC, which is the last four bytes.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Returns the bytes from the BTH to the end of the pad.
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
    rooms: Rooms,
    messages: Vec<Message>,
    /// The number of messages that the next call asks for.
    wanted: usize,
    senders: Senders,
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
        let mut buffers = vec![0; MESSAGES * MESSAGE_ROOM];
        RecvBatch {
            rooms: Rooms::new(&mut buffers),
            buffers,
            messages: Vec::with_capacity(MESSAGES),
            wanted: 1,
            senders: Senders::new(),
        }
    }

    /// Receives into the batch. Returns the number of messages, 0 when there is none.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.messages.clear();
        let count = loop {
            // Not through the C library's function, which is a cancellation point and costs time.
            // SAFETY: the first `wanted` headers, at most `MESSAGES`, point to a name, an iovec, a
            // buffer and a control buffer, and hold their lengths (see `Rooms`). All of them
            // outlive the call, and no reference to them exists.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    fd.as_raw_fd(),
                    self.rooms.headers.as_mut_ptr(),
                    self.wanted as libc::c_uint,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            if let Ok(n) = usize::try_from(n) {
                break n;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => {
                    self.wanted = (self.wanted / 2).max(1);
                    return Ok(0);
                }
                _ => return Err(error),
            }
        };
        // When no second message is queued, finding that out costs the kernel a third of the time
        // of a receive. So where messages arrive one by one, the next call asks for one.
        self.wanted = match count == self.wanted {
            true => (2 * count).min(MESSAGES),
            false => count.max(self.wanted / 2),
        };
        for room in 0..count {
            // SAFETY: recvmmsg has just filled the first `count` rooms.
            self.messages.push(unsafe { self.rooms.take(room) });
        }
        Ok(count)
    }

    /// Returns the messages of the last [`RecvBatch::fill`] with their bytes, and the known
    /// senders.
    pub(super) fn parts(&mut self) -> (impl Iterator<Item = (&Message, &[u8])>, &mut Senders) {
        let messages = self
            .messages
            .iter()
            .zip(self.buffers.chunks_exact(MESSAGE_ROOM))
            .map(|(message, buffer)| (message, &buffer[..message.len]));
        (messages, &mut self.senders)
    }
}

/// The headers that recvmmsg(2) fills, and the names and control messages that they point to.
///
/// Between two calls every header is ready, so that a receive sets nothing up: of those that it
/// fills the kernel changes lengths and flags, and [`Rooms::take`] restores the lengths.
struct Rooms {
    headers: Vec<libc::mmsghdr>,
    /// Owned here, and accessed through the headers only. They are never reallocated.
    _parts: (Vec<libc::iovec>, Vec<RawAddress>, Vec<Control>),
}

// SAFETY: the raw pointers in the headers and iovecs point to heap memory that this value owns, or
// that the batch owns which owns this value. They are used only with exclusive access to both.
// Nothing about that memory depends on the thread.
unsafe impl Send for Rooms {}

impl Rooms {
    /// Creates a header for each part of `buffers` that holds a message. `buffers` must live as
    /// long as this value, in the same place.
    fn new(buffers: &mut [u8]) -> Self {
        let mut iovecs: Vec<_> = buffers
            .chunks_exact_mut(MESSAGE_ROOM)
            .map(|room| libc::iovec {
                iov_base: room.as_mut_ptr().cast(),
                iov_len: room.len(),
            })
            .collect();
        let mut names = vec![RawAddress::empty(); iovecs.len()];
        let mut controls = vec![Control::new(); iovecs.len()];
        let of = (
            iovecs.as_mut_ptr(),
            names.as_mut_ptr(),
            controls.as_mut_ptr(),
        );
        let header = |room| {
            // SAFETY: `mmsghdr` consists of integers and raw pointers, for which zeroes are valid.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = of.0.wrapping_add(room);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = of.1.wrapping_add(room).cast();
            header.msg_hdr.msg_control = of.2.wrapping_add(room).cast();
            make_ready(&mut header.msg_hdr);
            header
        };
        Rooms {
            headers: (0..iovecs.len()).map(header).collect(),
            _parts: (iovecs, names, controls),
        }
    }

    /// Returns the metadata of the message that the kernel stored in a room, and makes the room
    /// ready for the next one.
    ///
    /// # Safety
    /// The last recvmmsg(2) must have filled the room, and `take` not been called for it since.
    unsafe fn take(&mut self, room: usize) -> Message {
        let header = &mut self.headers[room];
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
            len: (header.msg_len as usize).min(MESSAGE_ROOM),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        // SAFETY: recvmmsg has filled the header and its control buffer, and neither has been
        // modified since: this function's contract, section Safety.
        unsafe {
            for_each_control(&header.msg_hdr, |level, kind, value| {
                message.take_control(level, kind, value);
            });
        }
        make_ready(&mut header.msg_hdr);
        message
    }
}

/// Sets the lengths that a receive overwrites.
fn make_ready(header: &mut libc::msghdr) {
    header.msg_namelen = RawAddress::ROOM;
    header.msg_controllen = Control::ROOM as _;
}

impl Message {
    fn take_control(&mut self, level: i32, kind: i32, value: &[u8]) {
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

/// A stored copy of a datagram.
#[derive(Clone, Debug)]
pub struct Kept {
    src: SocketAddr,
    dst: LocalAddress,
    tos: u8,
    ttl: u8,
    index: u16,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

impl From<&Datagram<'_>> for Kept {
    fn from(datagram: &Datagram<'_>) -> Self {
        Kept {
            src: datagram.src,
            dst: datagram.dst,
            tos: datagram.tos,
            ttl: datagram.ttl,
            index: datagram.index,
            bytes: datagram.bytes.to_vec(),
        }
    }
}

impl Kept {
    /// Returns the datagram, without its flags (`first_of_batch`, `passed_on`) and identification.
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            src: self.src,
            dst: self.dst,
            tos: self.tos,
            ttl: self.ttl,
            index: self.index,
            first_of_batch: false,
            passed_on: false,
            ip_id: None,
            bytes: &self.bytes,
        }
    }
}

/// Datagrams of one sender that the kernel or another process delivered as one message.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
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

impl<'a> Arrival<'a> {
    /// Returns the datagrams: the bytes cut at every `segment`.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'a>> + use<'a> {
        let this = *self;
        let segment = if self.segment == 0 {
            self.bytes.len()
        } else {
            self.segment
        };
        self.bytes
            .chunks(segment.max(1))
            .zip(0_u16..)
            .map(move |(bytes, i)| Datagram {
                src: this.src,
                dst: this.dst,
                tos: this.tos,
                ttl: this.ttl,
                index: this.first_index.wrapping_add(i),
                first_of_batch: this.first_index == 0 && i == 0,
                passed_on: false,
                ip_id: None,
                bytes,
            })
    }
}

/// A cache of recent senders: the constant part of their ICRC, and how each numbers its packets.
///
/// The ICRC reveals the identification of any packet. A correct guess saves work and gives the
/// check its full strength. Senders like this one number each batch from 0; NICs and rxe count
/// upwards.
///
/// All of them set «don't fragment». From a sender that does not, the first packet is dropped:
/// otherwise certain single-bit errors would pass (see [`urxe_proto::icrc`]).
pub(super) struct Senders {
    known: Vec<Option<Sender>>,
    /// Datagrams with a correct ICRC that the counters do not include yet.
    pub(super) tally: Tally,
}

/// A number of datagrams, and of their bytes.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
}

/// The number of cache entries: a power of two, for [`Senders::slot`].
const SENDERS: usize = 256;

#[derive(Clone, Copy)]
struct Sender {
    src: SocketAddr,
    dst: IpAddr,
    icrc: FlowIcrc,
    last: IpId,
    counts_on: bool,
    /// Whether the last packet failed, but would have passed with «don't fragment» inverted.
    flags_in_doubt: bool,
}

impl Senders {
    fn new() -> Self {
        Senders {
            known: vec![None; SENDERS],
            tally: Tally::default(),
        }
    }

    fn slot(src: SocketAddr) -> usize {
        let ip = match src.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() as u64,
        };
        // Fibonacci hashing: the top bits of the product are the best mixed.
        let hash = ((ip << 16) ^ u64::from(src.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - SENDERS.trailing_zeros())) as usize
    }

    /// Verifies the ICRC of a datagram, records and returns its identification.
    pub(super) fn verify(&mut self, datagram: &Datagram<'_>) -> Result<Option<IpId>, IcrcError> {
        let (src, dst) = (datagram.src, datagram.dst.ip());
        let entry = &mut self.known[Self::slot(src)];
        let sender = match entry {
            Some(sender) if sender.src == src && sender.dst == dst => sender,
            _ => {
                let Some(flow) = Flow::new(src, SocketAddr::new(dst, super::ROCE_PORT)) else {
                    // The kernel does not mix families on one socket, but a forwarded message may.
                    return Err(IcrcError::Length(datagram.bytes.len()));
                };
                entry.insert(Sender {
                    src,
                    dst,
                    icrc: FlowIcrc::new(&flow),
                    last: super::sent_id(0),
                    counts_on: false,
                    flags_in_doubt: false,
                })
            }
        };
        let guess = IpId {
            id: if sender.counts_on {
                sender.last.id.wrapping_add(1)
            } else {
                datagram.index
            },
            dont_fragment: sender.last.dont_fragment,
        };
        let id = if sender.flags_in_doubt {
            sender.icrc.verify(datagram.bytes, guess)?
        } else {
            let known = sender.icrc.verify_known_sender(datagram.bytes, guess);
            // One damaged packet can have this effect. Two in a row mean that the sender differs.
            sender.flags_in_doubt =
                known.is_err() && sender.icrc.verify(datagram.bytes, guess).is_ok();
            known?
        };
        sender.flags_in_doubt = false;
        sender.last = id;
        sender.counts_on = id.id != datagram.index;
        Ok(src.is_ipv4().then_some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(bytes: &[u8], segment: usize) -> Arrival<'_> {
        Arrival {
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
    fn a_batch_is_cut_into_equal_datagrams_and_a_shorter_last_one() {
        let bytes: Vec<u8> = (0..=255).collect();
        let parts: Vec<_> = arrival(&bytes, 100).datagrams().collect();
        let lengths: Vec<_> = parts.iter().map(|d| d.bytes.len()).collect();
        assert_eq!(lengths, [100, 100, 56]);
        assert_eq!(parts[2].index, 2);
        assert!(parts[0].first_of_batch && !parts[1].first_of_batch);
        assert_eq!(parts[1].bytes[0], 100);
        assert_eq!(arrival(&bytes, 0).datagrams().count(), 1);
        assert_eq!(arrival(&[], 0).datagrams().count(), 0);
    }

    #[test]
    fn identifications_are_found_whatever_the_sender_s_habit() {
        let mut senders = Senders::new();
        let mut packet = vec![0; 64];
        let flow = Flow::new(
            "192.0.2.1:49152".parse().unwrap(),
            "192.0.2.2:4791".parse().unwrap(),
        );
        let icrc = FlowIcrc::new(&flow.unwrap());
        for id in [0, 0x718c, 0x718d, 9] {
            let id = IpId {
                id,
                dont_fragment: true,
            };
            let sum = icrc.compute(id, &packet[..60]);
            packet[60..].copy_from_slice(&sum);
            let batch = arrival(&packet, 0);
            let datagram = batch.datagrams().next().unwrap();
            assert_eq!(senders.verify(&datagram), Ok(Some(id)));
        }
        packet[20] ^= 1;
        let batch = arrival(&packet, 0);
        let datagram = batch.datagrams().next().unwrap();
        assert!(senders.verify(&datagram).is_err());
    }

    /// Returns a packet of 1040 bytes with the identification `id`, and byte 173 XORed with
    /// `damage`.
    fn packet(id: IpId, damage: u8) -> Vec<u8> {
        let mut packet = vec![0; 1040];
        let flow = Flow::new(
            "192.0.2.1:49152".parse().unwrap(),
            "192.0.2.2:4791".parse().unwrap(),
        );
        let sum = FlowIcrc::new(&flow.unwrap()).compute(id, &packet[..1036]);
        packet[1036..].copy_from_slice(&sum);
        packet[173] ^= damage;
        packet
    }

    fn is_accepted(senders: &mut Senders, packet: &[u8]) -> bool {
        let batch = arrival(packet, 0);
        senders.verify(&batch.datagrams().next().unwrap()).is_ok()
    }

    #[test]
    fn any_single_wrong_bit_is_found_whatever_came_before() {
        let mut senders = Senders::new();
        for number in 0..8 {
            let id = |id| IpId {
                id,
                dont_fragment: true,
            };
            for bit in 0..8 {
                assert!(!is_accepted(
                    &mut senders,
                    &packet(id(number * 10 + bit), 1 << bit)
                ));
                assert!(is_accepted(
                    &mut senders,
                    &packet(id(number * 10 + bit + 1), 0)
                ));
            }
        }
    }

    #[test]
    fn a_sender_without_dont_fragment_loses_one_packet() {
        let mut senders = Senders::new();
        let id = |id| IpId {
            id,
            dont_fragment: false,
        };
        assert!(!is_accepted(&mut senders, &packet(id(5), 0)));
        for number in 6..20 {
            assert!(is_accepted(&mut senders, &packet(id(number), 0)));
        }
    }
}
