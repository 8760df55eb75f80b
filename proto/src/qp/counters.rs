//! What is counted for each queue pair, whatever its service.

/// What happened on a queue pair, counted since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets received that were for this queue pair.
    pub received_packets: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Requests that came after a hole.
    pub out_of_sequence: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// NAKs for a hole received.
    pub sequence_naks_received: u64,
    /// NAKs received that end the connection.
    pub fatal_naks_received: u64,
    /// NAKs sent that end the connection.
    pub fatal_naks_sent: u64,
    /// Timers that led to sending again.
    pub timeouts: u64,
    /// Times that the peer went past a READ or an atomic whose response had not come.
    pub responses_lost: u64,
    /// Times that `retry_cnt` was used up.
    pub retries_exceeded: u64,
    /// Times that `rnr_retry` was used up.
    pub rnr_retries_exceeded: u64,
    /// Responses of the past, or to what was never asked.
    pub stale_responses: u64,
    /// Packets that made no sense for this queue pair.
    pub malformed: u64,
    /// Packets from somebody who is not the peer.
    pub foreign: u64,
    /// Packets of another partition.
    pub bad_pkey: u64,
    /// Packets dropped because of the state.
    pub dropped_in_state: u64,
    /// Datagrams with another queue key.
    pub bad_qkey: u64,
    /// Messages of unreliable services for which there was no receive.
    pub no_receive: u64,
    /// Messages of unreliable services that were longer than the receive.
    pub receive_too_small: u64,
    /// WRITEs of an unreliable connection without the right to the memory.
    pub access_violations: u64,
    /// Messages of an unreliable connection of which packets were missing.
    pub incomplete_messages: u64,
    /// Datagrams that were not sent, being longer than the port's MTU.
    pub oversized_datagrams: u64,
}
