//! A connection with the peer: made by the connection manager, or by numbers that somebody gives.
//!
//! This speaks the messages itself, one at a time, so that all that the peer sees was decided here.

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

/// The path MTU of our connections: every path has it.
pub const MTU: Mtu = Mtu::B256;

/// READs and atomics that we may have outstanding; we never have more than one.
pub const DEPTH: u8 = 4;

/// How long a message waits for its answer before it is repeated, and how often it is.
const ANSWER: Duration = Duration::from_secs(1);
const TRIES: usize = 8;

/// With these 4 bytes begins what a peer says that grants memory to be tried.
const GRANT: &[u8] = b"urxe";

/// Response times in messages: 4.096 us x 2^20, about 4 s.
const RESPONSE_TIME: u8 = 20;
/// The local ACK timeout: 4.096 us x 2^14, about 67 ms. How long the peer remembers an ended connection.
const ACK_TIMEOUT: u8 = 14;
const HOP_LIMIT: u8 = 64;
const TCP_PORT_OF_NOBODY: u16 = 0;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(
        "nobody answers: does a program listen there, and does the network let UDP port 4791 through?"
    )]
    NoAnswer,
    #[error("the peer refuses the connection: {0}")]
    Rejected(RejectReason),
}

/// Memory that the peer has granted to us, and how long the messages are that it receives.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub addr: u64,
    pub rkey: RKey,
    /// Bytes, all of them for READs, WRITEs and atomics.
    pub len: u32,
    /// Bytes of each receive.
    pub receive: u32,
}

impl Grant {
    /// What the peer's program says when it accepts: `urxe`, then address, key and both lengths, the most
    /// significant byte first.
    pub fn parse(private_data: &[u8]) -> Option<Grant> {
        let rest = private_data.strip_prefix(GRANT)?;
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

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Our queue pair, which exists in our packets alone.
    pub own_qpn: Qpn,
    /// The peer's.
    pub qpn: Qpn,
    /// The first PSN of our requests.
    pub psn: Psn,
    /// What we may do.
    pub grant: Option<Grant>,
    /// Both communication IDs, where it was made by the connection manager.
    pub ids: Option<[u32; 2]>,
}

/// Asks for a connection to whoever listens at `port`. `draw` says the numbers.
pub fn connect(link: &Link, port: u16, draw: &mut super::Draw) -> Result<Connection, ConnectError> {
    let own_id = draw.next_u32() | 1;
    let own_qpn = Qpn::new(draw.random_range(2..0xff_ffff));
    let ip = IpHeader {
        source: (link.address(), TCP_PORT_OF_NOBODY).into(),
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
        remote_response_timeout: RESPONSE_TIME,
        transport: Transport::Rc,
        flow_control: false,
        ece: Ece::default(),
        // Of the peer's requests: there should be none.
        starting_psn: Psn::new(draw.next_u32()),
        local_response_timeout: RESPONSE_TIME,
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
            local_ack_timeout: ACK_TIMEOUT,
            ..Path::default()
        },
        alternate: Path::default(),
        private_data,
    });
    let transaction = u64::from(own_id);
    let answer = ask(link, &req, transaction, |message| match message {
        Message::Rep(rep) if rep.remote_comm_id == own_id => Some(Ok(*rep)),
        Message::Rej(rej) if rej.remote_comm_id == own_id => Some(Err(rej.reason)),
        _ => None,
    })?;
    let rep = answer.map_err(ConnectError::Rejected)?;
    let rtu = Message::Rtu(Rtu {
        local_comm_id: own_id,
        remote_comm_id: rep.local_comm_id,
        private_data: PrivateData::default(),
    });
    say(link, &rtu, transaction)?;
    Ok(Connection {
        own_qpn,
        qpn: rep.qpn,
        // Each end chooses where the other begins (12.7.31).
        psn: rep.starting_psn,
        grant: Grant::parse(&rep.private_data.0),
        ids: Some([own_id, rep.local_comm_id]),
    })
}

/// Ends a connection, if it was made here.
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
    let over = |message: &Message| match message {
        Message::Drep(drep) => (drep.remote_comm_id == own).then_some(()),
        // The peer ends it at the same time; what has ended may also be refused.
        Message::Dreq(dreq) => (dreq.remote_comm_id == own).then_some(()),
        Message::Rej(rej) => (rej.remote_comm_id == own).then_some(()),
        _ => None,
    };
    ask(link, &dreq, u64::from(own) << 1, over)?;
    let drep = Message::Drep(Drep {
        local_comm_id: own,
        remote_comm_id: peer,
        private_data: PrivateData::default(),
    });
    Ok(say(link, &drep, u64::from(own) << 1)?)
}

/// Sends a message until it is answered.
fn ask<T>(
    link: &Link,
    message: &Message,
    transaction: u64,
    answer: impl Fn(&Message) -> Option<T>,
) -> Result<T, ConnectError> {
    for _ in 0..TRIES {
        say(link, message, transaction)?;
        let until = Instant::now() + ANSWER;
        while let Some(arrival) = link.receive(until)? {
            let message = match &arrival {
                Arrival::Packet(bytes) => read(bytes),
                Arrival::Damaged => None,
            };
            if let Some(answer) = message.as_ref().and_then(&answer) {
                return Ok(answer);
            }
        }
    }
    Err(ConnectError::NoAnswer)
}

/// Sends a message to the peer's connection manager.
fn say(link: &Link, message: &Message, transaction: u64) -> Result<(), LinkError> {
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

/// The message in a packet to our queue pair 1.
fn read(bytes: &[u8]) -> Option<Message> {
    let packet = Packet::parse(bytes).ok()?;
    if packet.header.bth.dest_qp != Qpn::GSI {
        return None;
    }
    let (_, message) = Message::parse(packet.payload).ok()?;
    Some(message)
}
