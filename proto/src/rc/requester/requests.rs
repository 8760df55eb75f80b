//! Sending of requests that require a response: READ, the atomics, ATOMIC WRITE and FLUSH
//! (9.7.5.2.1,
//! 9.7.5.2.2, A19).

use super::send_cursor::SendCursor;
use super::{Requester, Step};
use crate::host::{Access, Memory, Transmit};
use crate::qp::QpAttr;
use crate::queue::SendWqe;
use crate::service::Context;
use crate::wire::{AtomicEth, Headers, Operation, Position, Reth};
use crate::work::{Payload, SendOp, WcStatus};

/// The most bytes that one READ request asks for, unless a larger window requires more.
///
/// A longer READ is sent as several requests of consecutive PSNs, so that the requester limits the
/// responses in flight: the responder is not paced by acknowledgements.
const MAX_READ_REQUEST: u32 = 64 * 1024;

/// The most READ requests that share a window beyond the base window.
///
/// More requests are smaller, and the responses arrive in shorter bursts.
const READ_REQUESTS_OF_LARGE_WINDOW: u8 = 16;

/// The number of READ requests to keep outstanding, if the peer allows as many.
///
/// If one is lost, the responder detects the gap by the next.
const OUTSTANDING_READ_REQUESTS: u8 = 2;

impl Requester {
    /// Sends the next request that requires a response, or the next piece of a long READ.
    #[inline(never)]
    pub(super) fn send_with_response<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        cursor: SendCursor,
        wqe: &SendWqe,
        memory: &M,
        out: &mut T,
    ) -> Step {
        if cx.attr.max_rd_atomic == 0 {
            self.unsendable = Some((cursor.index, WcStatus::LocQpOpErr));
            return Step::Wait;
        }
        if self.requests.outstanding() >= usize::from(cx.attr.max_rd_atomic) {
            return Step::Wait;
        }
        // Requests are repeated one at a time. A responder may discard its replay state before a
        // repeated READ: Linux's rxe advances the start of the range that it can replay, and would
        // then drop a repetition of an earlier part.
        let is_repeated = cursor.psn.before(self.sent_end);
        if is_repeated && self.requests.outstanding() > 0 {
            return Step::Wait;
        }
        if !is_repeated && self.would_drop_response(cursor) {
            return Step::Wait;
        }
        let mut packets = self.request_length(cx, cursor, wqe);
        let in_flight = cursor.in_flight(self.una);
        let room = match in_flight {
            // The only request may ask for more than the window.
            0 => self.window_room(cursor).max(self.single_read.length()),
            _ => self.window_room(cursor),
        };
        if room < packets && in_flight > 0 {
            return Step::Wait;
        }
        packets = packets.min(room).max(1);
        if is_repeated {
            let end = self.attempt_end(cursor.psn, cursor.psn + packets);
            packets = end.diff(cursor.psn) as u32;
        }
        // Pacing delays a request until it permits a packet, and later packets for all responses.
        let quantum = match self.pacing.is_active() {
            true => u32::from(in_flight > 0),
            false => packets,
        };
        if self.quantum_room(cursor) < quantum {
            self.quantum.set_needed(true);
            return Step::Wait;
        }
        let step = self.request(cx, cursor, wqe, packets, memory, out);
        if let Step::Sent(next) = step {
            let is_single = cx.attr.max_rd_atomic == 1 && self.window.may_exceed_base();
            if is_single && !is_repeated && matches!(wqe.op, SendOp::Read { .. }) {
                self.single_read.sent(cursor.psn, next.psn, out.now());
            }
            self.requests.add_outstanding(next.psn);
            self.requests.add_part(next.psn);
        }
        step
    }

    /// The most responses that one READ request at the cursor asks for.
    pub(super) fn max_read_responses(&self, cursor: SendCursor, attr: &QpAttr) -> u32 {
        let most = MAX_READ_REQUEST / attr.path_mtu.bytes() as u32;
        // Requests are repeated one at a time.
        if cursor.psn.before(self.sent_end) {
            return most;
        }
        let window = self.window.packets();
        let requests = attr.max_rd_atomic.clamp(1, READ_REQUESTS_OF_LARGE_WINDOW);
        // A request does not exceed a send quantum, which may be as small.
        let most = match self.quantum.is_required() {
            true => most,
            false => window.div_ceil(u32::from(requests)).max(most),
        };
        let length = self.single_read.length();
        if length > window {
            return length;
        }
        if window > self.window.base() {
            return most;
        }
        let requests = requests.min(OUTSTANDING_READ_REQUESTS);
        (window / u32::from(requests)).clamp(1, most)
    }

    /// The number of responses that a request at the cursor may ask for.
    fn request_length(&self, cx: &Context<'_>, cursor: SendCursor, wqe: &SendWqe) -> u32 {
        let left = wqe.packets - cursor.packet;
        let packets = left.min(self.max_read_responses(cursor, cx.attr));
        match self.requests.repeated_end(cursor.psn) {
            Some(end) => packets.min(end.diff(cursor.psn) as u32),
            None => packets,
        }
    }

    /// Sends the request at the cursor, for `packets` responses.
    pub(super) fn request<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        cursor: SendCursor,
        wqe: &SendWqe,
        packets: u32,
        memory: &M,
        out: &mut T,
    ) -> Step {
        let sges = match self.queue.payload(cursor.index, wqe) {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        };
        if memory.check_local(sges, Access::LOCAL_WRITE).is_err() {
            self.unsendable = Some((cursor.index, WcStatus::LocProtErr));
            return Step::Wait;
        }
        let mtu = cx.attr.path_mtu.bytes() as u64;
        let offset = u64::from(cursor.packet) * mtu;
        let length = (u64::from(wqe.len) - offset).min(u64::from(packets) * mtu) as u32;

        let request = |operation| {
            cx.request_header(wqe, operation, Position::Only, Headers::empty(), cursor.psn)
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
            | SendOp::LocalInv(_) => {
                unreachable!("the caller passes only operations that have a response")
            }
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
        let is_new = !cursor.psn.before(self.sent_end);
        let next = SendCursor {
            last_ack_req: cursor.psn + (packets - 1),
            ..cursor.after(wqe, packets)
        };
        self.sent(cx, cursor, next, true, out.now());
        if is_new {
            self.requests.add_original(next.psn);
        } else if cursor.psn == self.una {
            self.note_attempt(next.psn);
        }
        Step::Sent(next)
    }
}
