//! The input: the actions of a queue pair's application and the packets of its peer.

use crate::host::{LOCAL, NO_KEY, READ_ONLY, REGION, REMOTE};
use arbitrary::Arbitrary;
use std::net::Ipv4Addr;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, QpAttr, QpState, QpType};
use urxe_proto::wire::Transport;

pub(super) const QKEY: QKey = QKey(0x1111_1111);
pub(super) const OWN_QPN: Qpn = Qpn::new(0x11);
pub(super) const PEER_QPN: Qpn = Qpn::new(0x22);

/// A queue pair and the steps it goes through.
#[derive(Arbitrary, Debug)]
pub struct Input {
    pub(super) service: Service,
    pub(super) shared: bool,
    pub(super) signal_all: bool,
    pub(super) start: Start,
    pub(super) steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Rc,
    XrcInitiator,
    XrcTarget,
    Uc,
    Ud,
}

/// The attributes of the connection.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) mtu: u8,
    pub(super) access: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    /// Offsets of the first PSNs, so that some wrap.
    pub(super) psns: [u8; 2],
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
}

#[derive(Arbitrary, Debug)]
pub(super) enum Step {
    Arrive(Arrival),
    Send(Send),
    Receive([u16; 2]),
    Poll(u8),
    Wait(u32),
    Expire,
    Modify {
        state: u8,
        mask: u32,
        start: Start,
    },
    /// To the next state of RESET, INIT, RTR, RTS, with all required attributes.
    Advance,
    Fail,
}

/// A packet of the peer.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) opcode: u8,
    /// The distance from the expected PSN.
    pub(super) psn: i8,
    pub(super) flags: u8,
    pub(super) key: u8,
    pub(super) offset: Offset,
    pub(super) length: Length,
    pub(super) syndrome: u8,
    pub(super) msn: u8,
    pub(super) number: u64,
    pub(super) payload: Length,
    pub(super) from_peer: FromPeer,
}

/// The source of a packet: three in four are from the peer.
#[derive(Arbitrary, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FromPeer {
    Yes,
    YesAsWell,
    YesOfCourse,
    No,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Offset {
    Zero,
    Aligned(u8),
    Any(u16),
    FromEnd(u8),
    Wild(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Length {
    Zero,
    Mtu,
    Mtus(u8),
    Small(u8),
    Any(u16),
    Wild(u32),
}

/// A send work request.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Send {
    pub(super) op: u8,
    pub(super) flags: u8,
    pub(super) key: u8,
    pub(super) offset: Offset,
    pub(super) remote: Offset,
    pub(super) lengths: [Length; 2],
    pub(super) elements: u8,
    pub(super) inline: bool,
    pub(super) number: u64,
}

pub(super) fn key(choice: u8) -> u32 {
    match choice % 16 {
        0 => NO_KEY,
        1 | 2 => LOCAL,
        3 => READ_ONLY,
        _ => REMOTE,
    }
}

pub(super) fn local_key(choice: u8) -> u32 {
    match choice % 16 {
        0 => NO_KEY,
        1 => READ_ONLY,
        _ => LOCAL,
    }
}

impl Offset {
    pub(super) fn get(self) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Aligned(n) => u64::from(n) * 8,
            Self::Any(n) => u64::from(n),
            Self::FromEnd(n) => REGION as u64 - u64::from(n),
            Self::Wild(n) => n,
        }
    }
}

impl Length {
    pub(super) fn get(self, mtu: usize) -> u32 {
        match self {
            Self::Zero => 0,
            Self::Mtu => mtu as u32,
            Self::Mtus(n) => u32::from(n % 16) * mtu as u32,
            Self::Small(n) => n.into(),
            Self::Any(n) => n.into(),
            Self::Wild(n) => n,
        }
    }
}

pub(super) fn peer() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 2))
}

pub(super) fn other_address() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 3))
}

impl Start {
    pub(super) fn attributes(self, state: QpState) -> QpAttr {
        let psn = |choice: u8| Psn::new(0x100_0000 - 128 + u32::from(choice));
        let mut access = Access::empty();
        for (bit, right) in [
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
        ]
        .into_iter()
        .enumerate()
        {
            // Three in four values permit the access.
            access.set(right, (self.access >> (2 * bit)) & 3 != 0);
        }
        QpAttr {
            state,
            access,
            qkey: QKEY,
            av: AddressVector {
                dgid: peer(),
                is_global: true,
                ..AddressVector::default()
            },
            path_mtu: Mtu::ALL[usize::from(self.mtu) % 2],
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            rq_psn: psn(self.psns[0]),
            sq_psn: psn(self.psns[1]),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            dest_qpn: PEER_QPN,
            ..QpAttr::default()
        }
    }

    /// The same attributes with all values in range.
    pub(super) fn in_range(self) -> Self {
        Start {
            timeout: self.timeout % 32,
            retry_cnt: self.retry_cnt % 8,
            rnr_retry: self.rnr_retry % 8,
            max_rd_atomic: self.max_rd_atomic % 17,
            max_dest_rd_atomic: self.max_dest_rd_atomic % 17,
            min_rnr_timer: self.min_rnr_timer % 32,
            ..self
        }
    }
}

impl Service {
    pub(super) fn kind(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::XrcInitiator => QpType::XrcIni,
            Self::XrcTarget => QpType::XrcTgt,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::XrcInitiator | Self::XrcTarget => Transport::Xrc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
        }
    }

    /// Returns whether packets of this transport are sent; unreliable connections also send probes.
    pub(super) fn has(self, transport: Transport) -> bool {
        transport == self.transport() || (transport == Transport::Manufacturer && self == Self::Uc)
    }
}
