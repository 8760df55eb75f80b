//! The path of packets to one peer.

use crate::address::DEFAULT_TTL;
use crate::capture::{CaptureHook, Direction, Record};
use crate::clock;
use crate::counters::NetCounters;
use crate::faults::FaultSpec;
use crate::faults::injector::{self, Injector};
use crate::icrc::sent_id;
use crate::socket::{SOCKET_TRAFFIC_CLASS, TxSocket};
use crate::sync::lock;
use crate::sys::{ControlList, RawAddress, int_option};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_proto::icrc::FlowIcrc;
use urxe_proto::time::Time;

/// Flags of every send: the caller handles a full buffer, and no send may raise SIGPIPE.
pub(super) const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// A path from one local address to one peer: socket, headers, flow. Cloning it is cheap.
#[derive(Clone)]
pub struct Path(Arc<PathInner>);

/// The parameters of a [`Path`] besides its two ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathOptions {
    /// The flow: equal keys get the same UDP source port. A hash of both QPNs is suitable.
    pub flow_key: u32,
    /// The IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// The IPv4 time to live or IPv6 hop limit. With 0 the kernel chooses that of the route or of
    /// the host, and for a multicast group it is [`DEFAULT_TTL`].
    pub hop_limit: u8,
    /// The IPv6 flow label, 20 bits; with 0 the kernel chooses one.
    pub flow_label: u32,
    /// The interface by which a multicast datagram leaves; with 0 the kernel chooses one.
    pub interface: u32,
}

pub(super) struct PathInner {
    pub(super) icrc: FlowIcrc,
    pub(super) sender: Sender,
    faults: Option<Arc<OutboundFaults>>,
}

/// The socket and the headers with which packets of a path are sent.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) socket: Arc<TxSocket>,
    pub(super) outbound: Outbound,
    peer: SocketAddr,
    is_multicast: bool,
    options: PathOptions,
    name: RawAddress,
    /// The control messages of every packet of the path.
    controls: ControlList,
}

/// The counters and the capture of sent packets.
#[derive(Clone)]
pub(super) struct Outbound {
    pub(super) counters: Arc<NetCounters>,
    pub(super) capture: CaptureHook,
}

impl Path {
    pub(super) fn new(
        socket: Arc<TxSocket>,
        (outbound, faults): (Outbound, Option<Arc<OutboundFaults>>),
        (peer, icrc): (SocketAddr, FlowIcrc),
        mut options: PathOptions,
    ) -> Self {
        let is_multicast = peer.ip().is_multicast();
        if options.hop_limit == 0 && is_multicast {
            // Without a control message the kernel would send with a limit of 1.
            options.hop_limit = DEFAULT_TTL;
        }
        let mut controls = ControlList::new();
        let (level, tos, ttl) = match peer.ip() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        if options.traffic_class != SOCKET_TRAFFIC_CLASS {
            controls.push(level, tos, i32::from(options.traffic_class));
        }
        if options.hop_limit != 0 {
            controls.push(level, ttl, i32::from(options.hop_limit));
        }
        Path(Arc::new(PathInner {
            icrc,
            sender: Sender {
                name: RawAddress::new(peer, options.flow_label),
                socket,
                outbound,
                peer,
                is_multicast,
                options,
                controls,
            },
            faults,
        }))
    }

    /// The address and port of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.0.sender.peer
    }

    /// Whether the peer is a multicast group.
    pub fn is_multicast(&self) -> bool {
        self.0.sender.is_multicast
    }

    /// The local address, with the UDP source port.
    pub fn local(&self) -> SocketAddr {
        self.0
            .sender
            .socket
            .address()
            .with_port(self.0.sender.socket.port())
    }

    /// Returns the MTU of the path that the kernel knows, in bytes of an IP packet: the smallest of
    /// those of the interface and the route, and of those that routers have reported by ICMP.
    ///
    /// Packets are sent regardless of reports, which any host can forge.
    ///
    /// # Errors
    /// If the peer is unreachable, or no socket can be opened.
    pub fn known_mtu(&self) -> io::Result<u32> {
        let (domain, level, option) = match self.peer().ip() {
            IpAddr::V4(_) => (Domain::IPV4, libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (Domain::IPV6, libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        // Only a connected socket has a route. It sends nothing.
        let socket = Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP))?;
        let local = self.0.sender.socket.address();
        socket.bind(&local.with_port(0).into())?;
        socket.connect(&self.peer().into())?;
        let mtu = int_option(socket.as_fd(), level, option)?;
        Ok(mtu.max(0).cast_unsigned())
    }

    /// The parameters that the path was created with.
    pub fn options(&self) -> PathOptions {
        self.0.sender.options
    }

    /// The socket that sends.
    pub fn socket(&self) -> &Arc<TxSocket> {
        &self.0.sender.socket
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
            .field("options", &self.0.sender.options)
            .finish_non_exhaustive()
    }
}

impl PathInner {
    /// Whether packets pass through the fault injector.
    pub(super) fn has_faults(&self) -> bool {
        self.faults.is_some()
    }

    /// Whether packets pass to the kernel and nowhere else.
    #[inline]
    pub(super) fn is_direct(&self) -> bool {
        !self.has_faults() && !self.sender.outbound.capture.is_active()
    }

    /// Passes a copy of a sealed packet to the fault injector.
    pub(super) fn send_through_faults(&self, bytes: &[u8]) {
        let Some(faults) = &self.faults else {
            return;
        };
        let packet = Outgoing {
            sender: self.sender.clone(),
            bytes: bytes.to_vec(),
        };
        lock(&faults.0).pass(packet, clock::now(), &mut Outgoing::send);
    }
}

impl Sender {
    /// Returns the header of one message to the kernel. `segment` is 0 for a lone packet. The
    /// header points to the path, the iovec and the control messages.
    #[inline(always)]
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
        self.outbound.capture.record(&Record {
            direction: Direction::Out,
            src: self.socket.address().with_port(self.socket.port()),
            dst: self.peer,
            tos: self.options.traffic_class,
            ttl: match self.options.hop_limit {
                0 => self.socket.hop_limit(),
                hop_limit => hop_limit,
            },
            ip_id: Some(sent_id(id)),
            comment: None,
            bytes,
        });
    }

    /// Passes one message to the kernel. `segment` is 0 for a lone packet.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    #[inline(always)]
    pub(super) fn send(&self, bytes: &[u8], segment: usize) -> io::Result<()> {
        let mut iovec = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut controls = MaybeUninit::uninit();
        let header = self.message(&mut iovec, &mut controls, segment);
        self.outbound.counters.send_calls.add(1);
        // Not through the C library's function, which is a cancellation point.
        // SAFETY: the header's name, iovec, buffer and control messages outlive the call, which
        // only reads them.
        let n = unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                self.socket.fd().as_raw_fd(),
                &raw const header,
                SEND_FLAGS,
            )
        };
        match n {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends one packet, if the socket has space for it.
    pub(super) fn send_one(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.send(bytes, 0) {
                Ok(()) => {
                    let counters = &self.outbound.counters;
                    counters.messages_out.add(1);
                    counters.datagrams_out.add(1);
                    counters.bytes_out.add(bytes.len() as u64);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A fault injector for the packets that are sent over one path or several.
pub(super) struct OutboundFaults(Mutex<Injector<Outgoing>>);

/// The fault injectors of the packets that one endpoint sends.
pub(super) struct EndpointFaults {
    /// The injector for the paths without one of their own.
    common: Option<Arc<OutboundFaults>>,
    of_paths: Mutex<Vec<Weak<OutboundFaults>>>,
    /// Whether there is or was any injector.
    any: AtomicBool,
}

impl EndpointFaults {
    /// Returns the injectors of an endpoint. `spec` applies to all paths without an injector of
    /// their own.
    pub(super) fn new(spec: Option<FaultSpec>, counters: &Arc<NetCounters>) -> EndpointFaults {
        let common = OutboundFaults::new(spec, counters);
        EndpointFaults {
            any: AtomicBool::new(common.is_some()),
            common,
            of_paths: Mutex::default(),
        }
    }

    /// Returns the injector for a path: a new one for `spec`, and the common one without.
    pub(super) fn of_path(
        &self,
        spec: Option<FaultSpec>,
        counters: &Arc<NetCounters>,
    ) -> Option<Arc<OutboundFaults>> {
        if spec.is_none() {
            return self.common.clone();
        }
        let own = OutboundFaults::new(spec, counters)?;
        let mut of_paths = lock(&self.of_paths);
        of_paths.retain(|faults| faults.strong_count() > 0);
        of_paths.push(Arc::downgrade(&own));
        self.any.store(true, Ordering::Relaxed);
        Some(own)
    }

    /// Returns whether packets may be delayed.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn all(&self) -> Vec<Arc<OutboundFaults>> {
        let of_paths = lock(&self.of_paths);
        let of_paths = of_paths.iter().filter_map(Weak::upgrade);
        of_paths.chain(self.common.clone()).collect()
    }

    /// Returns the time at which [`EndpointFaults::release`] has to be called next.
    pub(super) fn next_deadline(&self) -> Time {
        let all = self.all();
        let deadlines = all.iter().map(|faults| lock(&faults.0).next_deadline());
        deadlines.min().unwrap_or(Time::NEVER)
    }

    /// Sends the packets whose injected delay has ended.
    pub(super) fn release(&self, now: Time) {
        for faults in self.all() {
            lock(&faults.0).release(now, &mut Outgoing::send);
        }
    }
}

/// A packet that passes through the fault injector.
#[derive(Clone)]
struct Outgoing {
    sender: Sender,
    bytes: Vec<u8>,
}

impl injector::Packet for Outgoing {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Outgoing {
    /// Sends the packet on its own, so its identification is 0.
    fn send(self) {
        self.sender.capture(0, &self.bytes);
        if let Err(error) = self.sender.send_one(&self.bytes) {
            self.sender.outbound.counters.count_send_error(1, &error);
        }
    }
}

impl OutboundFaults {
    /// Returns the injector, if `spec` applies to sent packets.
    fn new(spec: Option<FaultSpec>, counters: &Arc<NetCounters>) -> Option<Arc<OutboundFaults>> {
        let injector = |spec| Mutex::new(Injector::new(spec, counters.clone()));
        let faults = spec.filter(FaultSpec::sends).map(injector);
        faults.map(|injector| Arc::new(OutboundFaults(injector)))
    }
}
