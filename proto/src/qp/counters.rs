//! What is counted for each queue pair, whatever its service.

use crate::wire::NakCode;
use crate::work::SendOp;
use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened on a queue pair, counted since its creation.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Every counter's name and value, in the order of the struct.
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
    /// Sends that were done without an error, RDMA operations not counted.
    sends_done,
    /// Receives that a message completed without an error.
    receives_done,
    /// WRITEs without immediate data that were carried out for the peer: nothing tells the program of them.
    writes_done,
    /// Packets received that were for this queue pair.
    received_packets,
    /// Request packets sent again.
    retransmitted,
    /// Requests that came again.
    duplicates,
    /// Requests that came after a hole.
    out_of_sequence,
    /// Requests that came after a hole and were carried out when it had closed.
    held,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// RNR NAKs received.
    rnr_naks_received,
    /// NAKs for a hole received.
    sequence_naks_received,
    /// NAKs received that end the connection.
    fatal_naks_received,
    /// NAKs sent that end the connection: the request made no sense, or could not be served.
    invalid_request_naks_sent,
    /// NAKs sent that end the connection: no right to the memory.
    remote_access_naks_sent,
    /// NAKs sent that end the connection: this end failed.
    remote_operation_naks_sent,
    /// Times that answers were more than could go out at once, and the others had to wait.
    answers_deferred,
    /// Single packets sent again because nothing was heard for some round trips.
    probes,
    /// Timers that led to sending again.
    timeouts,
    /// Times that the peer went past a READ or an atomic whose response had not come.
    responses_lost,
    /// Times that `retry_cnt` was used up.
    retries_exceeded,
    /// Times that `rnr_retry` was used up.
    rnr_retries_exceeded,
    /// Responses of the past, or to what was never asked.
    stale_responses,
    /// Packets received that had met congestion.
    ecn_marked,
    /// Congestion notifications sent.
    cnps_sent,
    /// Congestion notifications received.
    cnps_received,
    /// Packets that made no sense for this queue pair.
    malformed,
    /// Packets from somebody who is not the peer.
    foreign,
    /// Packets of another partition.
    bad_pkey,
    /// Packets dropped because of the state.
    dropped_in_state,
    /// Datagrams with another queue key.
    bad_qkey,
    /// Messages of unreliable services for which there was no receive.
    no_receive,
    /// Messages of unreliable services that were longer than the receive.
    receive_too_small,
    /// WRITEs of an unreliable connection without the right to the memory.
    access_violations,
    /// Messages of an unreliable connection of which packets were missing.
    incomplete_messages,
    /// Marks in an unreliable connection that the peer did not answer in time.
    marks_unanswered,
    /// Datagrams that were not sent, being longer than the port's MTU.
    oversized_datagrams,
}

impl Counters {
    /// A send work request was done without an error.
    pub(crate) fn count_send_done(&mut self, op: SendOp) {
        let is_send = matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_));
        self.sends_done += u64::from(is_send);
    }

    /// A NAK that ends the connection was sent.
    pub(crate) fn count_fatal_nak(&mut self, code: NakCode) {
        match code {
            NakCode::RemoteAccess => self.remote_access_naks_sent += 1,
            NakCode::RemoteOperational => self.remote_operation_naks_sent += 1,
            _ => self.invalid_request_naks_sent += 1,
        }
    }

    /// Whether packets of the connection were lost, duplicated or reordered, as far as this end can know.
    pub(crate) fn tell_of_loss(&self) -> bool {
        self.duplicates > 0
            || self.out_of_sequence > 0
            || self.retransmitted > 0
            || self.responses_lost > 0
    }

    /// How many NAKs were sent that end the connection.
    pub fn fatal_naks_sent(&self) -> u64 {
        self.invalid_request_naks_sent
            + self.remote_access_naks_sent
            + self.remote_operation_naks_sent
    }
}
