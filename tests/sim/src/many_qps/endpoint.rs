//! One endpoint: a queue pair of any service, and the state of the program that uses it.

use crate::host::SimHost;
use crate::sink::Sink;
use std::collections::VecDeque;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey, Qpn, Source};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType, transitions_to_rts};
use urxe_proto::queue::{PostError, SendQueueSize};
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::uc::{UcConfig, UcQp};
use urxe_proto::ud::{NetworkHeader, UdConfig, UdQp};
use urxe_proto::wire::Packet;
use urxe_proto::work::SendWr;

/// The queue key of all datagram queue pairs.
pub const QKEY: QKey = QKey(0x1234);

/// The number of bytes between flow-control probes of an unreliable connection: a few packets.
const PROBE_INTERVAL: u32 = 2048;

/// The UDP source port of all packets.
const SOURCE_PORT: u16 = 0xc000;

/// The limits of a send queue.
const SENDS: SendQueueSize = SendQueueSize {
    max_wr: 8,
    max_sge: 1,
    max_inline: 8192,
};
/// The maximum in-flight data of a reliable connection, in packets.
const WINDOW: u32 = 32;
/// The limit of a reliable connection's out-of-order queue, in packets.
pub const OUT_OF_ORDER_PACKETS: u32 = 7;

/// A queue pair of any service.
pub enum Qp {
    Rc(Box<RcQp>),
    Uc(Box<UcQp>),
    Ud(Box<UdQp>),
}

/// The attributes that connect a queue pair to its peer.
pub struct ConnectionAttributes {
    pub service: QpType,
    pub mtu: Mtu,
    pub qpn: Qpn,
    pub psn: Psn,
    /// The peer's QPN, first PSN and address; unused by datagram queue pairs.
    pub peer: (Qpn, Psn, Gid),
    pub timeout: u8,
}

impl Qp {
    /// Returns a queue pair in RTS.
    pub fn new_in_rts(attributes: &ConnectionAttributes, now: Time, host: &mut SimHost) -> Qp {
        let ConnectionAttributes { qpn, mtu, .. } = *attributes;
        let mut qp = match attributes.service {
            QpType::Rc => Qp::Rc(Box::new(
                RcQp::new(RcConfig {
                    service: QpType::Rc,
                    qpn,
                    send: SENDS,
                    signal_all: true,
                    window: WindowLimits::fixed(WINDOW * mtu.bytes() as u32),
                    out_of_order_bytes: OUT_OF_ORDER_PACKETS * mtu.bytes() as u32,
                    congestion: Algorithm::default(),
                })
                .expect("memory"),
            )),
            QpType::Uc => {
                let config = UcConfig {
                    qpn,
                    send: SENDS,
                    signal_all: true,
                };
                let mut qp = UcQp::new(config).expect("memory");
                // Some queue pairs send probes, others only echo them.
                qp.set_probe_interval(if qpn.get() % 2 == 0 {
                    PROBE_INTERVAL
                } else {
                    0
                });
                Qp::Uc(Box::new(qp))
            }
            _ => Qp::Ud(Box::new(
                UdQp::new(UdConfig {
                    qpn,
                    send: SENDS,
                    signal_all: true,
                    mtu,
                })
                .expect("memory"),
            )),
        };
        for (attr, mask) in steps(attributes) {
            qp.modify(&attr, mask, now, host);
        }
        qp
    }

    pub fn modify(&mut self, attr: &QpAttr, mask: AttrMask, now: Time, host: &mut SimHost) {
        let mask = mask | AttrMask::STATE;
        let modified = match self {
            Self::Rc(qp) => qp.modify(attr, mask, now, host),
            Self::Uc(qp) => qp.modify(attr, mask, now, host),
            Self::Ud(qp) => qp.modify(attr, mask, now, host),
        };
        modified.expect("the transition is legal");
    }

    pub fn qpn(&self) -> Qpn {
        match self {
            Self::Rc(qp) => qp.qpn(),
            Self::Uc(qp) => qp.qpn(),
            Self::Ud(qp) => qp.qpn(),
        }
    }

    pub fn state(&self) -> QpState {
        match self {
            Self::Rc(qp) => qp.state(),
            Self::Uc(qp) => qp.state(),
            Self::Ud(qp) => qp.state(),
        }
    }

    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut SimHost,
    ) -> Result<(), PostError> {
        match self {
            Self::Rc(qp) => qp.post_send(wr, now, host),
            Self::Uc(qp) => qp.post_send(wr, now, host),
            Self::Ud(qp) => qp.post_send(wr, now, host),
        }
    }

    pub fn handle(
        &mut self,
        now: Time,
        network: &NetworkHeader,
        packet: &Packet<'_>,
        host: &mut SimHost,
    ) {
        match self {
            Self::Rc(qp) => {
                let (gid, port) = (network.source, SOURCE_PORT);
                qp.handle_packet(now, Source { gid, port }, packet, host);
            }
            Self::Uc(qp) => qp.handle_packet(now, network.source, packet, host),
            Self::Ud(qp) => qp.handle_packet(now, network, packet, host),
        }
    }

    /// The number of the destination host of the next datagram; `None` for other services.
    pub fn next_destination(&self) -> Option<u64> {
        match self {
            Self::Ud(qp) => qp.next_destination(),
            _ => None,
        }
    }

    /// Sends packets. Returns whether there are more.
    pub fn poll(&mut self, now: Time, host: &mut SimHost, sink: &mut Sink) -> bool {
        match self {
            Self::Rc(qp) => qp.poll_transmit(now, host, sink),
            Self::Uc(qp) => qp.poll_transmit(now, host, sink),
            Self::Ud(qp) => qp.poll_transmit(now, host, sink),
        }
    }

    pub fn deadline(&self) -> Time {
        match self {
            Self::Rc(qp) => qp.deadline(),
            Self::Uc(qp) => qp.deadline(),
            Self::Ud(_) => Time::NEVER,
        }
    }

    pub fn handle_timeout(&mut self, now: Time, host: &mut SimHost) {
        match self {
            Self::Rc(qp) => qp.handle_timeout(now, host),
            Self::Uc(qp) => qp.handle_timeout(now),
            Self::Ud(_) => {}
        }
    }
}

/// Returns the transitions from RESET to RTS (11.2.4.2).
fn steps(attributes: &ConnectionAttributes) -> [(QpAttr, AttrMask); 3] {
    let (dest_qpn, rq_psn, dgid) = attributes.peer;
    let attr = QpAttr {
        access: Access::REMOTE_WRITE,
        av: AddressVector {
            dgid,
            is_global: true,
            ..AddressVector::default()
        },
        qkey: QKEY,
        path_mtu: attributes.mtu,
        timeout: attributes.timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 5,
        rq_psn,
        sq_psn: attributes.psn,
        dest_qpn,
        ..QpAttr::default()
    };
    transitions_to_rts(attributes.service).map(|(state, mask)| (QpAttr { state, ..attr }, mask))
}

/// An endpoint: a queue pair and the state of its program.
pub struct Endpoint {
    pub qp: Qp,
    pub service: QpType,
    pub host: usize,
    /// The other endpoint of its connection. A datagram endpoint sends to any datagram endpoint.
    pub peer: usize,
    /// The number of messages to post.
    pub left: u32,
    /// The number of messages posted.
    pub posted: u32,
    /// The posted messages that have not completed, oldest first.
    pub outstanding: VecDeque<u32>,
    /// The number of the next message from its peer, if none is lost.
    pub expected: u32,
    /// The time at which its program posts again.
    pub post_at: Time,
}
