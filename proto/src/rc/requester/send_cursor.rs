//! A position in the send queue.

use crate::psn::Psn;
use crate::queue::{SendQueue, SendWqe};

/// The position of the next packet to send.
///
/// The cursor is a value. New packets are sent from the cursor that the requester keeps; a
/// retransmission starts at a cursor of its own and leaves the kept one unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SendCursor {
    /// The index of the work request in the send queue.
    pub(super) index: u64,
    /// The packet within the work request.
    pub(super) packet: u32,
    /// The PSN of the packet.
    pub(super) psn: Psn,
    /// The PSN of the last packet before this position that was sent with AckReq.
    pub(super) last_ack_req: Psn,
}

impl SendCursor {
    /// Returns the position of the packet with this PSN in the oldest work request, or the end of
    /// an empty queue. No earlier packet counts as sent with AckReq.
    pub(super) fn in_oldest(queue: &SendQueue, psn: Psn) -> Self {
        let oldest = queue.get(queue.head());
        SendCursor {
            index: queue.head(),
            packet: oldest.map_or(0, |wqe| psn.diff(wqe.first_psn).max(0) as u32),
            psn,
            last_ack_req: psn.prev(),
        }
    }

    /// Returns the position after `packets` more packets of the work request.
    #[inline]
    pub(super) fn after(self, wqe: &SendWqe, packets: u32) -> Self {
        let psn = self.psn + packets;
        let packet = self.packet + packets;
        let within = SendCursor {
            packet,
            psn,
            ..self
        };
        match packet == wqe.packets {
            true => within.next_work_request(),
            false => within,
        }
    }

    /// Returns the start of the next work request.
    #[inline]
    pub(super) fn next_work_request(self) -> Self {
        SendCursor {
            index: self.index + 1,
            packet: 0,
            ..self
        }
    }

    /// Whether the packet before this position was sent with AckReq.
    #[inline]
    pub(super) fn follows_ack_req(self) -> bool {
        self.last_ack_req.next() == self.psn
    }

    /// The number of packets after the last one with AckReq, the one at this position included.
    #[inline]
    pub(super) fn packets_since_ack_req(self) -> u32 {
        self.psn.diff(self.last_ack_req).max(0) as u32
    }

    /// The number of PSNs from `una` up to this position.
    #[inline]
    pub(super) fn in_flight(self, una: Psn) -> u32 {
        self.psn.diff(una).max(0) as u32
    }
}
