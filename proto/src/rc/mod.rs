//! Reliable connection (9.7): one queue pair's state machine, split by role.
//!
//! - `requester`: send work requests out, acknowledgements and responses in.
//! - `responder`: requests in; it decides, and leaves its answers to `replies`.
//! - `replies`: acknowledgements and responses out, in the order of their PSNs.
//! - `retransmit`: timers and retry counters; [`congestion`]: the window.
//!
//! [`RcQp`] joins them with the states of the queue pair. The caller hands in packets that passed
//! the ICRC, asks for packets to send after every call, and calls [`RcQp::handle_timeout`] when the
//! deadline has come.

pub mod congestion;
mod replies;
mod requester;
mod responder;
mod retransmit;
#[cfg(test)]
mod tests;

use crate::host::{Completions, Host, QpEvent, Receive, Transmit};
use crate::ids::{Gid, PKey, Qpn};
use crate::psn::Psn;
use crate::qp::{AttrMask, QpAttr, QpState, QpType, TransitionError, check_transition};
use crate::queue::{PostError, SendQueueSize};
use crate::time::Time;
use crate::wire::{Header, Headers, Opcode, Operation, Packet, Position, Transport};
use crate::work::{Completion, Extra, SendWr, WcOpcode, WcStatus};
use congestion::{Aimd, Controller};
use requester::{Outcome, Requester};
use responder::Responder;

/// The most READs and atomics that a queue pair keeps for answering duplicates.
pub const MAX_RD_ATOMIC: u8 = 128;

/// What happened on a queue pair, counted since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets received that were for this queue pair.
    pub received_packets: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Requests that came after a hole.
    pub out_of_sequence: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// NAKs for a hole received.
    pub sequence_naks_received: u64,
    /// NAKs received that end the connection.
    pub fatal_naks_received: u64,
    /// NAKs sent that end the connection.
    pub fatal_naks_sent: u64,
    /// Timers that led to sending again.
    pub timeouts: u64,
    /// Times that the peer went past a READ or an atomic whose response had not come.
    pub responses_lost: u64,
    /// Times that `retry_cnt` was used up.
    pub retries_exceeded: u64,
    /// Times that `rnr_retry` was used up.
    pub rnr_retries_exceeded: u64,
    /// Responses of the past, or to what was never asked.
    pub stale_responses: u64,
    /// Packets that made no sense for this queue pair.
    pub malformed: u64,
    /// Packets from somebody who is not the peer.
    pub foreign: u64,
    /// Packets of another partition.
    pub bad_pkey: u64,
    /// Packets dropped because of the state.
    pub dropped_in_state: u64,
}

/// What requester and responder need of the queue pair that they belong to.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    pub(crate) attr: &'a QpAttr,
    pub(crate) now: Time,
    pub(crate) counters: &'a mut Counters,
}

impl Context<'_> {
    /// The headers of a packet to the peer; the opcode must exist for reliable transports.
    fn header(&self, operation: Operation, position: Position, extra: Headers, psn: Psn) -> Header {
        let opcode = Opcode::of(self.transport, operation, position, extra)
            .expect("reliable transports have every piece of every operation");
        Header::new(opcode, self.attr.dest_qpn, psn)
    }
}

/// What a reliable connected queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct RcConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its send queue.
    pub send: SendQueueSize,
    /// Whether every send makes a completion.
    pub signal_all: bool,
    /// The most packets under way at once, whatever the congestion window learns.
    pub window_bytes: u32,
}

/// A reliable connected queue pair.
#[derive(Debug)]
pub struct RcQp {
    config: RcConfig,
    attr: QpAttr,
    requester: Requester,
    responder: Responder,
    /// Whether the first packet in RTR was announced.
    established: bool,
    /// Whether the end of draining is to be announced.
    draining: bool,
    /// Whether answers filled the sink last time. Then it is the requests' turn, or the responses
    /// to long READs could hold them up for as long as the peer likes.
    requests_first: bool,
    counters: Counters,
}

impl RcQp {
    /// A queue pair in RESET.
    pub fn new(config: RcConfig) -> Self {
        let attr = QpAttr::default();
        RcQp {
            requester: Requester::new(config.send, config.signal_all, window(&config, &attr)),
            responder: Responder::new(),
            config,
            attr,
            established: false,
            draining: false,
            requests_first: false,
            counters: Counters::default(),
        }
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
        attr.sq_draining = self.draining;
        if self.attr.state.handles_packets() {
            attr.rq_psn = self.responder.expected();
        }
        if self.attr.state.takes_sends() {
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
        let from = self.attr.state;
        if mask.contains(AttrMask::CUR_STATE) && new.cur_state != from {
            return Err(TransitionError::NotInState {
                actual: from,
                claimed: new.cur_state,
            });
        }
        let to = if mask.contains(AttrMask::STATE) {
            new.state
        } else {
            from
        };
        check_transition(QpType::Rc, from, to, mask)?;
        check_ranges(new, mask)?;
        self.attr.merge(new, mask);
        self.attr.state = to;
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
        Ok(())
    }

    /// Takes a send work request. In the error state it is flushed at once (10.3.1.7).
    pub fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        if !self.attr.state.takes_sends() {
            return Err(PostError::State);
        }
        self.requester.post(wr, &self.attr)?;
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
            self.flush_receives(host);
        }
    }

    /// Handles a packet for this queue pair whose ICRC was right. `from` is its source address.
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        from: Gid,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.header.bth;
        if !self.attr.state.handles_packets() {
            self.counters.dropped_in_state += 1;
            return;
        }
        // A connected queue pair hears its peer only (9.6.1.5 by way of A17.4.5).
        if from != self.attr.av.dgid {
            self.counters.foreign += 1;
            return;
        }
        if !PKey::DEFAULT.matches(bth.pkey) {
            self.counters.bad_pkey += 1;
            return;
        }
        let info = bth.opcode.info();
        if info.transport != Transport::Rc {
            self.counters.malformed += 1;
            return;
        }
        self.counters.received_packets += 1;
        if self.attr.state == QpState::Rtr && !self.established {
            self.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        let outcome = if info.operation.is_request() {
            let (mut cx, _, responder) = self.parts(now);
            responder.handle(&mut cx, packet, host)
        } else if self.attr.state == QpState::Rtr {
            // Nothing was asked yet.
            self.counters.stale_responses += 1;
            Outcome::Continue
        } else {
            self.handle_response(now, packet, host)
        };
        self.conclude(outcome, now, host);
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
        if self.attr.state.initiates() {
            self.requester.deadline()
        } else {
            Time::NEVER
        }
    }

    /// Looks at the clock.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
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

    /// An error of the completion queue, or of the device: the queue pair goes to error without a
    /// completion of its own (10.9.3).
    pub fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state != QpState::Reset && self.attr.state != QpState::Err {
            self.attr.state = QpState::Err;
            self.flush(now, host);
            host.event(QpEvent::Fatal);
        }
    }

    fn parts(&mut self, now: Time) -> (Context<'_>, &mut Requester, &mut Responder) {
        let cx = Context {
            qpn: self.config.qpn,
            transport: Transport::Rc,
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
        self.flush_receives(host);
    }

    fn flush_receives<H: Host>(&mut self, host: &mut H) {
        if host.receive_credits().is_none() {
            // A shared queue's receives stay where they are (10.2.9.4).
            host.event(QpEvent::LastWqeReached);
            return;
        }
        let mut receive = Receive::default();
        while host.take_receive(&mut receive) {
            let status = WcStatus::WrFlushErr;
            host.receive_completed(receive_completion(self.config.qpn, &receive, status), true);
        }
    }

    /// Back to the state of creation; nothing outstanding completes (10.3.1.1).
    fn reset<H: Host>(&mut self, host: &mut H) {
        self.attr = QpAttr::default();
        self.requester
            .reset(&self.attr, window(&self.config, &self.attr));
        self.responder = Responder::new();
        self.established = false;
        self.draining = false;
        if host.receive_credits().is_some() {
            let mut receive = Receive::default();
            while host.take_receive(&mut receive) {}
        }
    }
}

/// A completion of a receive that carries no message.
fn receive_completion(qpn: Qpn, receive: &Receive, status: WcStatus) -> Completion {
    Completion {
        wr_id: receive.wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        qpn,
        src_qp: Qpn::default(),
        extra: Extra::None,
        grh: false,
    }
}

fn window(config: &RcConfig, attr: &QpAttr) -> Box<dyn Controller> {
    Box::new(Aimd::new(
        config.window_bytes / attr.path_mtu.bytes() as u32,
    ))
}

fn check_ranges(attr: &QpAttr, mask: AttrMask) -> Result<(), TransitionError> {
    let checks = [
        (AttrMask::RETRY_CNT, attr.retry_cnt <= 7),
        (AttrMask::RNR_RETRY, attr.rnr_retry <= 7),
        (AttrMask::TIMEOUT, attr.timeout <= 31),
        (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer <= 31),
        (
            AttrMask::MAX_QP_RD_ATOMIC,
            attr.max_rd_atomic <= MAX_RD_ATOMIC,
        ),
        (
            AttrMask::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic <= MAX_RD_ATOMIC,
        ),
        (AttrMask::PKEY_INDEX, attr.pkey_index == 0),
        (AttrMask::PORT, attr.port == 1),
        // RoCE has no LIDs: without a GRH there is no address (A17.4).
        (AttrMask::AV, attr.av.is_global && !attr.av.dgid.is_zero()),
    ];
    for (bit, in_range) in checks {
        if mask.contains(bit) && !in_range {
            return Err(TransitionError::OutOfRange(bit));
        }
    }
    Ok(())
}
