//! Queue pairs: states, attributes and transitions (10.3, 11.2.4).
//!
//! `transition` has the one table of the attributes that each transition requires and permits.

mod counters;
mod migration;
#[cfg(test)]
mod tests;
mod transition;

pub use counters::Counters;
pub(crate) use migration::Migration;
pub use transition::{TransitionError, transitions_to_rts};

use transition::check_transition;

use crate::access::Access;
use crate::ids::{Gid, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::work::SendOp;
use bitflags::bitflags;

/// The most READs and atomics that a responder keeps for duplicate requests.
pub const MAX_RD_ATOMIC: u8 = 128;

/// The transport service of a queue pair (9.7, 9.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The initiator of an extended reliable connection (annex A14).
    XrcIni,
    /// The target of an extended reliable connection (annex A14).
    XrcTgt,
    /// Raw Ethernet frames. The specification does not define this service; its states are the
    /// same.
    RawPacket,
}

impl QpType {
    /// Whether queue pairs of this type support the operation (9.4; A14, A19).
    pub const fn supports(self, op: SendOp) -> bool {
        match self {
            Self::Rc => true,
            // XRC has no opcodes for the operations of A19.
            Self::XrcIni => !op.has_empty_response(),
            Self::XrcTgt => false,
            Self::Uc => {
                let is_send = matches!(op, SendOp::Send | SendOp::SendImm(_));
                let is_write = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. });
                is_send || is_write || op.is_local()
            }
            Self::Ud => matches!(op, SendOp::Send | SendOp::SendImm(_)),
            Self::RawPacket => matches!(op, SendOp::Send),
        }
    }
}

/// The states of a queue pair (10.3.1); the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum QpState {
    /// Initial state: nothing is queued, sent or received.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: new send work requests are not started.
    Sqd = 4,
    /// Send queue error, of unreliable services.
    Sqe = 5,
    /// Error: all outstanding work requests are flushed.
    Err = 6,
}

impl QpState {
    /// All states, in numerical order.
    pub const ALL: [QpState; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Returns the state with this `enum ibv_qp_state` number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether receives may be posted.
    pub const fn accepts_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether sends may be posted.
    pub const fn accepts_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether incoming packets are processed.
    pub const fn handles_packets(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether request packets are sent. In SQD this applies only to work requests already started.
    pub const fn initiates(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether send work requests are flushed when posted.
    pub const fn flushes_sends(self) -> bool {
        matches!(self, Self::Sqe | Self::Err)
    }

    /// Whether receives are flushed when posted.
    pub const fn flushes_receives(self) -> bool {
        matches!(self, Self::Err)
    }
}

bitflags! {
    /// The attributes that a call sets; the bits of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        /// The new state.
        const STATE = 1 << 0;
        /// The current state, as the program expects it.
        const CUR_STATE = 1 << 1;
        /// Whether to report [`crate::host::QpEvent::SendQueueDrained`].
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// The rights of the peer.
        const ACCESS_FLAGS = 1 << 3;
        /// The index of the partition key.
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
        /// The retry count without an acknowledgement.
        const RETRY_CNT = 1 << 10;
        /// The retry count after an RNR NAK.
        const RNR_RETRY = 1 << 11;
        /// The first expected PSN.
        const RQ_PSN = 1 << 12;
        /// The most outstanding READs and atomics as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The alternate path.
        const ALT_PATH = 1 << 14;
        /// The timer code of RNR NAKs sent.
        const MIN_RNR_TIMER = 1 << 15;
        /// The first PSN to send.
        const SQ_PSN = 1 << 16;
        /// The most outstanding READs and atomics as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// The capacities of the queues.
        const CAP = 1 << 19;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
        /// The packet rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

/// An address vector (11.2.2.1). Fields that RoCE does not use keep the given values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: Gid,
    /// The index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// The flow label, 20 bits; it also determines the UDP source port (A17.9.3).
    pub flow_label: u32,
    /// The hop limit or time to live; 0 selects the default.
    pub hop_limit: u8,
    /// The traffic class or type of service.
    pub traffic_class: u8,
    /// Whether the vector has a GRH; required in RoCE.
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
    /// Whether the vector has a destination. RoCE has no LIDs, so a GRH is required (A17.4).
    pub fn has_destination(&self) -> bool {
        self.is_global && !self.dgid.is_zero()
    }
}

/// The state of automatic path migration (17.2.8); the numbers of `enum ibv_mig_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum PathMigState {
    /// The initial state and the state after a migration: there is no alternate path in use.
    #[default]
    Migrated = 0,
    /// An alternate path is loaded, and the peer has not yet confirmed one.
    Rearm = 1,
    /// Both sides have an alternate path and may migrate.
    Armed = 2,
}

/// The attributes of a queue pair (11.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// The state.
    pub state: QpState,
    /// The current state, as the program expects it.
    pub cur_state: QpState,
    /// Whether to report [`crate::host::QpEvent::SendQueueDrained`] on the transition to SQD.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is still draining. Set by queries only.
    pub sq_draining: bool,
    /// The rights of the peer.
    pub access: Access,
    /// The index of the partition key. RoCE has only index 0.
    pub pkey_index: u16,
    /// The port, from 1.
    pub port: u8,
    /// The queue key.
    pub qkey: QKey,
    /// The primary path to the peer.
    pub av: AddressVector,
    /// The alternate path to the peer.
    pub alt_av: AddressVector,
    /// The index of the partition key of the alternate path.
    pub alt_pkey_index: u16,
    /// The port of the alternate path.
    pub alt_port: u8,
    /// The local ACK timeout of the alternate path.
    pub alt_timeout: u8,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The local ACK timeout: 4.096 us x 2^n for n from 1 to 31; 0 disables it (9.7.6.1.3).
    pub timeout: u8,
    /// The retry count without an acknowledgement: 0 to 7.
    pub retry_cnt: u8,
    /// The retry count after an RNR NAK: 0 to 6; 7 is unlimited (9.7.5.2.8).
    pub rnr_retry: u8,
    /// The first expected PSN.
    pub rq_psn: Psn,
    /// The first PSN to send.
    pub sq_psn: Psn,
    /// The most outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// The most outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// The timer code of RNR NAKs sent: 0 to 31 (table 45).
    pub min_rnr_timer: u8,
    /// The path migration state.
    pub path_mig_state: PathMigState,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The packet rate limit in kbit/s; 0 for none.
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
    /// Sets the attributes in `mask`, the state included, to those of `new` (11.2.4.2).
    ///
    /// Returns the previous and the new state. Nothing changes on an error.
    ///
    /// # Errors
    /// [`TransitionError`] when `new.cur_state` is wrong, the transition does not exist for
    /// `service`, or an attribute is missing, not permitted, or out of range.
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

    /// Checks the ranges of the attributes in `mask`.
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
            (AttrMask::AV, self.av.has_destination()),
            (
                AttrMask::ALT_PATH,
                self.alt_av.has_destination()
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

    /// Sets the attributes in `mask`, except the state, to those of `new`, without checks.
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
