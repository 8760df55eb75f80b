//! The counters of a queue pair, for all services.

use crate::wire::NakCode;
use crate::work::SendOp;
use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a queue pair, since its creation.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Iterates over the names and values of all counters, in declaration order.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl AddAssign<&Counters> for Counters {
            fn add_assign(&mut self, other: &Counters) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_packets,
    /// SENDs completed successfully; RDMA operations are not counted.
    sends_done,
    /// Receives completed successfully.
    receives_done,
    /// RDMA WRITEs without immediate data executed for the peer; they generate no completions here.
    writes_done,
    /// Packets received and accepted for this queue pair.
    received_packets,
    /// Request packets retransmitted.
    retransmitted,
    /// Duplicate requests received.
    duplicates,
    /// Requests received after a gap in PSNs.
    out_of_sequence,
    /// Requests received after a gap, queued, and executed once the gap was filled.
    out_of_order_executed,
    /// Requests received after a gap and dropped because the out-of-order queue had no room.
    out_of_order_dropped,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// RNR NAKs received.
    rnr_naks_received,
    /// PSN sequence error NAKs received.
    sequence_naks_received,
    /// NAKs received that are fatal to the connection.
    fatal_naks_received,
    /// Fatal NAKs sent with the code invalid request.
    invalid_request_naks_sent,
    /// Fatal NAKs sent with the code remote access error.
    remote_access_naks_sent,
    /// Fatal NAKs sent with the code remote operational error.
    remote_operation_naks_sent,
    /// How often responses were deferred because the sink was full.
    responses_deferred,
    /// Probes sent: single packets retransmitted after some round trips without an acknowledgement.
    probes,
    /// Timeouts that led to a retransmission.
    timeouts,
    /// Timeouts of a long packet or response although the peer answered a short packet meanwhile,
    /// and long packets that the peer reported as missing, behind which it may have received short
    /// ones only, until the retries were exhausted: a link of the path may have a smaller MTU.
    long_packet_timeouts,
    /// How often an acknowledgement covered a READ or atomic of which responses were missing.
    responses_lost,
    /// How often `retry_cnt` was exhausted.
    retries_exceeded,
    /// How often `rnr_retry` was exhausted.
    rnr_retries_exceeded,
    /// Responses received that match no outstanding request.
    stale_responses,
    /// Packets received with a congestion mark (ECN CE).
    ecn_marked,
    /// CNPs sent.
    cnps_sent,
    /// CNPs received.
    cnps_received,
    /// Packets dropped because their opcode or length is invalid for this queue pair.
    malformed,
    /// Packets dropped because their source address is not the peer's.
    wrong_source,
    /// Packets dropped because of their partition key.
    bad_pkey,
    /// Packets dropped because of the queue pair's state.
    dropped_in_state,
    /// Datagrams dropped because of their queue key.
    bad_qkey,
    /// Messages of unreliable services dropped for lack of a receive.
    no_receive,
    /// Messages of unreliable services that were longer than the receive.
    receive_too_small,
    /// RDMA WRITEs of an unreliable connection dropped for lack of access to the memory.
    access_violations,
    /// Messages of an unreliable connection dropped because packets were missing.
    incomplete_messages,
    /// Flow-control probes of an unreliable connection without an echo in time.
    flow_probes_unanswered,
    /// Datagrams not sent because they exceed the port's MTU.
    oversized_datagrams,
}

impl Counters {
    /// Counts a send work request that completed successfully.
    pub(crate) fn count_send_done(&mut self, op: SendOp) {
        let is_send = matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_));
        self.sends_done += u64::from(is_send);
    }

    /// The numbers of packets dropped because of their partition key and because of their queue
    /// key.
    #[inline]
    pub fn key_violations(&self) -> [u64; 2] {
        [self.bad_pkey, self.bad_qkey]
    }

    /// Counts a fatal NAK that was sent.
    pub(crate) fn count_fatal_nak(&mut self, code: NakCode) {
        match code {
            NakCode::RemoteAccess => self.remote_access_naks_sent += 1,
            NakCode::RemoteOperational => self.remote_operation_naks_sent += 1,
            _ => self.invalid_request_naks_sent += 1,
        }
    }

    /// Whether the counters show loss, duplication or reordering of packets.
    pub(crate) fn indicate_loss(&self) -> bool {
        self.duplicates > 0
            || self.out_of_sequence > 0
            || self.retransmitted > 0
            || self.responses_lost > 0
    }

    /// The number of fatal NAKs sent.
    pub fn fatal_naks_sent(&self) -> u64 {
        self.invalid_request_naks_sent
            + self.remote_access_naks_sent
            + self.remote_operation_naks_sent
    }
}
