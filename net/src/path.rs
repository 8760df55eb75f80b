//! The path of packets to one peer.

use crate::pcap::{Direction, Record};
use crate::sent_id;
use crate::socket::{TxSocket, USUAL_HOP_LIMIT, USUAL_TRAFFIC_CLASS};
use crate::sys::{ControlList, RawAddress};
use crate::wire::Wire;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use urxe_proto::icrc::FlowIcrc;

/// Flags of every send: the caller handles a full buffer, and no send may raise SIGPIPE.
pub(super) const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// A path from one local address to one peer: socket, headers, flow. Cloning it is cheap.
#[derive(Clone)]
pub struct Path(Arc<PathInner>);

/// The parameters of a [`Path`] besides its two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOptions {
    /// The flow: equal keys get the same UDP source port. A hash of both QPNs is suitable.
    pub flow_key: u32,
    /// The IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// The IPv4 time to live or IPv6 hop limit; 0 means [`super::DEFAULT_TTL`].
    pub hop_limit: u8,
    /// The IPv6 flow label, 20 bits; with 0 the kernel chooses one.
    pub flow_label: u32,
    /// The interface by which a multicast datagram leaves; with 0 the kernel chooses one.
    pub interface: u32,
}

impl Default for PathOptions {
    fn default() -> Self {
        PathOptions {
            flow_key: 0,
            traffic_class: 0,
            hop_limit: super::DEFAULT_TTL,
            flow_label: 0,
            interface: 0,
        }
    }
}

pub(super) struct PathInner {
    pub(super) socket: Arc<TxSocket>,
    pub(super) wire: Arc<Wire>,
    pub(super) peer: SocketAddr,
    pub(super) icrc: FlowIcrc,
    pub(super) options: PathOptions,
    name: RawAddress,
    /// The control messages of every packet of the path.
    controls: ControlList,
}

impl Path {
    pub(super) fn new(
        socket: Arc<TxSocket>,
        wire: Arc<Wire>,
        (peer, icrc): (SocketAddr, FlowIcrc),
        mut options: PathOptions,
    ) -> Self {
        if options.hop_limit == 0 {
            options.hop_limit = super::DEFAULT_TTL;
        }
        let mut controls = ControlList::new();
        let (level, tos, ttl) = match peer.ip() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        if options.traffic_class != USUAL_TRAFFIC_CLASS {
            controls.push(level, tos, i32::from(options.traffic_class));
        }
        let multicast = peer.ip().is_multicast();
        if options.hop_limit != USUAL_HOP_LIMIT || multicast {
            controls.push(level, ttl, i32::from(options.hop_limit));
        }
        Path(Arc::new(PathInner {
            icrc,
            name: RawAddress::new(peer, options.flow_label),
            socket,
            wire,
            peer,
            options,
            controls,
        }))
    }

    /// The address and port of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// The local address, with the UDP source port.
    pub fn local(&self) -> SocketAddr {
        self.0.socket.address().with_port(self.0.socket.port())
    }

    /// The parameters that the path was created with.
    pub fn options(&self) -> PathOptions {
        self.0.options
    }

    /// The socket that sends.
    pub fn socket(&self) -> &Arc<TxSocket> {
        &self.0.socket
    }

    /// Whether both handles refer to one path, not just to equal ones.
    pub(super) fn is(&self, other: &Path) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn inner(&self) -> &PathInner {
        &self.0
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Path")
            .field("local", &self.local())
            .field("peer", &self.peer())
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

impl PathInner {
    /// Returns the header of one message to the kernel. `segment` is 0 for a lone packet. The header
    /// points to the path, the iovec and the control messages.
    pub(super) fn message(
        &self,
        iovec: &mut libc::iovec,
        controls: &mut MaybeUninit<ControlList>,
        segment: usize,
    ) -> libc::msghdr {
        let controls = match segment {
            0 => &self.controls,
            _ => {
                let controls = controls.write(self.controls);
                // A segment is never longer than a group, which fits 16 bits.
                controls.push(libc::IPPROTO_UDP, libc::UDP_SEGMENT, segment as u16);
                controls
            }
        };
        // SAFETY: `msghdr` consists of integers and raw pointers, for which zeroes are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_name, header.msg_namelen) = self.name.as_name();
        header.msg_iov = iovec;
        header.msg_iovlen = 1;
        let (control, len) = controls.as_list();
        header.msg_control = control;
        header.msg_controllen = len as _;
        header
    }

    /// Captures a packet that is sent with identification `id`.
    pub(super) fn capture(&self, id: u16, bytes: &[u8]) {
        self.wire.tap.capture(&Record {
            direction: Direction::Out,
            src: self.socket.address().with_port(self.socket.port()),
            dst: self.peer,
            tos: self.options.traffic_class,
            ttl: self.options.hop_limit,
            ip_id: Some(sent_id(id)),
            comment: None,
            bytes,
        });
    }

    /// Sends one packet, if the socket has room for it.
    pub(super) fn send_one(&self, bytes: &[u8]) -> io::Result<()> {
        let mut iovec = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut controls = MaybeUninit::uninit();
        let header = self.message(&mut iovec, &mut controls, 0);
        loop {
            self.wire.tap.counters.send_calls.add(1);
            // SAFETY: the header's name, iovec, buffer and control messages outlive the call, which
            // only reads them.
            let n = unsafe { libc::sendmsg(self.socket.fd().as_raw_fd(), &header, SEND_FLAGS) };
            if n >= 0 {
                let counters = &self.wire.tap.counters;
                counters.messages_out.add(1);
                counters.datagrams_out.add(1);
                counters.bytes_out.add(bytes.len() as u64);
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
