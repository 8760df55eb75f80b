//! Queue pairs: their states, what each state permits, and their attributes (10.3, 11.2.4).
//!
//! Which transition takes which attributes is one table, in `transition`.

mod counters;
mod migration;
#[cfg(test)]
mod tests;
mod transition;

pub use counters::Counters;
pub(crate) use migration::Migration;
pub use transition::{TransitionError, check_transition, way_to_rts};

use crate::host::Access;
use crate::ids::{Gid, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use bitflags::bitflags;

/// The most READs and atomics that a queue pair keeps for answering duplicates.
pub const MAX_RD_ATOMIC: u8 = 128;

/// The service a queue pair gives (9.7, 9.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending half of an extended reliable connection (annex A14).
    XrcIni,
    /// Its receiving half.
    XrcTgt,
    /// Ethernet frames as they are. The specification has no such service; the states are its own.
    RawPacket,
}

/// The states of a queue pair (10.3.1); the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum QpState {
    /// As created: nothing is kept, nothing goes in or out.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: new send requests wait.
    Sqd = 4,
    /// Send queue error, of unreliable services.
    Sqe = 5,
    /// Error: all that is outstanding is flushed.
    Err = 6,
}

impl QpState {
    /// All of them.
    pub const ALL: [QpState; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// The one with this `enum ibv_qp_state` number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether a receive may be posted.
    pub const fn takes_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether a send may be posted.
    pub const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether incoming packets are handled, and receives therefore processed.
    pub const fn handles_packets(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether packets of send requests go out. In SQD those of requests begun before do.
    pub const fn initiates(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether send requests are flushed as they are posted.
    pub const fn flushes_sends(self) -> bool {
        matches!(self, Self::Sqe | Self::Err)
    }

    /// Whether receives are flushed as they are posted.
    pub const fn flushes_receives(self) -> bool {
        matches!(self, Self::Err)
    }
}

bitflags! {
    /// Which attributes a call names; the bits of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        /// The state to go to.
        const STATE = 1 << 0;
        /// The state that the program believes it is in.
        const CUR_STATE = 1 << 1;
        /// Whether an event tells when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What the peer may do.
        const ACCESS_FLAGS = 1 << 3;
        /// The partition.
        const PKEY_INDEX = 1 << 4;
        /// The port.
        const PORT = 1 << 5;
        /// The queue key.
        const QKEY = 1 << 6;
        /// The address vector of the peer.
        const AV = 1 << 7;
        /// The path MTU.
        const PATH_MTU = 1 << 8;
        /// The local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// How often to retry.
        const RETRY_CNT = 1 << 10;
        /// How often to retry after RNR NAK.
        const RNR_RETRY = 1 << 11;
        /// The first PSN that is expected.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The alternate path.
        const ALT_PATH = 1 << 14;
        /// The timer in the RNR NAKs sent.
        const MIN_RNR_TIMER = 1 << 15;
        /// The first PSN that is sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics outstanding as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The state of path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// The capacities of the queues.
        const CAP = 1 << 19;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
        /// A limit to the rate of packets.
        const RATE_LIMIT = 1 << 25;
    }
}

/// How to reach a peer: an address vector (11.2.2.1), with what RoCE leaves unused kept as given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: Gid,
    /// Which of the port's GIDs is the source.
    pub sgid_index: u8,
    /// Flow label, 20 bits; it also picks the UDP source port (A17.9.3).
    pub flow_label: u32,
    /// Time to live. 0 means the default.
    pub hop_limit: u8,
    /// Type of service, or traffic class.
    pub traffic_class: u8,
    /// Whether it has a GRH; in RoCE it must.
    pub is_global: bool,
    /// Service level.
    pub sl: u8,
    /// Unused in RoCE.
    pub dlid: u16,
    /// Unused in RoCE.
    pub src_path_bits: u8,
    /// Unused in RoCE.
    pub static_rate: u8,
    /// The local port, from 1.
    pub port: u8,
}

impl AddressVector {
    /// Whether it names anybody: RoCE has no LIDs, so without a GRH there is no address (A17.4).
    pub fn names_peer(&self) -> bool {
        self.is_global && !self.dgid.is_zero()
    }
}

/// The state of automatic path migration (17.2.8); the numbers of `enum ibv_mig_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum PathMigState {
    /// The initial state, and the one after a migration: there is one path.
    #[default]
    Migrated = 0,
    /// An alternate path is loaded, and the peer is asked whether it has one too.
    Rearm = 1,
    /// Both ends have one, and may migrate.
    Armed = 2,
}

/// The attributes of a queue pair (11.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// The state.
    pub state: QpState,
    /// The state that the program believes it is in.
    pub cur_state: QpState,
    /// Whether [`crate::host::QpEvent::SendQueueDrained`] is wanted on the way to SQD.
    pub en_sqd_async_notify: bool,
    /// Whether it is on that way still (only when queried).
    pub sq_draining: bool,
    /// What the peer may do.
    pub access: Access,
    /// Index of the partition key. RoCE has one, 0.
    pub pkey_index: u16,
    /// The port, from 1.
    pub port: u8,
    /// The queue key.
    pub qkey: QKey,
    /// The peer.
    pub av: AddressVector,
    /// The other way to the peer.
    pub alt_av: AddressVector,
    /// Index of the partition key there.
    pub alt_pkey_index: u16,
    /// The port there.
    pub alt_port: u8,
    /// The ACK timeout there.
    pub alt_timeout: u8,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The local ACK timeout: 4.096 us x 2^n for n from 1 to 31, 0 for never (9.7.6.1.3).
    pub timeout: u8,
    /// How often to retry without an answer: 0 to 7.
    pub retry_cnt: u8,
    /// How often to retry after RNR NAK: 0 to 6, 7 for ever (9.7.5.2.8).
    pub rnr_retry: u8,
    /// The first PSN that is expected.
    pub rq_psn: Psn,
    /// The first PSN that is sent.
    pub sq_psn: Psn,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// The timer in the RNR NAKs sent: 0 to 31 (table 45).
    pub min_rnr_timer: u8,
    /// The state of path migration.
    pub path_mig_state: PathMigState,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// A limit to the rate of packets, in kbit/s; 0 for none.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        QpAttr {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            en_sqd_async_notify: false,
            sq_draining: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: QKey(0),
            av: AddressVector::default(),
            alt_av: AddressVector::default(),
            alt_pkey_index: 0,
            alt_port: 0,
            alt_timeout: 0,
            path_mtu: Mtu::B256,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            path_mig_state: PathMigState::Migrated,
            dest_qpn: Qpn::default(),
            rate_limit: 0,
        }
    }
}

impl QpAttr {
    /// Takes from `new` what `mask` names, the state included, if a queue pair of `service` may do
    /// so (11.2.4.2). Returns the state that it was in, and the one that it is in now. Nothing
    /// changes when it is refused.
    ///
    /// # Errors
    /// When it is not in the state that `new` says, there is no such transition, or an attribute is
    /// missing, does not belong there, or is out of range.
    pub fn change(
        &mut self,
        service: QpType,
        new: &QpAttr,
        mask: AttrMask,
    ) -> Result<(QpState, QpState), TransitionError> {
        let from = self.state;
        if mask.contains(AttrMask::CUR_STATE) && new.cur_state != from {
            return Err(TransitionError::NotInState {
                actual: from,
                claimed: new.cur_state,
            });
        }
        let to = if mask.contains(AttrMask::STATE) {
            new.state
        } else {
            from
        };
        check_transition(service, from, to, mask)?;
        new.check_ranges(mask)?;
        self.merge(new, mask);
        self.state = to;
        Ok((from, to))
    }

    /// Whether what `mask` names is in range.
    fn check_ranges(&self, mask: AttrMask) -> Result<(), TransitionError> {
        let checks = [
            (AttrMask::RETRY_CNT, self.retry_cnt <= 7),
            (AttrMask::RNR_RETRY, self.rnr_retry <= 7),
            (AttrMask::TIMEOUT, self.timeout <= 31),
            (AttrMask::MIN_RNR_TIMER, self.min_rnr_timer <= 31),
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                self.max_rd_atomic <= MAX_RD_ATOMIC,
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                self.max_dest_rd_atomic <= MAX_RD_ATOMIC,
            ),
            (AttrMask::PKEY_INDEX, self.pkey_index == 0),
            (AttrMask::PORT, self.port == 1),
            (AttrMask::AV, self.av.names_peer()),
            (
                AttrMask::ALT_PATH,
                self.alt_av.names_peer()
                    && self.alt_pkey_index == 0
                    && self.alt_port == 1
                    && self.alt_timeout <= 31,
            ),
        ];
        for (bit, in_range) in checks {
            if mask.contains(bit) && !in_range {
                return Err(TransitionError::OutOfRange(bit));
            }
        }
        Ok(())
    }

    /// Takes from `new` what `mask` names, the state aside.
    pub fn merge(&mut self, new: &QpAttr, mask: AttrMask) {
        let has = |bit| mask.contains(bit);
        if has(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            self.en_sqd_async_notify = new.en_sqd_async_notify;
        }
        if has(AttrMask::ACCESS_FLAGS) {
            self.access = new.access;
        }
        if has(AttrMask::PKEY_INDEX) {
            self.pkey_index = new.pkey_index;
        }
        if has(AttrMask::PORT) {
            self.port = new.port;
        }
        if has(AttrMask::QKEY) {
            self.qkey = new.qkey;
        }
        if has(AttrMask::AV) {
            self.av = new.av;
        }
        if has(AttrMask::PATH_MTU) {
            self.path_mtu = new.path_mtu;
        }
        if has(AttrMask::TIMEOUT) {
            self.timeout = new.timeout;
        }
        if has(AttrMask::RETRY_CNT) {
            self.retry_cnt = new.retry_cnt;
        }
        if has(AttrMask::RNR_RETRY) {
            self.rnr_retry = new.rnr_retry;
        }
        if has(AttrMask::RQ_PSN) {
            self.rq_psn = new.rq_psn;
        }
        if has(AttrMask::MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = new.max_rd_atomic;
        }
        if has(AttrMask::ALT_PATH) {
            self.alt_av = new.alt_av;
            self.alt_pkey_index = new.alt_pkey_index;
            self.alt_port = new.alt_port;
            self.alt_timeout = new.alt_timeout;
        }
        if has(AttrMask::MIN_RNR_TIMER) {
            self.min_rnr_timer = new.min_rnr_timer;
        }
        if has(AttrMask::SQ_PSN) {
            self.sq_psn = new.sq_psn;
        }
        if has(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = new.max_dest_rd_atomic;
        }
        if has(AttrMask::PATH_MIG_STATE) {
            self.path_mig_state = new.path_mig_state;
        }
        if has(AttrMask::DEST_QPN) {
            self.dest_qpn = new.dest_qpn;
        }
        if has(AttrMask::RATE_LIMIT) {
            self.rate_limit = new.rate_limit;
        }
    }
}
