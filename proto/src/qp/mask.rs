//! The mask of attributes that a call sets.

use bitflags::bitflags;

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
