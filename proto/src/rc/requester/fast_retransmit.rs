//! The state of fast retransmit: the packets in retransmission, and what is known about the peer's
//! responder (9.7.5.1.2; `docs/CONGESTION.md`).

use crate::psn::Psn;

/// The behaviour of the peer's responder at a gap, as far as known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum PeerBehaviour {
    /// Unknown. One packet is retransmitted, and its acknowledgement shows the behaviour.
    #[default]
    Unknown,
    /// It keeps requests behind a gap: only the missing packets are sent again.
    SelectiveRepeat,
    /// It drops requests behind a gap, as it may (9.7.5.1.2): all of them are sent again.
    GoBackN,
}

/// A selective retransmission, usually of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Retransmission {
    /// The first PSN.
    pub(super) psn: Psn,
    /// The PSN after the last retransmitted packet.
    pub(super) end: Psn,
    /// The PSN after the highest one sent before the retransmission.
    pub(super) sent_end: Psn,
    /// Whether it was sent.
    pub(super) is_sent: bool,
    /// Whether no other packet is sent until it is acknowledged.
    pub(super) is_exclusive: bool,
    /// Whether it follows a timeout, not the report of a gap. An acknowledgement beyond it then
    /// does not show that the peer keeps requests behind a gap: there may have been no gap.
    pub(super) is_probe: bool,
}

/// With at most this many packets in flight, go back N instead of probing the peer's behaviour.
///
/// The loss of so few packets also does not classify the peer as [`PeerBehaviour::GoBackN`].
const FEW: i32 = 4;

/// The state of fast retransmit.
#[derive(Debug, Default)]
pub(super) struct FastRetransmit {
    current: Option<Retransmission>,
    /// The first PSN and the end of the last retransmission that was acknowledged.
    last: Option<(Psn, Psn)>,
    peer: PeerBehaviour,
}

impl FastRetransmit {
    /// The retransmission that is scheduled or not acknowledged.
    pub(super) fn current(&self) -> Option<Retransmission> {
        self.current
    }

    /// Schedules a retransmission, or replaces the current one.
    pub(super) fn set(&mut self, retransmission: Retransmission) {
        self.current = Some(retransmission);
    }

    /// Ends the current retransmission.
    pub(super) fn cancel(&mut self) {
        self.current = None;
    }

    /// Whether the current retransmission ends at this PSN.
    pub(super) fn ends_at(&self, end: Psn) -> bool {
        self.current.is_some_and(|current| current.end == end)
    }

    /// Whether sending pauses until an acknowledgement shows how the peer treats a gap.
    pub(super) fn blocks_sending(&self, una: Psn) -> bool {
        self.current
            .is_some_and(|current| current.is_exclusive && current.psn == una)
    }

    /// Whether the peer is known to keep requests behind a gap.
    pub(super) fn peer_keeps_requests(&self) -> bool {
        self.peer == PeerBehaviour::SelectiveRepeat
    }

    /// Records that the peer keeps requests behind a gap.
    pub(super) fn set_peer_keeps_requests(&mut self) {
        self.peer = PeerBehaviour::SelectiveRepeat;
    }

    /// Whether a gap with `in_flight` packets from it on is retransmitted selectively.
    pub(super) fn is_selective(&self, in_flight: i32) -> bool {
        match self.peer {
            PeerBehaviour::Unknown => in_flight > FEW,
            PeerBehaviour::SelectiveRepeat => in_flight > 1,
            PeerBehaviour::GoBackN => false,
        }
    }

    /// The number of packets to retransmit for a gap at `una`.
    ///
    /// If the last retransmission ended there, a run of packets was lost: the number doubles.
    pub(super) fn run_length(&self, una: Psn) -> i32 {
        match self.last {
            Some((psn, end)) if end == una => 2 * end.diff(psn),
            _ => 1,
        }
    }

    /// Handles an acknowledgement of all packets before `end`: it may show the peer's behaviour.
    ///
    /// Returns the number of packets behind the retransmission that must have been lost or dropped.
    #[inline]
    pub(super) fn acknowledged(&mut self, end: Psn) -> i32 {
        let Some(current) = self.current.filter(|current| end.after(current.psn)) else {
            return 0;
        };
        self.current = None;
        if !current.is_sent {
            return 0;
        }
        self.last = Some((current.psn, current.end));
        if end.after(current.end) && !current.is_probe {
            self.peer = PeerBehaviour::SelectiveRepeat;
        }
        if end != current.end {
            return 0;
        }
        current.sent_end.diff(end)
    }

    /// Records that the peer lacks `packets` packets behind a retransmission.
    pub(super) fn packets_missing(&mut self, packets: i32) {
        if packets > FEW && self.peer == PeerBehaviour::Unknown {
            self.peer = PeerBehaviour::GoBackN;
        }
    }
}
