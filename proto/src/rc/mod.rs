//! The state machine of a reliable connection (9.7), split by role.
//!
//! An extended reliable connection (A14) uses the same code with each role in a queue pair of its
//! own.
//!
//! - `requester`: sends work requests, processes acknowledgements and responses.
//! - `responder`: executes requests and queues the answers in `replies`.
//! - `out_of_order`: keeps requests that arrived behind a gap until the gap closes.
//! - `replies`: sends acknowledgements and responses in PSN order.
//! - `response_pacing`: spreads the responses to long READ requests over time.
//! - `loss_recovery`: timers, retries and round trips; [`congestion`]: the congestion window.
//! - `reordering`: how long a repair waits for a late packet.
//!
//! [`RcQp`] combines them with the states of the queue pair. The caller passes in packets with a
//! valid ICRC, polls for packets to send after every call, and calls [`RcQp::handle_timeout`] at
//! the deadline.

pub mod congestion;
mod loss_recovery;
mod out_of_order;
mod read_reply;
mod reordering;
mod replies;
mod requester;
mod responder;
mod response_pacing;
#[cfg(test)]
mod tests;

pub use crate::qp::{Counters, MAX_RD_ATOMIC};
pub use out_of_order::OutOfOrderBudget;

use crate::host::{Host, Transmit};
use crate::ids::{Qpn, Source};
use crate::qp::{AttrMask, QpAttr, QpState, QpType, TransitionError};
use crate::qp_base::QpBase;
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::time::Time;
use crate::wire::{Header, Operation, Packet, Transport};
use crate::work::{Destination, SendWr};
use congestion::{Algorithm, NOTIFICATION_INTERVAL, WindowLimits};
use out_of_order::OutOfOrder;
use requester::{Outcome, Requester};
use responder::Responder;
use std::sync::Arc;
use std::time::Duration;

/// The parameters with which a reliable connected queue pair is created.
#[derive(Clone, Copy, Debug)]
pub struct RcConfig {
    /// The roles: [`QpType::Rc`] is requester and responder, [`QpType::XrcIni`] the requester and
    /// [`QpType::XrcTgt`] the responder of an extended reliable connection.
    pub service: QpType,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The limits of the send queue.
    pub send: SendQueueSize,
    /// Whether every send work request generates a completion.
    pub signal_all: bool,
    /// The limits of the congestion window.
    pub window: WindowLimits,
    /// The limit of the out-of-order queue's memory, in bytes; with 0, packets behind a gap are
    /// dropped. The peer's window plus room for headers suffices.
    pub out_of_order_bytes: u32,
    /// The congestion control algorithm.
    pub congestion: Algorithm,
}

/// A reliable connected queue pair, or one role of an extended reliable connection.
#[derive(Debug)]
pub struct RcQp {
    base: QpBase,
    requester: Requester,
    responder: Responder,
    /// Whether answers filled the sink last time. Requests then go first, so that the responses to
    /// long READs cannot block them indefinitely.
    requests_first: bool,
    /// Whether a CNP is to be sent to the peer.
    cnp_due: bool,
    /// The time at which the last CNP was scheduled.
    cnp_scheduled_at: Option<Time>,
}

impl RcQp {
    /// Returns a queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] if the send queue cannot be allocated.
    pub fn new(config: RcConfig) -> Result<Self, NoMemory> {
        Ok(RcQp {
            base: QpBase::new(config.service, config.qpn, QpAttr::default()),
            requester: Requester::new(
                config.send,
                config.signal_all,
                config.congestion,
                config.window,
            )?,
            responder: Responder::new(OutOfOrder::new(config.out_of_order_bytes)),
            requests_first: false,
            cnp_due: false,
            cnp_scheduled_at: None,
        })
    }

    /// Makes the out-of-order queue allocate from `budget`, which other queue pairs share.
    ///
    /// Requests beyond the budget are dropped, like those beyond [`RcConfig::out_of_order_bytes`].
    pub fn share_out_of_order_budget(&mut self, budget: Arc<OutOfOrderBudget>) {
        self.responder.share(budget);
    }

    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.base.qpn()
    }

    /// The state of the queue pair.
    pub fn state(&self) -> QpState {
        self.base.attr.state
    }

    /// The counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.base.counters
    }

    /// The current attributes; `sq_psn` and `rq_psn` are the next PSN sent and the next expected.
    pub fn attributes(&self) -> QpAttr {
        self.base
            .attributes(&self.requester, Some(self.responder.expected()))
    }

    /// The limits with which the send queue was created.
    pub fn send_queue_size(&self) -> SendQueueSize {
        self.requester.size()
    }

    /// The number of work requests for which the send queue has room.
    pub fn send_queue_room(&self) -> u32 {
        self.requester.queue_room()
    }

    /// Changes attributes, and the state if `mask` contains it (11.2.4.2).
    ///
    /// On an error nothing changes.
    pub fn modify<H: Host>(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
    ) -> Result<(), TransitionError> {
        let path = self.base.attr.av;
        let (requester, responder) = (&mut self.requester, &mut self.responder);
        self.base
            .modify(new, mask, now, host, requester, responder)?;
        let attr = &self.base.attr;
        if attr.state == QpState::Reset {
            self.cnp_due = false;
            self.cnp_scheduled_at = None;
        }
        if attr.av != path && attr.state.initiates() {
            self.requester.path_changed(attr);
        }
        Ok(())
    }

    /// Sets the retransmission timeout until the first round trip of the path is measured. Without
    /// it that is 1 s, which a longer `timeout` does not exceed. The local ACK timeout still limits
    /// it. Call it in RTS; the transition to RTR and another path end it.
    pub fn seed_timeout(&mut self, timeout: Duration) {
        self.requester.seed_timeout(timeout);
    }

    /// Posts a send work request. In the error state it is flushed at once (10.3.1.7).
    pub fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.base.check_post(wr)?;
        if self.base.service() == QpType::XrcIni {
            if !wr.op.is_local() && wr.dest.and_then(Destination::srq).is_none() {
                return Err(PostError::Destination);
            }
        } else if wr.dest.is_some() {
            let wr = SendWr { dest: None, ..*wr };
            return self.base.post_send(&wr, now, host, &mut self.requester);
        }
        self.base.post_send(wr, now, host, &mut self.requester)
    }

    /// Reports that a receive was posted to the queue pair's own queue.
    ///
    /// In the error state it is flushed at once.
    pub fn receive_posted<H: Host>(&mut self, host: &mut H) {
        self.base.receive_posted(host);
    }

    /// Handles a packet for this queue pair whose ICRC is valid.
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        from: Source,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.header.bth;
        if !self.base.accepts_packet(from.gid, bth, host) {
            return;
        }
        let info = bth.opcode.info();
        if info.transport == Transport::Cnp {
            self.base.counters.received_packets += 1;
            self.base.counters.cnps_received += 1;
            if self.base.attr.state.initiates() {
                self.requester.cnp_received(now);
            }
            return;
        }
        let role = match self.base.service() {
            QpType::XrcIni => info.operation.is_response(),
            QpType::XrcTgt => info.operation.is_request(),
            _ => true,
        };
        if info.transport != self.base.transport() || !role {
            self.base.counters.malformed += 1;
            return;
        }
        self.base.counters.received_packets += 1;
        if self.base.packet_accepted(from.gid, bth, host) {
            self.requester.path_changed(&self.base.attr);
        }
        let outcome = if info.operation.is_request() {
            let (mut cx, recovery) = (self.base.context(now), self.requester.recovery());
            self.responder
                .handle(&mut cx, packet, from.port, recovery, host)
        } else if self.base.attr.state == QpState::Rtr {
            // No request was sent yet.
            self.base.counters.stale_responses += 1;
            Outcome::Continue
        } else {
            self.handle_response(now, packet, host)
        };
        self.conclude(outcome, now, host);
    }

    /// Reports that the packet just handled was ECN-marked (RFC 3168), and schedules a CNP.
    ///
    /// At most one CNP is sent for each `NOTIFICATION_INTERVAL` (A17.9.3). A CNP that is itself
    /// marked causes none: otherwise the two ends would notify each other endlessly.
    pub fn handle_ecn_mark(&mut self, now: Time, packet: &Packet<'_>) {
        self.base.counters.ecn_marked += 1;
        if packet.header.bth.opcode.info().transport == Transport::Cnp {
            return;
        }
        let is_recent = |at: Time| now.since(at) < NOTIFICATION_INTERVAL;
        if self.base.attr.state.handles_packets() && !self.cnp_scheduled_at.is_some_and(is_recent) {
            self.cnp_due = true;
            self.cnp_scheduled_at = Some(now);
        }
    }

    /// Sends the CNP that is due. Returns false when the sink is full.
    #[cold]
    fn transmit_cnp<T: Transmit>(&mut self, out: &mut T) -> bool {
        let header = Header::cnp(self.base.attr.dest_qpn);
        let Some(packet) = out.stage(header.len()) else {
            return false;
        };
        header.emit(packet);
        out.commit();
        self.cnp_due = false;
        self.base.counters.sent_packets += 1;
        self.base.counters.cnps_sent += 1;
        true
    }

    fn handle_response<H: Host>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Outcome {
        let header = &packet.header;
        let psn = header.bth.psn;
        let (mut cx, requester) = (self.base.context(now), &mut self.requester);
        match (
            header.bth.opcode.info().operation,
            &header.aeth,
            header.atomic_ack,
        ) {
            (Operation::Ack, Some(aeth), _) => requester.acknowledge(&mut cx, psn, aeth, host),
            (Operation::ReadResponse, aeth, _) => {
                requester.read_response(&mut cx, psn, aeth.as_ref(), packet.payload, host)
            }
            (Operation::AtomicAck, Some(aeth), Some(original)) => {
                requester.atomic_response(&mut cx, psn, aeth, original, host)
            }
            _ => {
                cx.counters.malformed += 1;
                Outcome::Continue
            }
        }
    }

    /// The time at which [`RcQp::handle_timeout`] is to be called.
    #[inline]
    pub fn deadline(&self) -> Time {
        let requester = match self.base.attr.state.initiates() {
            true => self.requester.deadline(),
            false => Time::NEVER,
        };
        requester.min(self.responder.deadline())
    }

    /// Whether the oldest packet without an answer, or its response, is long enough to exceed the
    /// MTU of a link.
    pub fn awaits_long_packet(&self) -> bool {
        self.requester.is_oldest_long(self.base.attr.path_mtu)
    }

    /// Runs the timers that have expired at `now`.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        self.responder.expire(now);
        if self.base.attr.state.initiates() {
            let mut cx = self.base.context(now);
            let outcome = self.requester.expire(&mut cx, host);
            self.conclude(outcome, now, host);
        }
    }

    /// Sends pending packets: answers first, since the peer waits for them, then requests.
    ///
    /// The two alternate when the sink is too small for all of it. Returns true when the sink is
    /// full and more is pending.
    ///
    /// Inlined into the caller, which has one call for each kind of sink: for a small message,
    /// saving and restoring registers is a large part of the cost of each function on its way.
    #[inline(always)]
    pub fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        if self.cnp_due && !self.transmit_cnp(out) {
            return true;
        }
        let requests_first = std::mem::take(&mut self.requests_first);
        let mut cx = self.base.context(now);
        let (requester, responder) = (&mut self.requester, &mut self.responder);
        let mut outcome = Outcome::Continue;
        let mut responses_fill = false;
        // Usually only one of the two has something to send.
        let mut full =
            requests_first && !requester.is_idle() && requester.transmit(&mut cx, host, out);
        if !full && responder.has_responses() {
            (full, outcome) = responder.transmit(&mut cx, host, out);
            responses_fill = full;
        }
        if outcome == Outcome::Continue && !requester.is_idle() {
            full = full || (!requests_first && requester.transmit(&mut cx, host, out));
            outcome = requester.fail_unsendable(&mut cx, host);
        }
        self.requests_first = responses_fill;
        self.conclude(outcome, now, host);
        full
    }

    /// Whether [`RcQp::poll_transmit`] would send nothing and change nothing, because the send queue
    /// and the queue of responses are empty. A connection that only waits for its window or for a
    /// response is not idle.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.requester.is_idle()
            && !self.responder.has_responses()
            && !self.cnp_due
            && !self.base.is_draining()
            && !self.requests_first
    }

    /// Whether a single ACK is all there is to send and the send queue is empty.
    ///
    /// The ACK may then be delayed until requests are posted; the next poll sends those first. The
    /// PSNs of the two directions are independent, so this order is allowed.
    pub fn defer_ack(&mut self) -> bool {
        let idle = self.requester.queue_room() == self.requester.size().max_wr;
        let defers = idle && !self.cnp_due && self.responder.has_single_ack();
        self.requests_first |= defers;
        defers
    }

    /// Sends pending answers and no requests, before the queue pair leaves the states that handle
    /// packets.
    ///
    /// Returns true when the sink is full and more is pending.
    pub fn poll_responses<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let mut cx = self.base.context(now);
        self.responder.stop_pacing();
        let (full, outcome) = self.responder.transmit(&mut cx, host, out);
        self.conclude(outcome, now, host);
        full
    }

    /// Sets whether new packets also need a send quantum from [`RcQp::renew_send_quantum`], or the
    /// window only.
    ///
    /// Quanta serve a driver with several connections to one receiver, which share its receive
    /// buffer. The window then never exceeds [`WindowLimits::base_bytes`].
    pub fn require_send_quanta(&mut self, required: bool) {
        self.requester.require_quanta(required);
    }

    /// Raises the send quantum to `bytes`, if less than that is left of earlier ones.
    ///
    /// The quantum counts data that is sent or requested for the first time, and is rounded down to
    /// packets. A quantum below the size of a READ request, 64 KiB, may block that request.
    pub fn renew_send_quantum(&mut self, bytes: u32) {
        let packets = bytes / self.base.attr.path_mtu.bytes() as u32;
        self.requester.renew_quantum(packets);
    }

    /// Reports that no send quantum is to be had now. Returns whether another poll may send packets
    /// with the rest of the present one: those that would have filled a batch with a new one.
    pub fn refuse_send_quantum(&mut self) -> bool {
        self.requester.refuse_quantum()
    }

    /// Whether the next poll withholds a packet unless the send quantum, which is used up, is
    /// renewed before.
    #[inline]
    pub fn has_spent_send_quantum(&self) -> bool {
        self.requester.has_spent_quantum()
    }

    /// Whether the last poll withheld a packet for lack of a send quantum.
    pub fn needs_send_quantum(&self) -> bool {
        self.requester.needs_quantum()
    }

    /// The upper bound of the bytes in flight: unanswered packets times the path MTU.
    #[inline]
    pub fn bytes_in_flight(&self) -> u32 {
        match self.base.attr.state.initiates() {
            true => self.requester.in_flight() * self.base.attr.path_mtu.bytes() as u32,
            false => 0,
        }
    }

    /// The congestion window in packets.
    pub fn congestion_window(&self) -> u32 {
        self.requester.congestion_window()
    }

    /// The smoothed round-trip time (RFC 6298); `None` before the first sample.
    pub fn smoothed_round_trip(&self) -> Option<Duration> {
        self.requester.recovery().smoothed_round_trip()
    }

    /// The timeout that the measured round trips require, before a back-off.
    pub fn retransmission_timeout(&self) -> Duration {
        self.requester.recovery().timeout()
    }

    /// Schedules the final ACK flush of a queue pair that is about to be destroyed.
    ///
    /// On a path that loses packets the last acknowledgement may be lost too, and after destruction
    /// it cannot be repeated. The next [`RcQp::poll_responses`] therefore sends it more than once.
    pub fn schedule_final_acks(&mut self) {
        let is_responder = self.base.service() != QpType::XrcIni;
        if is_responder
            && self.base.attr.state.handles_packets()
            && self.base.counters.indicate_loss()
        {
            self.responder.schedule_final_acks();
        }
    }

    /// Whether the queue pair has migrated to its alternate path since the last call (17.2.8).
    pub fn take_migrated(&mut self) -> bool {
        self.base.migration.take_migrated()
    }

    /// Sends a keep-alive: a WRITE of length 0 with the PSN of the last acknowledged request.
    ///
    /// The responder acknowledges it as a duplicate without executing it (9.7.5.1.1). Returns false
    /// when none is sent: an answer is outstanding already, the receiver is not ready, or the
    /// queue pair sends no requests.
    pub fn poll_keep_alive<T: Transmit>(&mut self, now: Time, out: &mut T) -> bool {
        if self.base.service() != QpType::Rc || !self.base.attr.state.initiates() {
            return false;
        }
        self.requester
            .send_keep_alive(&mut self.base.context(now), out)
    }

    /// Reports that the peer process has ended.
    ///
    /// The effect is that of exhausted retries: the oldest unacknowledged work request completes
    /// with [`crate::work::WcStatus::RetryExcErr`], all others are flushed.
    pub fn handle_peer_exit<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.base.attr.state.handles_packets() {
            let outcome = match self.requester.awaits_answer() {
                true => self.requester.give_up(&mut self.base.context(now), host),
                false => Outcome::Failed,
            };
            self.conclude(outcome, now, host);
        }
    }

    /// Moves the queue pair to the error state after an error of the completion queue or the
    /// device.
    ///
    /// The error itself generates no completion (10.9.3).
    pub fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        let (requester, responder) = (&mut self.requester, &mut self.responder);
        self.base.fail(now, host, requester, responder);
    }

    #[inline]
    fn conclude<H: Host>(&mut self, outcome: Outcome, now: Time, host: &mut H) {
        match outcome {
            Outcome::Continue => self.base.report_drained(host, &self.requester),
            _ => self.conclude_failure(outcome, now, host),
        }
    }

    #[cold]
    fn conclude_failure<H: Host>(&mut self, outcome: Outcome, now: Time, host: &mut H) {
        match outcome {
            // The transmission of a queued answer failed when the queue pair was already in error.
            Outcome::Failed if self.base.attr.state == QpState::Err => {}
            Outcome::Failed => {
                let (requester, responder) = (&mut self.requester, &mut self.responder);
                self.base.enter_error(now, host, requester, responder);
            }
            Outcome::RetriesExceeded if self.base.fail_over(host) => {
                self.requester.start_over(&self.base.attr);
            }
            Outcome::RetriesExceeded => {
                let mut cx = self.base.context(now);
                let outcome = self.requester.give_up(&mut cx, host);
                self.conclude(outcome, now, host);
            }
            Outcome::Continue => {}
        }
    }
}
