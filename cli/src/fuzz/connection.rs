//! A connection with the peer: made by the connection manager's messages, or given by its numbers.
//!
//! The messages are sent here, one at a time, without urxe's own connection manager, so that the
//! peer receives only packets that the fuzzer intends.

use std::time::{Duration, Instant};

use rand::{Rng as _, RngExt as _};
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::cm::wire::{
    Drep, Dreq, Ece, IpHeader, Message, Path, PortSpace, PrivateData, RejectReason, Req, Rtu,
    ServiceId, Transport, path,
};
use urxe_proto::ids::{PKey, QKey, Qpn, RKey};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Deth, Header, Opcode, Packet};

use super::link::{Arrival, Link, LinkError};
use super::rng::TestRng;

/// The path MTU of the connections: the smallest, which every path supports.
pub const MTU: Mtu = Mtu::B256;

/// The advertised number of outstanding READs and atomics. The fuzzer never has more than one.
pub const DEPTH: u8 = 4;

/// The time after which a message of the connection manager is sent again.
const RETRANSMISSION_INTERVAL: Duration = Duration::from_secs(1);
/// The number of transmissions of a message.
const MAX_TRANSMISSIONS: usize = 8;

/// The first bytes of private data that grants memory.
const GRANT_MAGIC: &[u8] = b"urxe";

/// The exponent of the response timeout in messages: 4.096 us x 2^20, about 4 s.
const RESPONSE_TIMEOUT_EXPONENT: u8 = 20;
/// The exponent of the local ACK timeout: 4.096 us x 2^14, about 67 ms. It also limits the peer's
/// time wait state.
const ACK_TIMEOUT_EXPONENT: u8 = 14;
const HOP_LIMIT: u8 = 64;
const SOURCE_PORT: u16 = 0;

/// An error that prevents a connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(
        "no response: check that a program listens there and that the network passes UDP port 4791"
    )]
    NoResponse,
    #[error("the peer rejects the connection: {0}")]
    Rejected(RejectReason),
}

/// Memory that the peer grants for tests, and the size of its receive buffers.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub addr: u64,
    pub rkey: RKey,
    /// The length in bytes, for READs, WRITEs and atomics.
    pub len: u32,
    /// The size of each receive buffer in bytes.
    pub receive: u32,
}

impl Grant {
    /// Parses the private data of a REP: `urxe`, then address, key and both lengths in network byte
    /// order.
    pub fn parse(private_data: &[u8]) -> Option<Grant> {
        let rest = private_data.strip_prefix(GRANT_MAGIC)?;
        let (addr, rest) = rest.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (receive, _) = rest.split_first_chunk()?;
        Some(Grant {
            addr: u64::from_be_bytes(*addr),
            rkey: RKey(u32::from_be_bytes(*rkey)),
            len: u32::from_be_bytes(*len),
            receive: u32::from_be_bytes(*receive),
        })
    }
}

/// An established connection.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The local queue pair number, which exists only in packets.
    pub own_qpn: Qpn,
    /// The peer's queue pair number.
    pub qpn: Qpn,
    /// The first PSN of requests to the peer.
    pub psn: Psn,
    /// The granted memory, if any.
    pub grant: Option<Grant>,
    /// The local and the remote communication ID, if the connection manager's messages were used.
    pub ids: Option<[u32; 2]>,
}

/// Connects to the listener at `port`, with random numbers from `rng`.
pub fn connect(link: &Link, port: u16, rng: &mut TestRng) -> Result<Connection, ConnectError> {
    // Not 0: an ID of 0 means none.
    let own_id = rng.next_u32() | 1;
    let own_qpn = Qpn::new(rng.random_range(2..0xff_ffff));
    let ip = IpHeader {
        source: (link.address(), SOURCE_PORT).into(),
        destination: link.peer_gid().to_ip(),
    };
    let private_data = PrivateData::new(&ip.to_bytes()).unwrap_or_default();
    let req = Message::Req(Req {
        local_comm_id: own_id,
        service: ServiceId::of_port(PortSpace::Tcp, port),
        ca_guid: u64::from_be_bytes(*b"urxefuzz"),
        qkey: QKey(0),
        qpn: own_qpn,
        responder_resources: DEPTH,
        initiator_depth: DEPTH,
        remote_response_timeout: RESPONSE_TIMEOUT_EXPONENT,
        transport: Transport::Rc,
        flow_control: false,
        ece: Ece::default(),
        // The PSN of the peer's requests, of which there are none.
        starting_psn: Psn::new(rng.next_u32()),
        local_response_timeout: RESPONSE_TIMEOUT_EXPONENT,
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu: MTU as u8,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        primary: Path {
            local_lid: path::LID_PERMISSIVE,
            remote_lid: path::LID_PERMISSIVE,
            local_gid: link.gid(),
            remote_gid: link.peer_gid(),
            hop_limit: HOP_LIMIT,
            local_ack_timeout: ACK_TIMEOUT_EXPONENT,
            ..Path::default()
        },
        alternate: Path::default(),
        private_data,
    });
    let transaction = u64::from(own_id);
    let response = transact(link, &req, transaction, |_, message| match message {
        Message::Rep(rep) if rep.remote_comm_id == own_id => Some(Ok(*rep)),
        Message::Rej(rej) if rej.remote_comm_id == own_id => Some(Err(rej.reason)),
        _ => None,
    })?;
    let rep = response.map_err(ConnectError::Rejected)?;
    let rtu = Message::Rtu(Rtu {
        local_comm_id: own_id,
        remote_comm_id: rep.local_comm_id,
        private_data: PrivateData::default(),
    });
    // Not sent again if it is lost: the first request establishes the connection instead.
    send(link, &rtu, transaction)?;
    Ok(Connection {
        own_qpn,
        qpn: rep.qpn,
        // Each end chooses the starting PSN of the other end's requests (12.7.31).
        psn: rep.starting_psn,
        grant: Grant::parse(&rep.private_data.0),
        ids: Some([own_id, rep.local_comm_id]),
    })
}

/// Disconnects a connection that [`connect`] made. A peer that does not answer counts as
/// disconnected.
pub fn disconnect(link: &Link, connection: &Connection) -> Result<(), ConnectError> {
    let Some([own, peer]) = connection.ids else {
        return Ok(());
    };
    let dreq = Message::Dreq(Dreq {
        local_comm_id: own,
        remote_comm_id: peer,
        remote_qpn: connection.qpn,
        private_data: PrivateData::default(),
    });
    // The transaction ID of the peer's DREQ, if both disconnect at the same time. A REJ is possible
    // for an ended connection.
    let end = |transaction, message: &Message| match message {
        Message::Drep(drep) => (drep.remote_comm_id == own).then_some(None),
        Message::Dreq(dreq) => (dreq.remote_comm_id == own).then_some(Some(transaction)),
        Message::Rej(rej) => (rej.remote_comm_id == own).then_some(None),
        _ => None,
    };
    // Another transaction than that of the REQ.
    let dreq_of_peer = match transact(link, &dreq, u64::from(own) << 1, end) {
        // The peer's process may have ended.
        Err(ConnectError::NoResponse) => None,
        ended => ended?,
    };
    if let Some(transaction) = dreq_of_peer {
        let drep = Message::Drep(Drep {
            local_comm_id: own,
            remote_comm_id: peer,
            private_data: PrivateData::default(),
        });
        send(link, &drep, transaction)?;
    }
    Ok(())
}

/// Sends a message until a response arrives. `response` selects it, by its transaction ID and
/// message.
fn transact<T>(
    link: &Link,
    message: &Message,
    transaction: u64,
    response: impl Fn(u64, &Message) -> Option<T>,
) -> Result<T, ConnectError> {
    for _ in 0..MAX_TRANSMISSIONS {
        send(link, message, transaction)?;
        let deadline = Instant::now() + RETRANSMISSION_INTERVAL;
        while let Some(arrival) = link.receive(deadline)? {
            let message = match &arrival {
                Arrival::Packet(bytes) => parse(bytes),
                Arrival::WrongIcrc => None,
            };
            let response = message.and_then(|(id, message)| response(id, &message));
            if let Some(response) = response {
                return Ok(response);
            }
        }
    }
    Err(ConnectError::NoResponse)
}

/// Sends a message to the peer's connection manager.
fn send(link: &Link, message: &Message, transaction: u64) -> Result<(), LinkError> {
    let packet = Packet {
        header: Header::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0)).with_deth(Deth {
            qkey: GSI_QKEY,
            src_qp: Qpn::GSI,
        }),
        payload: &message.to_mad(transaction),
    };
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes);
    link.send(&bytes, true)
}

/// Parses a packet to queue pair 1. Returns the message and its transaction ID.
fn parse(bytes: &[u8]) -> Option<(u64, Message)> {
    let packet = Packet::parse(bytes).ok()?;
    if packet.header.bth.dest_qp != Qpn::GSI {
        return None;
    }
    Message::parse(packet.payload).ok()
}
