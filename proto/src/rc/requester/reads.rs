//! Requests that require a response: READ, the atomics, ATOMIC WRITE and FLUSH (9.7.5.2.1,
//! 9.7.5.2.2, A19).

use super::{Requester, Step};
use crate::host::{Access, Memory, Transmit};
use crate::psn::Psn;
use crate::qp::QpAttr;
use crate::queue::SendWqe;
use crate::service::Context;
use crate::wire::{AtomicEth, Headers, Operation, Position, Reth};
use crate::work::{Payload, SendOp, WcStatus};

/// The most bytes that one READ request asks for.
///
/// A longer READ is sent as several requests of consecutive PSNs, so that the requester limits the
/// responses in flight: the responder is not paced by acknowledgements.
const READ_PIECE: u32 = 64 * 1024;

/// The number of READ requests to keep outstanding, if the peer allows as many.
///
/// If one is lost, the responder detects the gap by the next.
const PIECES_UNDER_WAY: u8 = 2;

/// The end of a request that requires a response.
///
/// A repeated READ request must ask for a part of one request that the responder has executed, or
/// of none; the responder drops one that spans two (9.7.5.1.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadEnd {
    /// The PSN after the last response.
    pub(super) psn: Psn,
    /// Whether it is the end of a repeated request for a part of an earlier one. If the earlier
    /// request was lost, the responder has executed the part alone.
    is_part: bool,
}

impl Requester {
    /// Sends the next request that requires a response, or the next piece of a long READ.
    pub(super) fn send_with_response<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        wqe: &SendWqe,
        memory: &M,
        out: &mut T,
    ) -> Step {
        if cx.attr.max_rd_atomic == 0 {
            self.unsendable = Some((self.cursor, WcStatus::LocQpOpErr));
            return Step::Wait;
        }
        if self.awaiting.len() >= usize::from(cx.attr.max_rd_atomic) {
            return Step::Wait;
        }
        // Requests are repeated one at a time. A responder may discard its replay state before a
        // repeated READ: Linux's rxe advances the start of the range that it can replay, and would
        // then drop a repetition of an earlier part.
        if self.next_psn.before(self.sent_end) && !self.awaiting.is_empty() {
            return Step::Wait;
        }
        let mut packets = self.piece_of(cx, wqe);
        let room = self.window_room();
        if room < packets && self.in_flight() > 0 {
            return Step::Wait;
        }
        packets = packets.min(room).max(1);
        if self.next_psn.before(self.sent_end) {
            let end = self.attempt_end(self.next_psn, self.next_psn + packets);
            packets = end.diff(self.next_psn) as u32;
        }
        if self.granted() < packets {
            self.grant.set_wanted(true);
            return Step::Wait;
        }
        let step = self.request(cx, wqe, packets, memory, out);
        if matches!(step, Step::Sent) {
            self.awaiting.push_back(self.next_psn);
            self.note_part(self.next_psn);
        }
        step
    }

    /// The most responses that one READ request asks for.
    pub(super) fn read_piece(&self, attr: &QpAttr) -> u32 {
        let most = READ_PIECE / attr.path_mtu.bytes() as u32;
        // Requests are repeated one at a time.
        if self.next_psn.before(self.sent_end) {
            return most;
        }
        let pieces = attr.max_rd_atomic.clamp(1, PIECES_UNDER_WAY);
        (self.window.packets() / u32::from(pieces)).clamp(1, most)
    }

    /// The number of responses that a request at the cursor may ask for.
    fn piece_of(&self, cx: &Context<'_>, wqe: &SendWqe) -> u32 {
        let left = wqe.packets - self.cursor_packet;
        let packets = left.min(self.read_piece(cx.attr));
        match self.repeated_end(self.next_psn) {
            Some(end) => packets.min(end.diff(self.next_psn) as u32),
            None => packets,
        }
    }

    /// Returns the end of the original request for the response with this PSN.
    pub(super) fn request_end(&self, psn: Psn) -> Option<Psn> {
        let mut requests = self.read_ends.iter().filter(|end| !end.is_part);
        requests.find(|end| end.psn.after(psn)).map(|end| end.psn)
    }

    /// Returns the limit for the end of a repeated request for the response with this PSN.
    ///
    /// It is the end of the first earlier request, or part of one, that ends after `psn`.
    pub(super) fn repeated_end(&self, psn: Psn) -> Option<Psn> {
        let mut ends = self.read_ends.iter();
        ends.find(|end| end.psn.after(psn)).map(|end| end.psn)
    }

    /// Returns the last end before this PSN of a part that was requested by itself.
    pub(super) fn part_end_before(&self, psn: Psn) -> Option<Psn> {
        let parts = self.read_ends.iter().filter(|end| end.is_part);
        let mut earlier = parts.filter(|end| end.psn.before(psn));
        earlier.next_back().map(|end| end.psn)
    }

    /// Whether an original request ends at this PSN.
    pub(super) fn ends_request(&self, psn: Psn) -> bool {
        self.read_ends
            .iter()
            .any(|end| end.psn == psn && !end.is_part)
    }

    /// Sends the request at the cursor, for `packets` responses.
    pub(super) fn request<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        wqe: &SendWqe,
        packets: u32,
        memory: &M,
        out: &mut T,
    ) -> Step {
        let sges = match self.queue.payload(self.cursor, wqe) {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        };
        if memory.check_local(sges, Access::LOCAL_WRITE).is_err() {
            self.unsendable = Some((self.cursor, WcStatus::LocProtErr));
            return Step::Wait;
        }
        let mtu = cx.attr.path_mtu.bytes() as u64;
        let offset = u64::from(self.cursor_packet) * mtu;
        let length = (u64::from(wqe.len) - offset).min(u64::from(packets) * mtu) as u32;

        let request = |operation| {
            cx.request_header(
                wqe,
                operation,
                Position::Only,
                Headers::empty(),
                self.next_psn,
            )
            .with_ack_req(true)
        };
        let header = match wqe.op {
            SendOp::Read { addr, rkey } => {
                let addr = addr.wrapping_add(offset);
                request(Operation::ReadRequest).with_reth(Reth { addr, rkey, length })
            }
            SendOp::CompareSwap {
                addr,
                rkey,
                compare,
                swap,
            } => {
                let atomic = AtomicEth {
                    addr,
                    rkey,
                    swap_or_add: swap,
                    compare,
                };
                request(Operation::CompareSwap).with_atomic(atomic)
            }
            SendOp::FetchAdd { addr, rkey, add } => {
                let atomic = AtomicEth {
                    addr,
                    rkey,
                    swap_or_add: add,
                    compare: 0,
                };
                request(Operation::FetchAdd).with_atomic(atomic)
            }
            SendOp::AtomicWrite { addr, rkey, .. } => {
                request(Operation::AtomicWrite).with_reth(Reth {
                    addr,
                    rkey,
                    length: wqe.len,
                })
            }
            SendOp::Flush {
                addr,
                rkey,
                len,
                how,
            } => request(Operation::Flush).with_feth(how).with_reth(Reth {
                addr,
                rkey,
                length: len,
            }),
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::BindMw(_)
            | SendOp::LocalInv(_) => unreachable!("only what has a response comes here"),
        };
        let data: &[u8] = match &wqe.op {
            SendOp::AtomicWrite { value, .. } => value,
            _ => &[],
        };
        let header_len = header.len();
        let Some(packet) = out.stage(header_len + data.len()) else {
            return Step::Full;
        };
        header.emit(packet);
        packet[header_len..].copy_from_slice(data);
        out.commit();
        self.asked = self.next_psn + (packets - 1);
        let (first, end) = (self.next_psn, self.next_psn + packets);
        let is_new = !first.before(self.sent_end);
        self.sent(cx, wqe, packets, true, out.now());
        if is_new {
            let is_part = false;
            self.read_ends.push_back(ReadEnd { psn: end, is_part });
        } else if first == self.una {
            self.note_attempt(end);
        }
        Step::Sent
    }

    /// Records that a part of an earlier request was repeated by itself, and may be executed alone.
    fn note_part(&mut self, psn: Psn) {
        let at = self.read_ends.partition_point(|end| end.psn.before(psn));
        if self.read_ends.get(at).is_none_or(|end| end.psn != psn) {
            let is_part = true;
            self.read_ends.insert(at, ReadEnd { psn, is_part });
        }
    }
}
