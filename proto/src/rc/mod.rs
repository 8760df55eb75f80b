//! Reliable connection (9.7): one queue pair's state machine, split by role. An extended reliable
//! connection (A14) is the same with each role in a queue pair of its own.
//!
//! - `requester`: send work requests out, acknowledgements and responses in.
//! - `responder`: requests in; it decides, and leaves its answers to `replies`.
//! - `out_of_order`: requests that arrived after a gap, until it closes.
//! - `replies`: acknowledgements and responses out, in the order of their PSNs.
//! - `retransmit`: timers and retry counters; [`congestion`]: the window.
//!
//! [`RcQp`] joins them with the states of the queue pair. The caller hands in packets that passed
//! the ICRC, asks for packets to send after every call, and calls [`RcQp::handle_timeout`] when the
//! deadline has come.

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

/// What a reliable connected queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct RcConfig {
    /// Which halves of the connection it is: [`QpType::Rc`] is both, [`QpType::XrcIni`] the sending
    /// one and [`QpType::XrcTgt`] the receiving one of an extended reliable connection.
    pub service: QpType,
    /// Its number.
    pub qpn: Qpn,
    /// Its send queue.
    pub send: SendQueueSize,
    /// Whether every send makes a completion.
    pub signal_all: bool,
    /// The most packets under way at once, whatever the congestion window learns.
    pub window_bytes: u32,
    /// The most bytes of memory that the out-of-order queue may take; 0 to drop what arrives after a gap, as
    /// a plain responder does. A window of the peer's, with some room for headers, is enough.
    pub hold_bytes: u32,
    /// What governs how many packets are under way.
    pub congestion: Algorithm,
}

/// A reliable connected queue pair, or a half of one.
#[derive(Debug)]
pub struct RcQp {
    config: RcConfig,
    attr: QpAttr,
    migration: Migration,
    requester: Requester,
    responder: Responder,
    /// Whether the first packet in RTR was announced.
    established: bool,
    /// Whether the end of draining is to be announced.
    draining: bool,
    /// Whether answers filled the sink last time. Then it is the requests' turn, or the responses
    /// to long READs could hold them up for as long as the peer likes.
    requests_first: bool,
    /// Whether the peer is to be told that its packets met congestion.
    notification_due: bool,
    /// When it was told last.
    notified_at: Option<Time>,
    counters: Counters,
}

impl RcQp {
    /// A queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] for its send queue.
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

    /// The out-of-order queue takes its memory from this budget, too, which other queue pairs share. Requests
    /// for which it has no room are dropped, as those beyond [`RcConfig::hold_bytes`] are.
    pub fn share_out_of_order_budget(&mut self, budget: Arc<OutOfOrderBudget>) {
        self.responder.share(budget);
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its attributes now, the PSNs being the next that is sent and the next that is expected.
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

    /// What its send queue was made for.
    pub fn send_queue_size(&self) -> SendQueueSize {
        self.requester.size()
    }

    /// How many more work requests its send queue holds.
    pub fn send_queue_room(&self) -> u32 {
        self.requester.queue_room()
    }

    /// Changes attributes, and the state if `mask` says so (11.2.4.2). Nothing changes when it is
    /// refused.
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

    /// Takes a send work request. In the error state it is flushed at once (10.3.1.7).
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

    /// A receive was posted to the queue pair's own queue: in the error state it is flushed at
    /// once.
    pub fn receive_posted<H: Host>(&mut self, host: &mut H) {
        if self.attr.state.flushes_receives() && host.receive_credits().is_some() {
            flush_receives(self.config.qpn, host);
        }
    }

    /// Handles a packet for this queue pair whose ICRC was right.
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
            // Nothing was asked yet.
            self.counters.stale_responses += 1;
            Outcome::Continue
        } else {
            self.handle_response(now, packet, host)
        };
        self.conclude(outcome, now, host);
    }

    /// A packet that was just handled had met congestion: a router had marked its IP header (RFC 3168). The
    /// peer is told, though not for each of them (A17.9.3), nor for one that tells of congestion itself: the two would never stop.
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

    /// Tells the peer of congestion, if it is to be told. False when the sink is full.
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

    /// When [`RcQp::handle_timeout`] should be called, unless something happens before.
    pub fn deadline(&self) -> Time {
        let requester = match self.attr.state.initiates() {
            true => self.requester.deadline(),
            false => Time::NEVER,
        };
        requester.min(self.responder.deadline())
    }

    /// Looks at the clock.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        self.responder.expire(now);
        if self.attr.state.initiates() {
            let (mut cx, requester, _) = self.parts(now);
            let outcome = requester.expire(&mut cx, host);
            self.conclude(outcome, now, host);
        }
    }

    /// Sends what there is to send: answers first, since the peer waits for them, then requests;
    /// in turns when the sink does not take all of it.
    /// Returns true when the sink was full and there is more.
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

    /// Whether one acknowledgement is all that there is to send, and no request waits for anything. If so,
    /// it may wait a moment for requests to be posted, which then go before it: the PSNs of the two
    /// directions have nothing to do with each other.
    pub fn defer_ack(&mut self) -> bool {
        let idle = self.requester.queue_room() == self.requester.size().max_wr;
        let defers = idle && !self.notification_due && self.responder.owes_one_ack();
        self.requests_first |= defers;
        defers
    }

    /// Sends the answers that the peer is owed, and no requests: the queue pair is about to leave the
    /// states in which it handles packets. Returns true when the sink was full and there is more.
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

    /// From now on new packets may be used only as far as [`RcQp::grant`] says, or as far as the window goes.
    /// That is for who drives several connections to one receiver, which hears them all in one buffer.
    pub fn require_grants(&mut self, required: bool) {
        self.requester.require_grants(required);
    }

    /// Grants `bytes`, what is left of earlier ones included: so much data, sent or asked for, may be under way that was not
    /// before, rounded down to packets. A grant of fewer bytes than a READ request asks for, 64 KiB, may keep it from going.
    pub fn grant(&mut self, bytes: u32) {
        let packets = bytes / self.attr.path_mtu.bytes() as u32;
        self.requester.renew_grant(packets);
    }

    /// Whether something was not sent because it was not granted, when packets were asked for last.
    pub fn wants_grant(&self) -> bool {
        self.requester.wants_grant()
    }

    /// How many bytes the packets that await their answers have at most.
    pub fn under_way(&self) -> u32 {
        match self.attr.state.initiates() {
            true => self.requester.in_flight() * self.attr.path_mtu.bytes() as u32,
            false => 0,
        }
    }

    /// The queue pair is about to be destroyed. On a connection that loses packets the last
    /// acknowledgement may be lost as well, and nobody would repeat it for the peer; so it
    /// goes out more than once, with the next [`RcQp::poll_answers`].
    pub fn say_farewell(&mut self) {
        let is_responder = self.config.service != QpType::XrcIni;
        if is_responder && self.attr.state.handles_packets() && self.counters.indicate_loss() {
            self.responder.say_farewell();
        }
    }

    /// Whether it has gone over to its alternate path since this was last asked: its packets go another
    /// way then (17.2.8).
    pub fn take_migrated(&mut self) -> bool {
        self.migration.take_migrated()
    }

    /// Asks the peer for a sign of life: with a WRITE of nothing, whose PSN is that of the last request
    /// before the next. The responder has had it, or one of its PSN, and acknowledges the duplicate without
    /// carrying it out (9.7.5.1.1). False when there is nothing to ask: an answer is awaited already,
    /// or the queue pair sends nothing.
    pub fn poll_probe<T: Transmit>(&mut self, now: Time, out: &mut T) -> bool {
        if self.config.service != QpType::Rc || !self.attr.state.initiates() {
            return false;
        }
        let (mut cx, requester, _) = self.parts(now);
        requester.probe(&mut cx, out)
    }

    /// The peer does not exist any more, as somebody else found out. That is the end as after too many
    /// retries: what is under way ends with [`crate::work::WcStatus::RetryExcErr`], all else is flushed.
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

    /// An error of the completion queue, or of the device: the queue pair goes to error without a
    /// completion of its own (10.9.3).
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
            // An answer that was still to go out failed after the end.
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

    /// Ends all that is outstanding, sends first. A NAK that says why still goes out.
    fn flush<H: Host>(&mut self, now: Time, host: &mut H) {
        self.draining = false;
        let (mut cx, requester, responder) = self.parts(now);
        requester.flush(&mut cx, host);
        responder.stop(&mut cx, host);
        flush_receives(self.config.qpn, host);
    }

    /// Back to the state of creation; nothing outstanding completes (10.3.1.1).
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
