//! Scenarios for unreliable connection, named after the rules they check.
//!
//! The test plays the peer, packet by packet. Only the test with random loss has two queue pairs.

mod flow_control;
mod fuzz;
mod migration;
mod requester;
mod responder;

use super::*;
use crate::host::Access;
use crate::host::QpEvent;
use crate::ids::{QKey, RKey};
use crate::mtu::Mtu;

use crate::qp::{AddressVector, AttrMask};
use crate::testing::{LOCAL, NO_KEY, READ_ONLY, REMOTE, Sent, base, pattern, sge};
use crate::unreliable;
use crate::wire::{Header, Headers, Opcode, Reth};
use crate::work::{
    Destination, Extra, Payload, SendFlags, SendOp, Sge, UdDestination, WcOpcode, WcStatus,
};
use Opcode::*;
use WcStatus::{LocLenErr, LocProtErr, Success, WrFlushErr};

const OWN_PSN: u32 = 0xff_ffff;
const PEER_PSN: u32 = 500;
const MTU: usize = 256;

type Endpoint = unreliable::testing::Endpoint<Uc>;

fn peer_gid() -> Gid {
    Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 9))
}

fn attributes() -> QpAttr {
    QpAttr {
        access: Access::REMOTE_WRITE,
        av: AddressVector {
            dgid: peer_gid(),
            is_global: true,
            ..AddressVector::default()
        },
        path_mtu: Mtu::B256,
        rq_psn: Psn::new(PEER_PSN),
        sq_psn: Psn::new(OWN_PSN),
        dest_qpn: Qpn::new(0x22),
        ..QpAttr::default()
    }
}

const INIT: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS);
const RTR: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);

impl Endpoint {
    fn reset() -> Self {
        let send = SendQueueSize {
            max_wr: 16,
            max_sge: 4,
            max_inline: 512,
        };
        Self::of(
            UcQp::new(UcConfig {
                qpn: Qpn::new(0x11),
                send,
                signal_all: false,
            })
            .unwrap(),
        )
    }

    fn with(attr: QpAttr) -> Self {
        let mut end = Self::reset();
        end.modify(QpState::Init, INIT, &attr);
        end.modify(QpState::Rtr, RTR, &attr);
        end.modify(QpState::Rts, AttrMask::SQ_PSN, &attr);
        end
    }

    fn new() -> Self {
        Self::with(attributes())
    }

    fn enter(&mut self, state: QpState) {
        self.modify(state, AttrMask::empty(), &attributes());
    }

    fn try_post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
            payload: Payload::Sges(sges),
            dest: None,
        };
        self.qp.post_send(&wr, self.now, &mut self.host)
    }

    /// Posts a signaled operation on `len` bytes of local memory.
    fn post(&mut self, wr_id: u64, op: SendOp, len: usize) {
        self.try_post(wr_id, op, &[sge(LOCAL, 0, len)]).unwrap();
    }

    fn deliver(&mut self, header: Header, payload: &[u8]) {
        let header = header.with_payload_len(payload.len());
        let packet = Packet { header, payload };
        self.qp
            .handle_packet(self.now, peer_gid(), &packet, &mut self.host);
    }
}

/// The headers of a packet from the peer, `offset` packets after its first.
fn packet(opcode: Opcode, offset: u32) -> Header {
    let header = Header::new(opcode, Qpn::new(0x11), Psn::new(PEER_PSN + offset));
    if opcode.info().headers.contains(Headers::IMMDT) {
        header.with_imm(0xabcd_ef01)
    } else {
        header
    }
}

fn rdma(opcode: Opcode, offset: u32, key: u32, at: usize, length: usize) -> Header {
    packet(opcode, offset).with_reth(Reth {
        addr: base(key) + at as u64,
        rkey: RKey(key),
        length: length as u32,
    })
}

fn write_to(at: usize) -> SendOp {
    SendOp::Write {
        addr: base(REMOTE) + at as u64,
        rkey: RKey(REMOTE),
    }
}
