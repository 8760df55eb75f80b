//! The state machine of a reliable connection (9.7), split by role.
//!
//! An extended reliable connection (A14) uses the same code with each role in a queue pair of its
//! own.
//!
//! - `requester`: sends work requests, processes acknowledgements and responses.
//! - `responder`: executes requests and queues the answers in `replies`.
//! - `out_of_order`: keeps requests that arrived behind a gap until the gap closes.
//! - `replies`: sends acknowledgements and responses in PSN order.
//! - `retransmit`: timers and retry counters; [`congestion`]: the congestion window.
//!
//! [`RcQp`] combines them with the states of the queue pair. The caller passes in packets with a
//! valid ICRC, polls for packets to send after every call, and calls [`RcQp::handle_timeout`] at
//! the deadline.

pub mod congestion;
mod out_of_order;
mod replies;
mod requester;
mod responder;
mod retransmit;
#[cfg(test)]
mod tests;

pub use crate::qp::{Counters, MAX_RD_ATOMIC};
pub use out_of_order::OutOfOrderBudget;

use crate::host::{Completions, Host, QpEvent, Transmit};
use crate::ids::{Qpn, Source};
use crate::qp::{AttrMask, Migration, QpAttr, QpState, QpType, TransitionError};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::service::{Context, accepts_packet, discard_receives, flush_receives};
use crate::time::Time;
use crate::wire::{Header, Operation, Packet, Transport};
use crate::work::{Destination, SendWr};
use congestion::notified::NOTIFICATION_INTERVAL;
use congestion::{Algorithm, Window};
use out_of_order::OutOfOrder;
use requester::{Outcome, Requester};
use responder::Responder;
use std::sync::Arc;

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
    /// The upper bound of the congestion window, in bytes.
    pub window_bytes: u32,
    /// The limit of the out-of-order queue's memory, in bytes; with 0, packets behind a gap are
    /// dropped. The peer's window plus room for headers suffices.
    pub hold_bytes: u32,
    /// The congestion control algorithm.
    pub congestion: Algorithm,
}

/// A reliable connected queue pair, or one role of an extended reliable connection.
#[derive(Debug)]
pub struct RcQp {
    config: RcConfig,
    attr: QpAttr,
    migration: Migration,
    requester: Requester,
    responder: Responder,
    /// Whether `CommunicationEstablished` was raised for the first packet in RTR.
    established: bool,
    /// Whether `SendQueueDrained` is to be raised at the end of draining.
    draining: bool,
    /// Whether answers filled the sink last time. Requests then go first, so that the responses to
    /// long READs cannot block them indefinitely.
    requests_first: bool,
    /// Whether a CNP is to be sent to the peer.
    notification_due: bool,
    /// The time at which the last CNP was scheduled.
    notified_at: Option<Time>,
    counters: Counters,
}

impl RcQp {
    /// Returns a queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] if the send queue cannot be allocated.
    pub fn new(config: RcConfig) -> Result<Self, NoMemory> {
        let attr = QpAttr::default();
        Ok(RcQp {
            requester: Requester::new(config.send, config.signal_all, window(&config, &attr))?,
            responder: Responder::new(OutOfOrder::new(config.hold_bytes)),
            config,
            attr,
            migration: Migration::default(),
            established: false,
            draining: false,
            requests_first: false,
            notification_due: false,
            notified_at: None,
            counters: Counters::default(),
        })
    }

    /// Makes the out-of-order queue allocate from `budget`, which other queue pairs share.
    ///
    /// Requests beyond the budget are dropped, like those beyond [`RcConfig::hold_bytes`].
    pub fn share_out_of_order_budget(&mut self, budget: Arc<OutOfOrderBudget>) {
        self.responder.share(budget);
    }

    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// The state of the queue pair.
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// The counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The current attributes; `sq_psn` and `rq_psn` are the next PSN sent and the next expected.
    pub fn attributes(&self) -> QpAttr {
        let mut attr = self.attr;
        attr.cur_state = self.attr.state;
        attr.sq_draining = self.attr.state == QpState::Sqd && !self.requester.is_drained();
        if self.attr.state.handles_packets() {
            attr.rq_psn = self.responder.expected();
        }
        if self.attr.state.accepts_sends() {
            attr.sq_psn = self.requester.next_psn();
        }
        attr
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
        let service = self.config.service;
        let path = self.attr.av;
        let (from, to) = self
            .migration
            .change(&mut self.attr, service, new, mask, host)?;
        match (from, to) {
            (_, QpState::Reset) => self.reset(host),
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => self.flush(now, host),
            (_, QpState::Rtr) => self.responder.start(&self.attr),
            (QpState::Rtr, QpState::Rts) => {
                self.requester
                    .reset(&self.attr, window(&self.config, &self.attr));
            }
            (QpState::Sqd, QpState::Rts) => {
                self.draining = false;
                self.requester.configure(&self.attr);
            }
            (QpState::Rts, QpState::Sqd) => {
                self.draining = self.attr.en_sqd_async_notify;
                self.requester.drain();
                self.announce_drained(host);
            }
            _ => self.requester.configure(&self.attr),
        }
        if self.attr.av != path && self.attr.state.initiates() {
            let window = window(&self.config, &self.attr);
            self.requester.path_changed(&self.attr, window);
        }
        Ok(())
    }

    /// Posts a send work request. In the error state it is flushed at once (10.3.1.7).
    pub fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        if !self.attr.state.accepts_sends() {
            return Err(PostError::State);
        }
        match self.config.service {
            service if !wr.op.is_supported_by(service) => return Err(PostError::Operation),
            QpType::XrcIni if !wr.op.is_local() && wr.dest.and_then(Destination::srq).is_none() => {
                return Err(PostError::Destination);
            }
            QpType::XrcIni => self.requester.post(wr, &self.attr)?,
            _ => self
                .requester
                .post(&SendWr { dest: None, ..*wr }, &self.attr)?,
        }
        if self.attr.state.flushes_sends() {
            let (mut cx, requester, _) = self.parts(now);
            requester.flush(&mut cx, host);
        }
        Ok(())
    }

    /// Reports that a receive was posted to the queue pair's own queue.
    ///
    /// In the error state it is flushed at once.
    pub fn receive_posted<H: Host>(&mut self, host: &mut H) {
        if self.attr.state.flushes_receives() && host.receive_credits().is_some() {
            flush_receives(self.config.qpn, host);
        }
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
        let (attr, migration) = (&mut self.attr, &mut self.migration);
        if !accepts_packet(attr, migration, &mut self.counters, from.gid, bth, host) {
            return;
        }
        let info = bth.opcode.info();
        if info.transport == Transport::Cnp {
            self.counters.received_packets += 1;
            self.counters.cnps_received += 1;
            if self.attr.state.initiates() {
                self.requester.notified(now);
            }
            return;
        }
        let role = match self.config.service {
            QpType::XrcIni => info.operation.is_response(),
            QpType::XrcTgt => info.operation.is_request(),
            _ => true,
        };
        if info.transport != self.transport() || !role {
            self.counters.malformed += 1;
            return;
        }
        self.counters.received_packets += 1;
        let (attr, migration) = (&mut self.attr, &mut self.migration);
        if migration.packet_accepted(attr, from.gid, bth.mig_req, host) {
            let window = window(&self.config, &self.attr);
            self.requester.path_changed(&self.attr, window);
        }
        if self.attr.state == QpState::Rtr && !self.established {
            self.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        let outcome = if info.operation.is_request() {
            let (mut cx, requester, responder) = self.parts(now);
            responder.handle(&mut cx, packet, from.port, requester.timers(), host)
        } else if self.attr.state == QpState::Rtr {
            // No request was sent yet.
            self.counters.stale_responses += 1;
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
    pub fn congestion_met(&mut self, now: Time, packet: &Packet<'_>) {
        self.counters.ecn_marked += 1;
        if packet.header.bth.opcode.info().transport == Transport::Cnp {
            return;
        }
        let lately = |at: Time| now.since(at) < NOTIFICATION_INTERVAL;
        if self.attr.state.handles_packets() && !self.notified_at.is_some_and(lately) {
            self.notification_due = true;
            self.notified_at = Some(now);
        }
    }

    /// Sends a CNP if one is due. Returns false when the sink is full.
    fn notify<T: Transmit>(&mut self, out: &mut T) -> bool {
        if !self.notification_due {
            return true;
        }
        let header = Header::cnp(self.attr.dest_qpn);
        let Some(packet) = out.stage(header.len()) else {
            return false;
        };
        header.emit(packet);
        out.commit();
        self.notification_due = false;
        self.counters.sent_packets += 1;
        self.counters.cnps_sent += 1;
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
        let (mut cx, requester, _) = self.parts(now);
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
    pub fn deadline(&self) -> Time {
        let requester = match self.attr.state.initiates() {
            true => self.requester.deadline(),
            false => Time::NEVER,
        };
        requester.min(self.responder.deadline())
    }

    /// Runs the timers that have expired at `now`.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        self.responder.expire(now);
        if self.attr.state.initiates() {
            let (mut cx, requester, _) = self.parts(now);
            let outcome = requester.expire(&mut cx, host);
            self.conclude(outcome, now, host);
        }
    }

    /// Sends pending packets: answers first, since the peer waits for them, then requests.
    ///
    /// The two alternate when the sink is too small for all of it. Returns true when the sink is
    /// full and more is pending.
    pub fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        if !self.notify(out) {
            return true;
        }
        let requests_first = std::mem::take(&mut self.requests_first);
        let (mut cx, requester, responder) = self.parts(now);
        let mut outcome = Outcome::Continue;
        let mut answers_fill = false;
        let mut full = requests_first && requester.transmit(&mut cx, host, out);
        if !full {
            (full, outcome) = responder.transmit(&mut cx, host, out);
            answers_fill = full;
        }
        if outcome == Outcome::Continue {
            full = full || (!requests_first && requester.transmit(&mut cx, host, out));
            outcome = requester.settle(&mut cx, host);
        }
        self.requests_first = answers_fill;
        self.conclude(outcome, now, host);
        full
    }

    /// Whether [`RcQp::poll_transmit`] would send nothing and change nothing, because the send queue
    /// and the queue of answers are empty. A connection that only waits for its window or for an
    /// answer is not idle.
    pub fn is_idle(&self) -> bool {
        self.requester.is_idle()
            && !self.responder.owes_answers()
            && !self.notification_due
            && !self.draining
            && !self.requests_first
    }

    /// Whether a single ACK is all there is to send and the send queue is empty.
    ///
    /// The ACK may then be delayed until requests are posted; the next poll sends those first. The
    /// PSNs of the two directions are independent, so this order is allowed.
    pub fn defer_ack(&mut self) -> bool {
        let idle = self.requester.queue_room() == self.requester.size().max_wr;
        let defers = idle && !self.notification_due && self.responder.owes_one_ack();
        self.requests_first |= defers;
        defers
    }

    /// Sends pending answers and no requests, before the queue pair leaves the states that handle
    /// packets.
    ///
    /// Returns true when the sink is full and more is pending.
    pub fn poll_answers<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let (mut cx, _, responder) = self.parts(now);
        let (full, outcome) = responder.transmit(&mut cx, host, out);
        self.conclude(outcome, now, host);
        full
    }

    /// Sets whether new packets also need a send quantum from [`RcQp::grant`], or the window only.
    ///
    /// Quanta serve a driver with several connections to one receiver, which share its receive
    /// buffer.
    pub fn require_grants(&mut self, required: bool) {
        self.requester.require_grants(required);
    }

    /// Raises the send quantum to `bytes`, if less than that is left of earlier ones.
    ///
    /// The quantum counts data that is sent or requested for the first time, and is rounded down to
    /// packets. A quantum below the size of a READ request, 64 KiB, may block that request.
    pub fn grant(&mut self, bytes: u32) {
        let packets = bytes / self.attr.path_mtu.bytes() as u32;
        self.requester.renew_grant(packets);
    }

    /// Whether the last poll withheld a packet for lack of a send quantum.
    pub fn wants_grant(&self) -> bool {
        self.requester.wants_grant()
    }

    /// The upper bound of the bytes in flight: unanswered packets times the path MTU.
    pub fn under_way(&self) -> u32 {
        match self.attr.state.initiates() {
            true => self.requester.in_flight() * self.attr.path_mtu.bytes() as u32,
            false => 0,
        }
    }

    /// Schedules the final ACK flush of a queue pair that is about to be destroyed.
    ///
    /// On a path that loses packets the last acknowledgement may be lost too, and after destruction
    /// it cannot be repeated. The next [`RcQp::poll_answers`] therefore sends it more than once.
    pub fn say_farewell(&mut self) {
        let is_responder = self.config.service != QpType::XrcIni;
        if is_responder && self.attr.state.handles_packets() && self.counters.indicate_loss() {
            self.responder.say_farewell();
        }
    }

    /// Whether the queue pair has migrated to its alternate path since the last call (17.2.8).
    pub fn take_migrated(&mut self) -> bool {
        self.migration.take_migrated()
    }

    /// Sends a keep-alive: a WRITE of length 0 with the PSN of the last acknowledged request.
    ///
    /// The responder acknowledges it as a duplicate without executing it (9.7.5.1.1). Returns false
    /// when none is sent: an answer is outstanding already, the receiver is not ready, or the
    /// queue pair sends no requests.
    pub fn poll_probe<T: Transmit>(&mut self, now: Time, out: &mut T) -> bool {
        if self.config.service != QpType::Rc || !self.attr.state.initiates() {
            return false;
        }
        let (mut cx, requester, _) = self.parts(now);
        requester.probe(&mut cx, out)
    }

    /// Reports that the peer process has ended.
    ///
    /// The effect is that of exhausted retries: the oldest unacknowledged work request completes
    /// with [`crate::work::WcStatus::RetryExcErr`], all others are flushed.
    pub fn peer_is_gone<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state.handles_packets() {
            let (mut cx, requester, _) = self.parts(now);
            let outcome = match requester.awaits_answer() {
                true => requester.give_up(&mut cx, host),
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
        if self.attr.state != QpState::Reset && self.attr.state != QpState::Err {
            self.attr.state = QpState::Err;
            self.flush(now, host);
            host.event(QpEvent::Fatal);
        }
    }

    fn transport(&self) -> Transport {
        match self.config.service {
            QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
            _ => Transport::Rc,
        }
    }

    fn parts(&mut self, now: Time) -> (Context<'_>, &mut Requester, &mut Responder) {
        let cx = Context {
            qpn: self.config.qpn,
            transport: self.transport(),
            attr: &self.attr,
            now,
            counters: &mut self.counters,
        };
        (cx, &mut self.requester, &mut self.responder)
    }

    fn conclude<H: Host>(&mut self, outcome: Outcome, now: Time, host: &mut H) {
        match outcome {
            // The transmission of a queued answer failed when the queue pair was already in error.
            Outcome::Failed if self.attr.state == QpState::Err => {}
            Outcome::Failed => {
                self.attr.state = QpState::Err;
                self.flush(now, host);
            }
            Outcome::Unanswered if self.migration.fail_over(&mut self.attr, host) => {
                let window = window(&self.config, &self.attr);
                self.requester.start_over(&self.attr, window);
            }
            Outcome::Unanswered => {
                let (mut cx, requester, _) = self.parts(now);
                let outcome = requester.give_up(&mut cx, host);
                self.conclude(outcome, now, host);
            }
            Outcome::Continue => self.announce_drained(host),
        }
    }

    fn announce_drained<H: Completions>(&mut self, host: &mut H) {
        if self.draining && self.requester.is_drained() {
            self.draining = false;
            host.event(QpEvent::SendQueueDrained);
        }
    }

    /// Flushes all work requests, sends first. A pending fatal NAK is still sent.
    fn flush<H: Host>(&mut self, now: Time, host: &mut H) {
        self.draining = false;
        let (mut cx, requester, responder) = self.parts(now);
        requester.flush(&mut cx, host);
        responder.stop(&mut cx, host);
        flush_receives(self.config.qpn, host);
    }

    /// Returns to the initial state; outstanding work requests generate no completions (10.3.1.1).
    fn reset<H: Host>(&mut self, host: &mut H) {
        self.attr = QpAttr::default();
        self.migration = Migration::default();
        self.requester
            .reset(&self.attr, window(&self.config, &self.attr));
        self.responder.reset();
        self.established = false;
        self.draining = false;
        self.notification_due = false;
        self.notified_at = None;
        discard_receives(host);
    }
}

fn window(config: &RcConfig, attr: &QpAttr) -> Window {
    Window::new(config.congestion, attr.path_mtu, config.window_bytes)
}
