//! Sending of the packets of SENDs and WRITEs (9.7.3), and which of them wait for others.

use super::send_cursor::SendCursor;
use super::{Requester, Step};
use crate::host::{BatchPlace, Memory, Transmit};
use crate::mtu::Mtu;
use crate::qp::{QpAttr, QpState};
use crate::queue::SendWqe;
use crate::service::{Context, StageResult, stage_data};
use crate::wire::{Bth, Position};
use crate::work::{SendFlags, SendOp, WcStatus};

/// The least number of packets with AckReq in a window, so that acknowledgements pace the sender.
/// In windows above the base window it is that number in each part of the base window's size.
const ACKS_PER_WINDOW: u32 = 4;

/// The most packets in a batch of the sink: the kernel's limit of segments (`UDP_MAX_SEGMENTS`), as
/// older kernels have it.
const MAX_BATCH: u32 = 64;

impl Requester {
    /// Sends the packet of a SEND or WRITE at the cursor.
    ///
    /// Inlined into its one caller, which has the work request and the cursor in registers.
    #[inline(always)]
    pub(super) fn send_data<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        cursor: SendCursor,
        memory: &M,
        out: &mut T,
    ) -> Step {
        let Some(wqe) = self.queue.get(cursor.index) else {
            return Step::Wait;
        };
        let room = self.room(cursor);
        if room == 0 {
            self.quantum.set_needed(self.window_room(cursor) > 0);
            return Step::Wait;
        }
        let mtu = cx.attr.path_mtu;
        let is_full = wqe.payload_of(cursor.packet, mtu) == mtu.bytes();
        // Whether the window or the quantum ends within this batch or the next.
        let is_scarce = room <= MAX_BATCH && self.queue.end_psn().diff(cursor.psn) > room as i32;
        let place = match is_scarce {
            true => self.place_in_batch(mtu, out),
            false => BatchPlace::ALONE,
        };
        if is_full && place.begins && self.awaits_batch(cursor, wqe, room, place.capacity) {
            self.quantum.set_needed(self.window_room(cursor) > room);
            return Step::Wait;
        }
        let position = Position::new(cursor.packet == 0, cursor.packet + 1 == wqe.packets);
        // Without credit, one packet may be sent to solicit credits; the requester then waits.
        let needs_receive = !matches!(wqe.op, SendOp::WriteImm { .. }) || position.ends();
        let lacks_credit = needs_receive && self.credits.lacks(wqe);
        if lacks_credit && cursor.in_flight(self.una) > 0 && cursor.follows_ack_req() {
            return Step::Wait;
        }
        // The application waits for the completion of a signaled work request.
        let is_signaled = self.signal_all || wqe.flags.contains(SendFlags::SIGNALED);
        let ends_burst = position.ends() && (is_signaled || self.ends_burst(cx.attr, cursor));
        let ack_req = self.fast_retransmit.ends_at(cursor.psn.next())
            || ends_burst
            || lacks_credit
            // The next packet waits for room.
            || room <= place.capacity && self.ends_batch(mtu, cursor, is_full, place)
            || room == 1
            || cursor.packets_since_ack_req() * ACKS_PER_WINDOW
                >= self.window.packets().min(self.window.base());

        let len = wqe.payload_of(cursor.packet, mtu);
        let bth = Bth {
            ack_req,
            ..cx.data_bth(wqe, position, cursor.psn)
        };
        let headers = || {
            let header = cx.data_header(wqe, position, cursor.psn);
            header.with_ack_req(ack_req)
        };
        let payload = self.queue.payload(cursor.index, wqe);
        let offset = u64::from(cursor.packet) * mtu.bytes() as u64;
        match stage_data(bth, headers, payload, offset, len, memory, out) {
            StageResult::Done => {}
            StageResult::Full => return Step::Full,
            StageResult::Protection => {
                self.unsendable = Some((cursor.index, WcStatus::LocProtErr));
                return Step::Wait;
            }
        }
        let mut next = cursor.after(wqe, 1);
        if ack_req {
            next.last_ack_req = cursor.psn;
        }
        self.sent(cx, cursor, next, ack_req, out.now());
        Step::Sent(next)
    }

    /// The place of a full packet in a batch of the sink, if packets wait for whole batches. Each
    /// batch costs the sink as much as several packets, and an acknowledgement rarely makes room
    /// for whole batches only.
    fn place_in_batch<T: Transmit>(&self, mtu: Mtu, out: &T) -> BatchPlace {
        let place = out.place_in_batch(Bth::LEN + mtu.bytes());
        let waits = place.capacity * ACKS_PER_WINDOW <= self.window.packets()
            && !self.pacing.is_active()
            && !self.has_gone_back()
            && self.fast_retransmit.current().is_none();
        match waits {
            true => place,
            false => BatchPlace::ALONE,
        }
    }

    /// Whether the packet behind the one at the cursor is full and begins a batch. `place` is that
    /// of a full packet at the cursor. A shorter one ends its batch.
    #[inline]
    fn ends_batch(&self, mtu: Mtu, cursor: SendCursor, is_full: bool, place: BatchPlace) -> bool {
        match is_full {
            true => place.ends,
            false => (self.queue.get(cursor.index + 1))
                .is_some_and(|next| next.payload_of(0, mtu) == mtu.bytes()),
        }
    }

    /// Whether the packet at the cursor, which would begin a batch of at most `capacity` packets,
    /// waits until there is room for the whole batch.
    ///
    /// If the window is the limit, an acknowledgement makes room: the last packet of the batch
    /// before has AckReq. If the quantum is, it is renewed early; a refusal ends the wait.
    #[inline]
    fn awaits_batch(&self, cursor: SendCursor, wqe: &SendWqe, room: u32, capacity: u32) -> bool {
        // The first packet of a WRITE is longer, and begins a batch in any case.
        let (begins, packets) = match wqe.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => (
                cursor.packet == 0,
                capacity.min(wqe.packets - cursor.packet),
            ),
            _ => (false, capacity),
        };
        !begins
            && room < packets
            && (room == self.window_room(cursor) || !self.quantum.is_refused())
    }

    /// Whether the last packet of an unsignaled work request should carry AckReq, because no packet
    /// with AckReq follows soon.
    fn ends_burst(&self, attr: &QpAttr, cursor: SendCursor) -> bool {
        let next = cursor.index + 1;
        match self.queue.get(next) {
            None => true,
            Some(_) if attr.state == QpState::Sqd && next >= self.begun => true,
            // A local operation completes after this work request, and may wait for it.
            Some(next) if next.op.is_local() => true,
            // A READ is sent when the window has room for all of its responses.
            Some(read) if read.op.has_response() => {
                self.room(cursor) <= read.packets.min(self.max_read_responses(cursor, attr))
            }
            Some(next) => self.credits.lacks(next),
        }
    }
}
