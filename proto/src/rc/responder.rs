//! The responder: executes requests, and rejects those that violate a rule (9.7.4, 9.7.5.1, 9.9.3).
//!
//! A request is checked in the specification's order: its PSN, its place in the sequence of
//! opcodes, the queue pair's permission, its length, the availability of a receive or a resource,
//! and its access to memory. Only then is it executed. Two kinds differ: the permission of a FLUSH
//! is checked after its resources, and the shared receive queue of an XRC packet before its
//! permission. Each failed check determines the answer: drop, NAK or RNR NAK.

mod execution;

use super::loss_recovery::LossRecovery;
use super::out_of_order::{OutOfOrder, OutOfOrderBudget};
use super::read_reply::ReadReply;
use super::replies::{Replies, Sent};
use super::requester::Outcome;
use super::response_pacing::ResponsePacing;
use crate::host::{Access, Completions, Host, QpEvent, RemoteKey, Transmit};
use crate::placement::{Placement, remote_key};
use crate::psn::Psn;
use crate::qp::QpAttr;
use crate::qp_base::ReceiveSide;
use crate::queue::packets_of;
use crate::service::Context;
use crate::time::Time;
use crate::wire::{Header, NakCode, Operation, Packet, RnrTimer};
use crate::work::WcStatus;
use std::collections::VecDeque;
use std::sync::Arc;

/// The reason why a request is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// No receive is available; answered with an RNR NAK.
    NotReady,
    /// A fatal error: the NAK code, and the status of the receive that the request has consumed.
    Fatal(NakCode, WcStatus),
}

/// The number of extra copies of the final ACK or NAK on a connection that loses packets.
///
/// A retransmitted request finds no responder that could repeat the answer.
const FINAL_ACK_COPIES: usize = 2;

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, WcStatus::RemInvReqErr);
const NO_ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocAccessErr);

/// An executed READ or atomic, saved so that a duplicate can be answered (9.7.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Executed {
    first: Psn,
    end: Psn,
    kind: ExecutedKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExecutedKind {
    Read {
        addr: u64,
        key: RemoteKey,
        len: u32,
    },
    /// An atomic, with the original value; an ATOMIC WRITE or a FLUSH, without.
    SingleResponse {
        original: Option<u64>,
    },
}

/// The NAK state: which NAK was sent for the expected PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NakState {
    /// None.
    None,
    /// A NAK for a PSN sequence error, sent once per gap (9.7.5.1.2).
    SequenceError,
    /// An RNR NAK; the request and its successors are retransmitted.
    ReceiverNotReady,
}

/// The responder of a reliable connection.
#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN of the connection's first request.
    first: Psn,
    expected: Psn,
    /// Messages completed, modulo 2^24 (9.7.7.1).
    msn: u32,
    placement: Placement,
    nak_state: NakState,
    /// The requests that arrived behind the gap.
    out_of_order: OutOfOrder,
    executed: VecDeque<Executed>,
    /// The PSN after the last READ or atomic.
    response_end: Option<Psn>,
    replies: Replies,
    pacing: ResponsePacing,
    /// The time at which pacing permits the next response.
    paced_until: Time,
}

impl Responder {
    /// Returns a responder with this out-of-order queue.
    pub(super) fn new(out_of_order: OutOfOrder) -> Self {
        Responder {
            first: Psn::default(),
            expected: Psn::default(),
            msn: 0,
            placement: Placement::default(),
            nak_state: NakState::None,
            out_of_order,
            executed: VecDeque::new(),
            response_end: None,
            replies: Replies::default(),
            pacing: ResponsePacing::default(),
            paced_until: Time::NEVER,
        }
    }

    /// Makes the out-of-order queue allocate from `budget`.
    pub(super) fn share(&mut self, budget: Arc<OutOfOrderBudget>) {
        self.out_of_order.share(budget);
    }

    /// The time at which [`Responder::expire`] is to be called.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        self.out_of_order.deadline().min(self.paced_until)
    }

    /// Drops requests whose predecessors did not arrive in time. Responses that pacing permits now
    /// are sent by the next transmission.
    pub(super) fn expire(&mut self, now: Time) {
        self.out_of_order.expire(now);
        if self.paced_until <= now {
            self.paced_until = Time::NEVER;
        }
    }

    /// The next expected PSN.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Handles a request packet from UDP port `source_port`. Requests behind a gap are kept only if
    /// they come from the same port as the last one in order.
    pub(super) fn handle<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        source_port: u16,
        recovery: &LossRecovery,
        host: &mut H,
    ) -> Outcome {
        let psn = packet.header.bth.psn;
        let distance = psn.diff(self.expected);
        if distance > 0 {
            self.out_of_sequence(cx, packet, source_port, recovery);
            return Outcome::Continue;
        }
        if distance < 0 {
            cx.counters.duplicates += 1;
            self.duplicate(cx, &packet.header, host);
            return Outcome::Continue;
        }
        self.out_of_order
            .arrived_in_order(source_port, cx.now, recovery);
        if self.nak_state == NakState::SequenceError {
            // A late packet or a retransmission has closed the gap: a NAK that is still queued is
            // obsolete.
            self.replies.gap_closed();
        }
        let outcome = self.handle_expected(cx, packet, host);
        if outcome == Outcome::Continue && self.nak_state == NakState::None {
            match self.out_of_order.is_clear() {
                true => outcome,
                false => self.close_gap(cx, host),
            }
        } else {
            self.out_of_order.clear();
            outcome
        }
    }

    /// Handles a request behind a gap (9.7.5.1.2).
    #[cold]
    fn out_of_sequence(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        source_port: u16,
        recovery: &LossRecovery,
    ) {
        cx.counters.out_of_sequence += 1;
        if self.nak_state == NakState::ReceiverNotReady {
            return;
        }
        let expected = self.expected;
        self.out_of_order
            .insert(cx, packet, source_port, expected, recovery);
        if self.nak_state == NakState::None {
            self.report_gap();
        }
    }

    fn report_gap(&mut self) {
        self.nak_state = NakState::SequenceError;
        self.replies.gap(self.expected, self.msn);
    }

    /// Executes the queued requests up to the next gap, after the missing one has arrived.
    #[cold]
    fn close_gap<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) -> Outcome {
        let mut outcome = Outcome::Continue;
        let mut has_progressed = false;
        while let Some(queued) = self.out_of_order.take(self.expected) {
            has_progressed = true;
            cx.counters.out_of_order_executed += 1;
            outcome = self.handle_expected(cx, &queued.packet(), host);
            if self.nak_state != NakState::None || outcome != Outcome::Continue {
                self.out_of_order.clear();
                return outcome;
            }
        }
        // The requester waits for an answer to the missing request: acknowledge the progress. After
        // a READ or an atomic, the response does that.
        if has_progressed && self.response_end != Some(self.expected) {
            self.replies.ack(self.expected.prev(), self.msn);
        }
        if self.out_of_order.shows_gap(self.expected) {
            self.report_gap();
        }
        outcome
    }

    /// Executes the request with the expected PSN, or rejects it.
    #[inline(always)]
    fn handle_expected<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Outcome {
        let psn = packet.header.bth.psn;
        match self.execute(cx, packet, host) {
            Ok(()) => {
                self.nak_state = NakState::None;
                Outcome::Continue
            }
            Err(Refusal::NotReady) => {
                cx.counters.rnr_naks_sent += 1;
                self.nak_state = NakState::ReceiverNotReady;
                self.replies
                    .not_ready(psn, self.msn, RnrTimer::new(cx.attr.min_rnr_timer));
                Outcome::Continue
            }
            Err(Refusal::Fatal(code, status)) => {
                cx.counters.count_fatal_nak(code);
                self.replies.nak(psn, self.msn, code);
                self.abort(cx, code, status, host);
                Outcome::Failed
            }
        }
    }

    /// Sends queued answers. Returns whether the sink is full, and the outcome.
    pub(super) fn transmit<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
        out: &mut T,
    ) -> (bool, Outcome) {
        let mut outcome = Outcome::Continue;
        self.paced_until = Time::NEVER;
        loop {
            match self.replies.transmit(cx, &mut self.pacing, host, out) {
                Sent::All => return (false, outcome),
                Sent::Paced(until) => {
                    self.paced_until = until;
                    return (false, outcome);
                }
                Sent::Full => {
                    cx.counters.responses_deferred += 1;
                    return (true, outcome);
                }
                Sent::AccessLost => {
                    self.abort(cx, NakCode::RemoteAccess, WcStatus::LocAccessErr, host);
                    outcome = Outcome::Failed;
                }
            }
        }
    }

    /// Lets all responses be sent at once.
    pub(super) fn stop_pacing(&mut self) {
        self.pacing.stop();
    }

    /// Whether there are answers to send.
    pub(super) fn has_responses(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether a single ACK is all there is to send.
    pub(super) fn has_single_ack(&self) -> bool {
        self.replies.is_single_ack()
    }

    /// Queues the final ACK flush.
    ///
    /// After the queue pair is destroyed, no responder answers retransmitted requests. After a READ
    /// or an atomic nothing is sent: an ACK would signal that the response has arrived.
    pub(super) fn schedule_final_acks(&mut self) {
        let answers_last = self.response_end == Some(self.expected);
        if self.expected != self.first && !answers_last {
            self.replies
                .ack_repeatedly(self.expected.prev(), self.msn, FINAL_ACK_COPIES);
        }
    }

    /// Ends the connection after a request was answered with a fatal NAK.
    ///
    /// The error is reported by the completion of the receive that the request has consumed, or
    /// else by an event (10.10.2.3, 11.6.3.2).
    fn abort<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        code: NakCode,
        status: WcStatus,
        host: &mut H,
    ) {
        // In the error state a retransmitted request is dropped silently (10.3.1.7).
        if cx.counters.indicate_loss() {
            self.replies.repeat_last(FINAL_ACK_COPIES);
        }
        if !self.placement.abort(cx.qpn, status, host) {
            host.event(match code {
                NakCode::RemoteAccess => QpEvent::AccessError,
                _ => QpEvent::RequestError,
            });
        }
    }

    /// Answers a duplicate request (9.7.5.1.1). The current message is not affected.
    #[cold]
    fn duplicate<H: Host>(&mut self, cx: &mut Context<'_>, header: &Header, host: &mut H) {
        let psn = header.bth.psn;
        match header.bth.opcode.info().operation {
            Operation::Send | Operation::Write => {
                // An ACK past a READ would signal that its response has arrived.
                let past_response = self.response_end.is_some_and(|end| psn.before(end));
                let done = if past_response {
                    psn
                } else {
                    self.expected.prev()
                };
                self.replies.ack(done, self.msn);
            }
            Operation::Reserved => {}
            Operation::ReadRequest => {
                if let Some(read) = self.repeated_read(cx, header, host) {
                    self.replies.repeat_read(self.msn, read);
                }
            }
            _ => {
                let saved = self.executed.iter().find(|executed| executed.first == psn);
                if let Some(Executed {
                    kind: ExecutedKind::SingleResponse { original },
                    ..
                }) = saved
                {
                    self.replies
                        .repeat_single_response(psn, self.msn, *original);
                }
            }
        }
    }

    /// Returns the reply to a repeated READ.
    ///
    /// The repeated READ may request any part of the original range that begins at a packet of it;
    /// any other one is dropped (9.7.5.1.1).
    fn repeated_read<H: Host>(
        &self,
        cx: &Context<'_>,
        header: &Header,
        host: &H,
    ) -> Option<ReadReply> {
        let psn = header.bth.psn;
        let reth = header.reth.as_ref()?;
        let executed = self
            .executed
            .iter()
            .find(|executed| !psn.before(executed.first) && psn.before(executed.end))?;
        let ExecutedKind::Read { addr, key, len } = executed.kind else {
            return None;
        };
        let skipped = psn.diff(executed.first) as u64 * cx.attr.path_mtu.bytes() as u64;
        let end = psn + packets_of(reth.length, cx.attr.path_mtu);
        let fits = remote_key(header, reth.rkey) == key
            && reth.addr == addr.wrapping_add(skipped)
            && skipped + u64::from(reth.length) <= u64::from(len)
            && !end.after(executed.end);
        if !fits {
            return None;
        }
        // The key may have been invalidated since.
        if reth.length > 0 {
            let len = u64::from(reth.length);
            host.check_remote(key, reth.addr, len, Access::REMOTE_READ)
                .ok()?;
        }
        Some(ReadReply {
            first: psn,
            end,
            addr: reth.addr,
            key,
            left: reth.length,
            is_duplicate: true,
        })
    }
}

impl ReceiveSide for Responder {
    fn start(&mut self, attr: &QpAttr) {
        self.reset();
        self.first = attr.rq_psn;
        self.expected = attr.rq_psn;
    }

    fn reset(&mut self) {
        self.out_of_order.reset();
        *self = Responder::new(std::mem::take(&mut self.out_of_order));
    }

    /// A pending fatal NAK is still sent.
    fn stop<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        self.placement.abort(cx.qpn, WcStatus::WrFlushErr, host);
        self.out_of_order.clear();
        self.replies.stop();
        self.pacing.stop();
        self.paced_until = Time::NEVER;
    }
}
