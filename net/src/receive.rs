//! Receiving many datagrams with one system call.
//!
//! `recvmmsg` fills several buffers, and with `UDP_GRO` each of them holds a batch of datagrams from
//! one sender, which are told apart here. Nothing is allocated a packet.

use crate::socket::LocalAddress;
use crate::sys::{Control, RawAddress, control_int, for_each_control};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use urxe_proto::icrc::{self, Flow, FlowIcrc, IcrcError, IpId};

/// How many messages one call takes.
const MESSAGES: usize = 8;

/// Room for one message: the largest GRO batch, with the header of a forwarded one before it.
const MESSAGE_ROOM: usize = (64 << 10) + 256;

/// One RoCE packet as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it. The port is the sender's choice, and usually the same for all of a connection.
    pub src: SocketAddr,
    /// The address of this host that it came to.
    pub dst: LocalAddress,
    /// The IPv4 type of service, or the IPv6 traffic class. The low two bits are ECN.
    pub tos: u8,
    /// The IPv4 time to live, or the IPv6 hop limit, that was left.
    pub ttl: u8,
    /// The position in the batch that the kernel passed up: where the sender's batch crossed the
    /// kernel whole, this is the IPv4 identification it has.
    pub index: u16,
    /// Whether the batch starts with it. Only these are steered by the kernel.
    pub first_of_batch: bool,
    /// Another process received it, and passed it on.
    pub passed_on: bool,
    /// The IPv4 identification that the ICRC was made with; `None` for IPv6, and before the ICRC
    /// was verified.
    pub ip_id: Option<IpId>,
    /// The UDP payload: from the BTH to the ICRC, which is the last four bytes.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// From the BTH to the end of the pad.
    pub fn packet(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(icrc::LEN);
        &self.bytes[..end]
    }
}

/// What came with one message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) src: RawAddress,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The length of each datagram but the last; 0 when there is just one.
    pub(super) segment: usize,
    pub(super) len: usize,
    /// Did not fit: what is there is not all.
    pub(super) truncated: bool,
}

/// Buffers for one receive call. A thread has one and uses it for every socket.
pub struct RecvBatch {
    buffers: Vec<u8>,
    names: Vec<RawAddress>,
    controls: Vec<Control>,
    messages: Vec<Message>,
    /// How many messages the next call asks for.
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
    /// Half a MiB of buffers, of which only what is received into is ever touched.
    pub fn new() -> Self {
        RecvBatch {
            buffers: vec![0; MESSAGES * MESSAGE_ROOM],
            names: vec![RawAddress::empty(); MESSAGES],
            controls: vec![Control::new(); MESSAGES],
            messages: Vec::with_capacity(MESSAGES),
            wanted: 1,
            senders: Senders::new(),
        }
    }

    /// Fills the batch anew. 0 when nothing is there.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.messages.clear();
        let mut iovecs: [MaybeUninit<libc::iovec>; MESSAGES] = [MaybeUninit::uninit(); MESSAGES];
        // SAFETY: all zeroes is a valid mmsghdr.
        let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { std::mem::zeroed() };
        let rooms = self
            .buffers
            .chunks_exact_mut(MESSAGE_ROOM)
            .zip(&mut self.names)
            .zip(&mut self.controls);
        for ((header, iovec), ((room, name), control)) in headers
            .iter_mut()
            .zip(&mut iovecs)
            .zip(rooms)
            .take(self.wanted)
        {
            let iovec = iovec.write(libc::iovec {
                iov_base: room.as_mut_ptr().cast(),
                iov_len: room.len(),
            });
            let header = &mut header.msg_hdr;
            (header.msg_name, header.msg_namelen) = name.as_room();
            header.msg_iov = iovec;
            header.msg_iovlen = 1;
            let (control, len) = control.as_room();
            header.msg_control = control;
            header.msg_controllen = len as _;
        }
        let count = loop {
            // The C library's function is a point where a thread may be cancelled, which must not
            // happen here, and costs time.
            // SAFETY: the first `wanted` headers point to a name, an iovec, a buffer and a control
            // buffer that live through the call, with their lengths.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    fd.as_raw_fd(),
                    headers.as_mut_ptr(),
                    self.wanted as libc::c_uint,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            if let Ok(n) = usize::try_from(n) {
                break n;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => {
                    self.wanted = (self.wanted / 2).max(1);
                    return Ok(0);
                }
                _ => return Err(error),
            }
        };
        // To find that there is no second message takes the kernel a third of what one takes: where they come
        // one by one, one is asked for.
        self.wanted = match count == self.wanted {
            true => (2 * count).min(MESSAGES),
            false => count.max(self.wanted / 2),
        };
        for (header, name) in headers.iter().zip(&self.names).take(count) {
            let mut message = Message {
                // A Unix socket without a name leaves what was there.
                src: match header.msg_hdr.msg_namelen {
                    0 => RawAddress::empty(),
                    _ => *name,
                },
                tos: 0,
                ttl: 0,
                segment: 0,
                len: (header.msg_len as usize).min(MESSAGE_ROOM),
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            };
            // SAFETY: recvmmsg filled the header and its control buffer, which nobody has touched.
            unsafe {
                for_each_control(&header.msg_hdr, |level, kind, value| {
                    message.take_control(level, kind, value);
                });
            }
            self.messages.push(message);
        }
        Ok(count)
    }

    /// The messages of the last [`RecvBatch::fill`] with their bytes, and the senders beside them.
    pub(super) fn parts(&mut self) -> (impl Iterator<Item = (&Message, &[u8])>, &mut Senders) {
        let messages = self
            .messages
            .iter()
            .zip(self.buffers.chunks_exact(MESSAGE_ROOM))
            .map(|(message, buffer)| (message, &buffer[..message.len]));
        (messages, &mut self.senders)
    }
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
                // Before Linux 6.16 a process of this user may send some. None does, so they are
                // closed.
                for fd in value.chunks_exact(4) {
                    // SAFETY: the kernel has just installed this descriptor for us alone.
                    unsafe { libc::close(control_int(fd)) };
                }
            }
            _ => {}
        }
    }
}

/// A datagram that is put aside.
#[derive(Clone, Debug)]
pub struct Kept {
    src: SocketAddr,
    dst: LocalAddress,
    tos: u8,
    ttl: u8,
    index: u16,
    /// Its bytes.
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
    /// It as it came, but that how it came is forgotten.
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

/// Datagrams of one sender that the kernel, or another process, passed on as one.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub(super) src: SocketAddr,
    pub(super) dst: LocalAddress,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The position of the first one in the kernel's batch.
    pub(super) first_index: u16,
    /// The length of each datagram but the last; 0 when there is just one.
    pub(super) segment: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Arrival<'a> {
    /// The datagrams: the bytes cut at every `segment`.
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

/// What the senders heard last have in common with their next packet: the constant part of the ICRC,
/// and the habit by which they number packets.
///
/// The ICRC tells the identification of any packet; a right guess saves work and makes the check as
/// sure as it can be. Senders like this one number each batch from 0; NICs and rxe count on.
///
/// All of those set «don't fragment», and from a sender that does not, the first packet is lost: else
/// certain single wrong bits would pass (see [`urxe_proto::icrc`]).
pub(super) struct Senders {
    known: Vec<Option<Sender>>,
    /// What of them was right, and is not counted yet.
    pub(super) tally: Tally,
}

/// Datagrams, and their bytes.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
}

/// A power of two, for [`Senders::slot`].
const SENDERS: usize = 256;

#[derive(Clone, Copy)]
struct Sender {
    src: SocketAddr,
    dst: IpAddr,
    icrc: FlowIcrc,
    last: IpId,
    counts_on: bool,
    /// Whether the last packet would have been right had the sender's «don't fragment» changed.
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

    /// Checks the ICRC of a datagram, and notes its identification, which comes back.
    pub(super) fn verify(&mut self, datagram: &Datagram<'_>) -> Result<Option<IpId>, IcrcError> {
        let (src, dst) = (datagram.src, datagram.dst.ip());
        let entry = &mut self.known[Self::slot(src)];
        let sender = match entry {
            Some(sender) if sender.src == src && sender.dst == dst => sender,
            _ => {
                let Some(flow) = Flow::new(src, SocketAddr::new(dst, super::ROCE_PORT)) else {
                    // The kernel does not mix families on one socket; a forwarder might.
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
            // One damaged packet of many looks like that. Two in a row are a sender with another habit.
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

    /// A packet of 1040 bytes whose sender numbers it `id`, with `damage` in its byte 173.
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
