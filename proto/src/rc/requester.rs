//! The requester: turns send work requests into request packets, and answers into completions
//! (9.7.3, 9.7.5.2, 9.9.2).
//!
//! All PSNs before `una` are done: acknowledged or, for READs and atomics, answered. A cursor runs
//! ahead of `una` through the queue; going back sets the cursor to `una`. The PSNs of a work
//! request are assigned when it is posted, so the requester keeps no record of each packet sent.

mod answers;
mod grant;
mod reads;
mod repair;
mod scoreboard;

use super::congestion::Window;
use super::retransmit::{Expired, Retransmit};
use crate::host::{Completions, Host, Memory, Transmit};
use crate::ids::RKey;
use crate::psn::Psn;
use crate::qp::{QpAttr, QpState};
use crate::queue::{NoMemory, PostError, SendQueue, SendQueueSize, SendWqe};
use crate::service::{Context, Put, put_data};
use crate::time::Time;
use crate::wire::{Headers, Operation, Position, Reth};
use crate::work::{SendFlags, SendOp, SendWr, WcStatus};
use grant::Grant;
use reads::ReadEnd;
use repair::{Peer, Repair};
use scoreboard::Scoreboard;
use std::collections::VecDeque;

/// The result of a step of the requester or the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Outcome {
    /// The queue pair continues.
    Continue,
    /// A work request ended in error: the queue pair goes to the error state.
    Failed,
    /// `retry_cnt` is exhausted: the queue pair fails over to its alternate path, or fails.
    Unanswered,
}

/// The result of an attempt to send.
enum Step {
    /// A packet was sent; more may follow.
    Sent,
    /// Nothing may be sent until a packet arrives or a timer expires.
    Wait,
    /// The sink is full.
    Full,
}

/// The requester of a reliable connection.
#[derive(Debug)]
pub(super) struct Requester {
    queue: SendQueue,
    signal_all: bool,
    /// The index of the work request of the next packet, the packet within it, and its PSN.
    cursor: u64,
    cursor_packet: u32,
    next_psn: Psn,
    /// Work requests below this index have begun execution.
    begun: u64,
    /// The PSN after the highest one sent.
    sent_end: Psn,
    una: Psn,
    /// The end PSNs of the outstanding READ requests and atomics.
    awaiting: VecDeque<Psn>,
    /// The ends of the READ requests and atomics that are not done, in PSN order.
    read_ends: VecDeque<ReadEnd>,
    scoreboard: Scoreboard,
    /// The limit of sent messages that consume a receive; `None` for no limit (9.7.7.2).
    receive_limit: Option<u32>,
    /// The number of acknowledged messages that consume a receive.
    receives_done: u32,
    /// The PSN of the last packet sent with AckReq.
    asked: Psn,
    timers: Retransmit,
    window: Window,
    grant: Grant,
    /// A loss before this PSN does not reduce the window again.
    reduced_until: Psn,
    /// The packet whose round trip is being measured, and when it was sent.
    measured: Option<(Psn, Time)>,
    /// The gap that last caused a retransmission, and when.
    gap: Option<(Psn, Time)>,
    /// The fast retransmit in progress.
    repair: Option<Repair>,
    /// The first PSN and the end of the last fast retransmit that was acknowledged.
    repaired: Option<(Psn, Psn)>,
    peer: Peer,
    /// Whether the cursor went back because of a reported gap, not because of a timeout.
    back_for_gap: bool,
    /// A work request that cannot be sent, and its status once it is the oldest.
    unsendable: Option<(u64, WcStatus)>,
}

impl Requester {
    pub(super) fn new(
        size: SendQueueSize,
        signal_all: bool,
        window: Window,
    ) -> Result<Self, NoMemory> {
        Ok(Requester {
            queue: SendQueue::new(size)?,
            signal_all,
            cursor: 0,
            cursor_packet: 0,
            next_psn: Psn::default(),
            begun: 0,
            sent_end: Psn::default(),
            una: Psn::default(),
            awaiting: VecDeque::new(),
            read_ends: VecDeque::new(),
            scoreboard: Scoreboard::default(),
            receive_limit: None,
            receives_done: 0,
            asked: Psn::default(),
            timers: Retransmit::new(0, 0, 0),
            window,
            grant: Grant::default(),
            reduced_until: Psn::default(),
            measured: None,
            gap: None,
            repair: None,
            repaired: None,
            peer: Peer::Unknown,
            back_for_gap: false,
            unsendable: None,
        })
    }

    /// Starts with an empty queue: the transition to RTS or RESET.
    pub(super) fn reset(&mut self, attr: &QpAttr, window: Window) {
        let psn = attr.sq_psn;
        self.queue.reset(psn);
        self.cursor = self.queue.head();
        self.begun = self.cursor;
        self.cursor_packet = 0;
        self.next_psn = psn;
        self.sent_end = psn;
        self.una = psn;
        self.awaiting.clear();
        self.read_ends.clear();
        self.scoreboard.reset();
        self.receive_limit = None;
        self.receives_done = 0;
        self.asked = psn.prev();
        self.configure(attr);
        self.timers.reset();
        self.window = window;
        self.reduced_until = psn;
        self.measured = None;
        self.gap = None;
        self.repair = None;
        self.repaired = None;
        self.peer = Peer::Unknown;
        self.back_for_gap = false;
        self.unsendable = None;
    }

    /// Applies changed attributes to the timers.
    pub(super) fn configure(&mut self, attr: &QpAttr) {
        self.timers
            .configure(attr.timeout, attr.retry_cnt, attr.rnr_retry);
    }

    pub(super) fn timers(&self) -> &Retransmit {
        &self.timers
    }

    pub(super) fn size(&self) -> SendQueueSize {
        self.queue.size()
    }

    /// The number of work requests for which the queue has room.
    pub(super) fn queue_room(&self) -> u32 {
        let used = (self.queue.tail() - self.queue.head()) as u32;
        self.queue.size().max_wr - used
    }

    pub(super) fn post(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<(), PostError> {
        self.queue.post(wr, attr.path_mtu)
    }

    /// The PSN of the next new packet, as reported in the attributes.
    pub(super) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Handles the transition to SQD.
    ///
    /// If the last packet had no AckReq because others were to follow, it is sent again with
    /// AckReq.
    pub(super) fn drain(&mut self) {
        let asked = self.asked.next() == self.next_psn;
        let between_messages = self.cursor_packet == 0 && self.cursor == self.begun;
        if self.in_flight() == 0 || asked || !between_messages {
            return;
        }
        // Local operations have no packets; since some are in flight, another work request has.
        let with_packets = |index: &u64| self.queue.get(*index).is_some_and(|w| w.packets > 0);
        let sent = self.queue.head()..self.cursor;
        if let Some(index) = sent.rev().find(with_packets)
            && let Some(last) = self.queue.get(index)
        {
            // A fast retransmit would end at the packet that is sent here.
            self.repair = None;
            self.cursor_packet = last.packets - 1;
            self.cursor = index;
            self.next_psn = self.next_psn.prev();
        }
    }

    /// Whether all begun work requests have completed, the condition for the end of SQD (10.3.1.5).
    pub(super) fn is_drained(&self) -> bool {
        self.queue.head() >= self.begun
    }

    /// Whether [`Requester::transmit`] and [`Requester::settle`] have nothing to do: the queue is
    /// empty, and no state of a work request is left.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.head() == self.queue.tail()
            && self.repair.is_none()
            && self.unsendable.is_none()
            && !self.wants_grant()
    }

    pub(super) fn deadline(&self) -> Time {
        self.timers.deadline()
    }

    /// Sends all packets that may be sent, and executes local operations in their order.
    ///
    /// Returns true when the sink is full and more is pending.
    pub(super) fn transmit<H: Host, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        self.grant.set_wanted(false);
        if !self.transmit_repair(cx, host, out) || !self.transmit_missing(cx, host, out) {
            return true;
        }
        loop {
            let waits = self.timers.waits_for_receiver() || self.awaits_repair();
            if waits || self.unsendable.is_some() {
                return false;
            }
            let Some(&wqe) = self.queue.get(self.cursor) else {
                return false;
            };
            let is_new = self.cursor >= self.begun;
            if !cx.attr.state.initiates() || (is_new && cx.attr.state == QpState::Sqd) {
                return false;
            }
            let fenced = wqe.flags.contains(SendFlags::FENCE) && self.cursor_packet == 0;
            if fenced && !self.awaiting.is_empty() {
                return false;
            }
            let step = if wqe.op.is_local() {
                self.carry_out(cx, &wqe, host)
            } else if wqe.op.has_response() {
                self.send_with_response(cx, &wqe, host, out)
            } else {
                self.send_data(cx, &wqe, host, out)
            };
            match step {
                Step::Sent => {}
                Step::Wait => return false,
                Step::Full => return true,
            }
        }
    }

    /// Executes a local operation; going back does not repeat it.
    ///
    /// It completes after all work requests before it.
    fn carry_out<H: Host>(&mut self, cx: &mut Context<'_>, wqe: &SendWqe, host: &mut H) -> Step {
        if self.cursor >= self.begun {
            // An invalidation waits for the completion of all earlier work requests, which may use
            // the key (10.6.5.1); a bind need not wait (10.8.3.3).
            if matches!(wqe.op, SendOp::LocalInv(_)) && self.cursor != self.queue.head() {
                return Step::Wait;
            }
            if let Err(status) = wqe.op.execute_local(host) {
                self.unsendable = Some((self.cursor, status));
                return Step::Wait;
            }
            self.begun = self.cursor + 1;
        }
        self.cursor += 1;
        self.complete_done(cx, self.una, host);
        Step::Sent
    }

    /// See [`RcQp::require_grants`](super::RcQp::require_grants).
    pub(super) fn require_grants(&mut self, required: bool) {
        self.grant.require(required);
    }

    /// See [`RcQp::grant`](super::RcQp::grant).
    pub(super) fn renew_grant(&mut self, psns: u32) {
        self.grant.renew(psns);
    }

    /// See [`RcQp::wants_grant`](super::RcQp::wants_grant).
    pub(super) fn wants_grant(&self) -> bool {
        self.grant.is_wanted()
    }

    /// The number of PSNs that may be used now.
    fn room(&self) -> u32 {
        self.window_room().min(self.granted())
    }

    /// The number of PSNs that the window still allows.
    fn window_room(&self) -> u32 {
        self.window.packets().saturating_sub(self.in_flight())
    }

    /// The number of PSNs that the send quantum still allows. PSNs used before need no quantum.
    fn granted(&self) -> u32 {
        let again = self.sent_end.diff(self.next_psn).max(0) as u32;
        self.grant.left().saturating_add(again)
    }

    /// The number of PSNs in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.next_psn.diff(self.una).max(0) as u32
    }

    /// Whether the peer has not advertised a receive for this message (9.7.7.2).
    fn lacks_credit(&self, wqe: &SendWqe) -> bool {
        let over = |limit: u32| (wqe.receives.wrapping_sub(limit) as i32) > 0;
        wqe.op.consumes_receive() && self.receive_limit.is_some_and(over)
    }

    fn send_data<M: Memory, T: Transmit>(
        &mut self,
        cx: &mut Context<'_>,
        wqe: &SendWqe,
        memory: &M,
        out: &mut T,
    ) -> Step {
        let room = self.room();
        if room == 0 {
            self.grant.set_wanted(self.window_room() > 0);
            return Step::Wait;
        }
        let index = self.cursor_packet;
        let position = Position::new(index == 0, index + 1 == wqe.packets);
        // Without credit, one packet may be sent to solicit credits; the requester then waits.
        let needs_receive = !matches!(wqe.op, SendOp::WriteImm { .. }) || position.ends();
        let lacks_credit = needs_receive && self.lacks_credit(wqe);
        if lacks_credit && self.in_flight() > 0 && self.asked.next() == self.next_psn {
            return Step::Wait;
        }
        let ends_burst = position.ends() && self.ends_burst(cx.attr, wqe);
        let unasked = self.next_psn.diff(self.asked).max(0) as u32;
        let repairs = self
            .repair
            .is_some_and(|repair| repair.end == self.next_psn.next());
        let ack_req = repairs
            || ends_burst
            || lacks_credit
            || room == 1
            || unasked * 4 >= self.window.packets();

        let mtu = cx.attr.path_mtu;
        let len = wqe.payload_of(index, mtu);
        let header = cx
            .data_header(wqe, position, self.next_psn)
            .with_ack_req(ack_req);
        let payload = self.queue.payload(self.cursor, wqe);
        let offset = u64::from(index) * mtu.bytes() as u64;
        match put_data(&header, payload, offset, len, memory, out) {
            Put::Done => {}
            Put::Full => return Step::Full,
            Put::Protection => {
                self.unsendable = Some((self.cursor, WcStatus::LocProtErr));
                return Step::Wait;
            }
        }
        if ack_req {
            self.asked = self.next_psn;
        }
        self.sent(cx, wqe, 1, ack_req, out.now());
        Step::Sent
    }

    /// Whether the last packet of this work request should carry AckReq.
    ///
    /// It should if the application waits for the completion, or no packet with AckReq follows
    /// soon.
    fn ends_burst(&self, attr: &QpAttr, wqe: &SendWqe) -> bool {
        let next = self.cursor + 1;
        if self.signal_all || wqe.flags.contains(SendFlags::SIGNALED) {
            return true;
        }
        match self.queue.get(next) {
            None => true,
            Some(_) if attr.state == QpState::Sqd && next >= self.begun => true,
            // A local operation completes after this work request, and may wait for it.
            Some(next) if next.op.is_local() => true,
            // A READ is sent when the window has room for all of its responses.
            Some(read) if read.op.has_response() => {
                self.room() <= read.packets.min(self.read_piece(attr))
            }
            Some(next) => self.lacks_credit(next),
        }
    }

    /// Advances the cursor past the packets sent.
    fn sent(
        &mut self,
        cx: &mut Context<'_>,
        wqe: &SendWqe,
        packets: u32,
        answered: bool,
        now: Time,
    ) {
        cx.counters.sent_packets += 1;
        let is_new = !self.next_psn.before(self.sent_end);
        if !is_new {
            cx.counters.retransmitted += 1;
        } else if answered && self.measured.is_none() {
            self.measured = Some((self.next_psn, now));
        }
        self.next_psn = self.next_psn + packets;
        self.cursor_packet += packets;
        self.begun = self.begun.max(self.cursor + 1);
        if self.cursor_packet == wqe.packets {
            self.cursor += 1;
            self.cursor_packet = 0;
        }
        let new = self.next_psn.diff(self.sent_end);
        if new > 0 {
            self.grant.spend(new as u32);
            self.sent_end = self.next_psn;
        }
        self.timers.sent(now);
    }

    /// Goes back: the next packet sent is the oldest that is not done.
    fn go_back(&mut self) {
        self.repair = None;
        self.scoreboard.clear();
        self.back_for_gap = false;
        self.measured = None;
        // A work request that could not be sent waits for its predecessors, which are sent again.
        self.unsendable = None;
        self.awaiting.clear();
        self.place_cursor();
    }

    /// Puts the cursor at `una`.
    fn place_cursor(&mut self) {
        self.cursor = self.queue.head();
        self.next_psn = self.una;
        self.asked = self.una.prev();
        self.cursor_packet = match self.queue.get(self.cursor) {
            Some(wqe) => self.una.diff(wqe.first_psn).max(0) as u32,
            None => 0,
        };
    }

    /// Handles a CNP: packets of this connection met congestion.
    pub(super) fn notified(&mut self, now: Time) {
        self.window.notified(now);
    }

    /// Runs the timers that have expired.
    pub(super) fn expire<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) -> Outcome {
        match self.timers.expire(cx.now) {
            Expired::Nothing | Expired::RnrOver => {}
            Expired::Probe if self.probe_tail() => cx.counters.probes += 1,
            Expired::Probe | Expired::Resend => {
                cx.counters.timeouts += 1;
                self.window.silent(cx.now);
                self.reduced_until = self.sent_end;
                self.go_back();
            }
            // Only parts were requested again; the peer may accept a request for the whole rest.
            Expired::RetriesExceeded if self.awaits_partial() => {
                cx.counters.timeouts += 1;
                self.go_back();
            }
            Expired::RetriesExceeded => return Outcome::Unanswered,
        }
        self.settle(cx, host)
    }

    /// Ends the connection: the peer does not answer, and there is no alternate path.
    pub(super) fn give_up<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) -> Outcome {
        cx.counters.retries_exceeded += 1;
        self.fail(cx, self.exhausted_status(), host)
    }

    /// Resets the round-trip estimate and the window after a change of path.
    ///
    /// Round trips and the window of the old path do not apply to the new one (RFC 9000, 9.4), and
    /// neither do losses of packets sent before the change.
    pub(super) fn path_changed(&mut self, attr: &QpAttr, window: Window) {
        self.configure(attr);
        self.timers.forget_round_trip();
        self.window = window;
        self.reduced_until = self.sent_end;
        self.measured = None;
    }

    /// Starts over on another path after the first has failed.
    ///
    /// All unacknowledged packets are sent again, with all retries.
    pub(super) fn start_over(&mut self, attr: &QpAttr, window: Window) {
        self.path_changed(attr, window);
        self.timers.reset();
        self.go_back();
    }

    /// Fails the oldest work request if it is the one that cannot be sent.
    pub(super) fn settle<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) -> Outcome {
        match self.unsendable {
            Some((index, status)) if index == self.queue.head() => self.fail(cx, status, host),
            _ => Outcome::Continue,
        }
    }

    /// Sends a keep-alive, unless an answer is outstanding. Returns whether it was sent.
    pub(super) fn probe<T: Transmit>(&self, cx: &mut Context<'_>, out: &mut T) -> bool {
        if self.awaits_answer() || self.timers.waits_for_receiver() {
            return false;
        }
        let nothing = Reth {
            addr: 0,
            rkey: RKey(0),
            length: 0,
        };
        let header = cx
            .header(
                Operation::Write,
                Position::Only,
                Headers::empty(),
                self.una.prev(),
            )
            .with_ack_req(true)
            .with_reth(nothing);
        let Some(packet) = out.stage(header.len()) else {
            return false;
        };
        header.emit(packet);
        out.commit();
        cx.counters.sent_packets += 1;
        true
    }

    /// Whether an answer of the peer is outstanding.
    pub(super) fn awaits_answer(&self) -> bool {
        self.una != self.sent_end
    }

    /// Completes the oldest work request with `status` and flushes the others.
    fn fail<H: Completions>(
        &mut self,
        cx: &mut Context<'_>,
        status: WcStatus,
        host: &mut H,
    ) -> Outcome {
        if let Some(wqe) = self.queue.pop() {
            host.send_completed(cx.completion(&wqe, status));
        }
        self.flush(cx, host);
        Outcome::Failed
    }

    /// Flushes all work requests, in order (10.3.1.7).
    pub(super) fn flush<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        while let Some(wqe) = self.queue.pop() {
            host.send_completed(cx.completion(&wqe, WcStatus::WrFlushErr));
        }
        self.timers.reset();
        self.repair = None;
        self.unsendable = None;
        self.awaiting.clear();
        self.read_ends.clear();
        self.scoreboard.reset();
        self.cursor = self.queue.head();
        self.begun = self.cursor;
        self.cursor_packet = 0;
    }
}
