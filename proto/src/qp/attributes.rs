//! The attributes of a queue pair, and their change.

use super::mask::AttrMask;
use super::state::{QpState, QpType};
use super::transition::{TransitionError, check_transition};
use crate::access::Access;
use crate::ids::{Gid, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;

/// The most READs and atomics that a responder keeps for duplicate requests.
pub const MAX_RD_ATOMIC: u8 = 128;

/// An address vector (11.2.2.1). Fields that RoCE does not use keep the given values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: Gid,
    /// The index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// The flow label, 20 bits; it also determines the UDP source port (A17.9.3).
    pub flow_label: u32,
    /// The hop limit or time to live of multicast datagrams; 0 selects the default. Others have
    /// that of the route to the peer.
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
