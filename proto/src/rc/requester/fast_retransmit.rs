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

/// The number of gaps in one window that are repaired a packet at a time.
///
/// A responder reports a gap when the one before it has closed, so each gap takes a round trip. At
/// a queue that overflows, every second or third packet of a window may be missing. Beyond this
/// number, the packets from a gap on are sent again, twice as many for each further gap, up to
/// [`MAX_RUN`].
const GAPS_REPAIRED_SINGLY: u32 = 4;

/// The most packets that are sent again for the gaps of a window: the queue that has overflowed has
/// room for few.
const MAX_RUN: i32 = 64;

/// The gaps in the packets that were in flight when the first of them was reported.
#[derive(Clone, Copy, Debug)]
struct Episode {
    /// The PSN after the last of those packets.
    end: Psn,
    /// The number of gaps that were reported.
    gaps: u32,
}

/// The state of fast retransmit.
#[derive(Debug, Default)]
pub(super) struct FastRetransmit {
    current: Option<Retransmission>,
    /// The last retransmission of which a packet was acknowledged.
    last: Option<Retransmission>,
    episode: Option<Episode>,
    peer: PeerBehaviour,
}

impl FastRetransmit {
    /// The retransmission that is scheduled or not acknowledged.
    pub(super) fn current(&self) -> Option<Retransmission> {
        self.current
    }

    /// Whether a retransmission is scheduled and not sent yet.
    #[inline]
    pub(super) fn is_scheduled(&self) -> bool {
        self.current.is_some_and(|current| !current.is_sent)
    }

    /// Schedules a retransmission, or replaces the current one.
    pub(super) fn set(&mut self, retransmission: Retransmission) {
        self.current = Some(retransmission);
    }

    /// Ends the current retransmission, and forgets the last: its packets are sent again.
    pub(super) fn cancel(&mut self) {
        self.current = None;
        self.last = None;
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

    /// Records a gap at `una`, with the packets before `sent_end` in flight. Returns the number of
    /// packets to retransmit, given that the window is of `window` packets.
    ///
    /// If the last retransmission ended there, a run of packets was lost: the number doubles.
    pub(super) fn gap_reported(&mut self, una: Psn, sent_end: Psn, window: u32) -> i32 {
        let run = match self.last {
            Some(last) if last.end == una => 2 * last.end.diff(last.psn),
            _ => 1,
        };
        let episode = match self.episode {
            Some(episode) if una.before(episode.end) && !episode.end.after(sent_end) => Episode {
                gaps: episode.gaps.saturating_add(1),
                ..episode
            },
            _ => Episode {
                end: sent_end,
                gaps: 1,
            },
        };
        self.episode = Some(episode);
        let doublings = episode.gaps.saturating_sub(GAPS_REPAIRED_SINGLY);
        let most = MAX_RUN.min(window as i32 / 4);
        run.max(most.min(1 << doublings.min(16)))
    }

    /// Whether the packet of a gap at `una` is in flight in the last retransmission.
    ///
    /// The responder reports the gap when an earlier packet of the retransmission arrives. If the
    /// packet is lost again, nothing reports it, and a probe follows.
    pub(super) fn is_in_flight(&mut self, una: Psn) -> bool {
        let last = self
            .last
            .filter(|last| una.after(last.psn) && una.before(last.end));
        if let Some(last) = last {
            self.current = Some(Retransmission {
                psn: una,
                is_exclusive: false,
                ..last
            });
        }
        last.is_some()
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
        self.last = Some(current);
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
