//! The requester: turns send work requests into request packets, and answers into completions
//! (9.7.3, 9.7.5.2, 9.9.2).
//!
//! All PSNs before `una` are done: acknowledged or, for READs and atomics, answered. A cursor runs
//! ahead of `una` through the queue; going back sets the cursor to `una`. The PSNs of a work
//! request are assigned when it is posted, so the requester keeps no record of each packet sent.
//!
//! The parts that have a state of their own are in `send_cursor`, `fast_retransmit`, `scoreboard`,
//! `read_requests`, `single_read`, `receive_credits`, `send_quantum`, `pacing` and `short_probe`,
//! and in `loss_recovery` and `congestion` beside this module. The other modules implement steps of
//! the requester: `completer` handles what the peer sends, `data_packets` sends SENDs and WRITEs,
//! `requests` requests that require a response, `timeouts` handles timers, `retransmission` and `missing_responses` repair losses.

mod completer;
mod data_packets;
mod fast_retransmit;
mod missing_responses;
mod pacing;
mod read_requests;
mod receive_credits;
mod requests;
mod retransmission;
mod scoreboard;
mod send_cursor;
mod send_quantum;
mod short_probe;
mod single_read;
mod timeouts;

use super::congestion::{Algorithm, Window, WindowLimits};
use super::loss_recovery::LossRecovery;
use crate::host::{Completions, Host, Transmit};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::{QpAttr, QpState};
use crate::qp_base::SendSide;
use crate::queue::{NoMemory, PostError, SendQueue, SendQueueSize, SendWqe};
use crate::service::{Context, execute_local};
use crate::time::Time;
use crate::wire::{Headers, Operation, Position};
use crate::work::{SendFlags, SendOp, SendWr, WcStatus};
use fast_retransmit::FastRetransmit;
use pacing::Pacing;
use read_requests::ReadRequests;
use receive_credits::ReceiveCredits;
use scoreboard::Scoreboard;
use send_cursor::SendCursor;
use send_quantum::SendQuantum;
use short_probe::{ShortProbe, send_duplicate};
use single_read::SingleRead;
use std::time::Duration;

/// The result of a step of the requester or the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Outcome {
    /// The queue pair continues.
    Continue,
    /// A work request ended in error: the queue pair goes to the error state.
    Failed,
    /// `retry_cnt` is exhausted: the queue pair fails over to its alternate path, or fails.
    RetriesExceeded,
}

/// The result of an attempt to send.
enum Step {
    /// A packet was sent, or a local operation executed; more may follow from this position.
    Sent(SendCursor),
    /// Nothing may be sent until a packet arrives or a timer expires.
    Wait,
    /// The sink is full.
    Full,
}

/// The most packets to which the window is inflated. With the largest MTU the out-of-order queue of
/// a responder has room for as many.
const MAX_INFLATED_WINDOW: u32 = 4096;

/// The number of packets of a window whose round trip is measured.
const SAMPLES_PER_WINDOW: u32 = 16;

/// The requester of a reliable connection.
#[derive(Debug)]
pub(super) struct Requester {
    queue: SendQueue,
    signal_all: bool,
    /// The position of the next packet to send.
    cursor: SendCursor,
    /// The cursor before the requester went back, to which it returns if the timeout was spurious.
    /// Valid only while the requester has gone back.
    resume: SendCursor,
    /// Work requests below this index have begun execution.
    begun: u64,
    /// The PSN after the highest one sent.
    sent_end: Psn,
    una: Psn,
    /// The sent requests that require a response.
    requests: ReadRequests,
    single_read: SingleRead,
    scoreboard: Scoreboard,
    credits: ReceiveCredits,
    recovery: LossRecovery,
    fast_retransmit: FastRetransmit,
    /// Whether the cursor went back because of a reported gap, not because of a timeout.
    back_for_gap: bool,
    short_probe: ShortProbe,
    window: Window,
    algorithm: Algorithm,
    window_limits: WindowLimits,
    quantum: SendQuantum,
    pacing: Pacing,
    /// The packets by which the window is inflated during the repair of a gap.
    inflation: u32,
    /// A work request that cannot be sent, and its status once it is the oldest.
    unsendable: Option<(u64, WcStatus)>,
}

impl Requester {
    pub(super) fn new(
        size: SendQueueSize,
        signal_all: bool,
        algorithm: Algorithm,
        window_limits: WindowLimits,
    ) -> Result<Self, NoMemory> {
        Ok(Requester {
            queue: SendQueue::new(size)?,
            signal_all,
            cursor: SendCursor::default(),
            resume: SendCursor::default(),
            begun: 0,
            sent_end: Psn::default(),
            una: Psn::default(),
            requests: ReadRequests::default(),
            single_read: SingleRead::default(),
            scoreboard: Scoreboard::default(),
            credits: ReceiveCredits::default(),
            recovery: LossRecovery::new(0, 0, 0),
            fast_retransmit: FastRetransmit::default(),
            back_for_gap: false,
            short_probe: ShortProbe::None,
            window: Window::new(algorithm, Mtu::B256, window_limits),
            algorithm,
            window_limits,
            quantum: SendQuantum::default(),
            pacing: Pacing::default(),
            inflation: 0,
            unsendable: None,
        })
    }

    fn new_window(&self, attr: &QpAttr) -> Window {
        let mut window = Window::new(self.algorithm, attr.path_mtu, self.window_limits);
        window.set_short_path(self.quantum.is_required());
        window
    }

    /// The congestion window in packets.
    pub(super) fn congestion_window(&self) -> u32 {
        self.window.packets()
    }

    /// The loss recovery, whose estimates the responder uses too.
    pub(super) fn recovery(&self) -> &LossRecovery {
        &self.recovery
    }

    pub(super) fn size(&self) -> SendQueueSize {
        self.queue.size()
    }

    /// The number of work requests for which the queue has room.
    pub(super) fn queue_room(&self) -> u32 {
        self.queue.room()
    }

    /// Whether [`Requester::transmit`] and [`Requester::fail_unsendable`] have nothing to do: the
    /// queue is empty, and no state of a work request is left.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.fast_retransmit.current().is_none()
            && self.unsendable.is_none()
            && !self.needs_quantum()
    }

    #[inline]
    pub(super) fn deadline(&self) -> Time {
        let deadline = self.recovery.deadline();
        match self.awaits_pacing() {
            true => deadline.min(self.pacing.resumes_at(self.sent_end)),
            false => deadline,
        }
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
        self.quantum.set_needed(false);
        if self.pacing.is_active() {
            self.quantum.pace(self.pacing.grant(self.sent_end, cx.now));
        }
        if self.fast_retransmit.is_scheduled() && !self.transmit_scheduled(cx, host, out) {
            return true;
        }
        if self.scoreboard.has_missing() && !self.transmit_missing(cx, host, out) {
            return true;
        }
        if matches!(self.short_probe, ShortProbe::Due(_)) && !self.transmit_short_probe(cx, out) {
            return true;
        }
        loop {
            let cursor = self.cursor;
            let Some(wqe) = self.queue.get(cursor.index) else {
                return false;
            };
            let is_blocked =
                self.recovery.waits_for_receiver() || self.fast_retransmit.blocks_sending(self.una);
            if is_blocked || self.unsendable.is_some() {
                return false;
            }
            let is_new = cursor.index >= self.begun;
            if !cx.attr.state.initiates() || (is_new && cx.attr.state == QpState::Sqd) {
                return false;
            }
            let is_fenced = wqe.flags.contains(SendFlags::FENCE) && cursor.packet == 0;
            if is_fenced && self.requests.outstanding() > 0 {
                return false;
            }
            let step = if wqe.op.is_local() {
                let wqe = *wqe;
                self.execute_local(cx, cursor, &wqe, host)
            } else if wqe.op.has_response() {
                let wqe = *wqe;
                self.send_with_response(cx, cursor, &wqe, host, out)
            } else {
                self.send_data(cx, cursor, host, out)
            };
            match step {
                Step::Sent(next) => self.cursor = next,
                Step::Wait => return false,
                Step::Full => return true,
            }
        }
    }

    /// Executes a local operation; going back does not repeat it.
    ///
    /// It completes after all work requests before it.
    #[inline(never)]
    fn execute_local<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        cursor: SendCursor,
        wqe: &SendWqe,
        host: &mut H,
    ) -> Step {
        if cursor.index >= self.begun {
            // An invalidation waits for the completion of all earlier work requests, which may use
            // the key (10.6.5.1); a bind need not wait (10.8.3.3).
            if matches!(wqe.op, SendOp::LocalInv(_)) && cursor.index != self.queue.head() {
                return Step::Wait;
            }
            if let Err(status) = execute_local(&wqe.op, host) {
                self.unsendable = Some((cursor.index, status));
                return Step::Wait;
            }
            self.begun = cursor.index + 1;
        }
        self.complete_done(cx, self.una, host);
        Step::Sent(cursor.next_work_request())
    }

    /// See [`RcQp::require_send_quanta`](super::RcQp::require_send_quanta).
    pub(super) fn require_quanta(&mut self, required: bool) {
        self.stop_pacing();
        self.quantum.require(required);
        self.window.set_short_path(required);
    }

    /// See [`RcQp::has_spent_send_quantum`](super::RcQp::has_spent_send_quantum).
    #[inline]
    pub(super) fn has_spent_quantum(&self) -> bool {
        self.quantum.is_required()
            && self.quantum.left() == 0
            && self.queue.get(self.cursor.index).is_some()
            && self.window_room(self.cursor) > 0
    }

    /// See [`RcQp::renew_send_quantum`](super::RcQp::renew_send_quantum).
    pub(super) fn renew_quantum(&mut self, psns: u32) {
        self.quantum.renew(psns);
    }

    /// See [`RcQp::refuse_send_quantum`](super::RcQp::refuse_send_quantum).
    pub(super) fn refuse_quantum(&mut self) -> bool {
        self.quantum.refuse()
    }

    /// See [`RcQp::needs_send_quantum`](super::RcQp::needs_send_quantum).
    pub(super) fn needs_quantum(&self) -> bool {
        self.quantum.is_needed() && self.quantum.is_required()
    }

    /// Whether packets are withheld until pacing permits them.
    #[inline]
    fn awaits_pacing(&self) -> bool {
        self.quantum.is_needed() && self.pacing.is_active()
    }

    /// Sets the rate of pacing after a round-trip sample.
    #[inline]
    fn set_pacing_rate(&mut self, attr: &QpAttr) {
        if let Some((shortest, smoothed)) = self.recovery.round_trips()
            && !self.quantum.is_required()
        {
            let window = self.window.packets();
            if Pacing::is_needed(window, shortest) {
                let starts = self.window.in_slow_start();
                (self.pacing).set_rate(self.sent_end, window, smoothed, starts, attr.path_mtu);
            } else {
                self.pacing.stop();
            }
        }
        if !self.pacing.is_active() {
            self.stop_pacing();
        }
    }

    /// Sends new packets at the rate of the window while the gap at `una` is repaired, if the peer
    /// keeps them.
    ///
    /// Nothing is acknowledged until the gap has closed, although packets behind it arrive. So the
    /// window is inflated, and pacing takes the place of the acknowledgements. Fast recovery (RFC
    /// 5681, 3.2) inflates by one segment for each duplicate ACK. A responder sends no duplicate
    /// ACKs, so here the inflation is a whole window, which pacing releases over time. The inflated
    /// window has twice the window's size at most, also after a reduction ([`Self::window_room`]):
    /// a responder drops requests that have been behind a gap for longer.
    fn inflate_window(&mut self, attr: &QpAttr, now: Time) {
        self.set_pacing_rate(attr);
        if self.pacing.is_active() && self.fast_retransmit.peer_keeps_requests() {
            let window = self.window.packets();
            self.inflation = window.min(MAX_INFLATED_WINDOW.saturating_sub(window));
            self.pacing.pace_repair(self.sent_end, now);
        }
    }

    /// Sends without pacing until the next round-trip sample.
    fn stop_pacing(&mut self) {
        self.pacing.stop();
        self.inflation = 0;
        self.quantum.pace(u32::MAX);
    }

    /// The number of PSNs that may be used at the cursor now.
    #[inline]
    fn room(&self, cursor: SendCursor) -> u32 {
        self.window_room(cursor).min(self.quantum_room(cursor))
    }

    /// The number of PSNs that the window still allows.
    #[inline]
    fn window_room(&self, cursor: SendCursor) -> u32 {
        let in_flight = cursor.in_flight(self.una);
        let window = self.window.packets();
        (window + self.inflation.min(window)).saturating_sub(in_flight)
    }

    /// The number of PSNs that the send quantum still allows. PSNs used before need no quantum.
    #[inline]
    fn quantum_room(&self, cursor: SendCursor) -> u32 {
        let used_before = self.sent_end.diff(cursor.psn).max(0) as u32;
        self.quantum.left().saturating_add(used_before)
    }

    /// The number of PSNs in flight.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.cursor.in_flight(self.una)
    }

    /// Whether the cursor is at packets that were sent before.
    fn has_gone_back(&self) -> bool {
        self.cursor.psn != self.sent_end
    }

    /// Records that the packet at `cursor` was sent, and that the position after it is `next`.
    ///
    /// `is_answered` is whether the peer answers the packet at once.
    #[inline(always)]
    fn sent(
        &mut self,
        cx: &mut Context<'_>,
        cursor: SendCursor,
        next: SendCursor,
        is_answered: bool,
        now: Time,
    ) {
        cx.counters.sent_packets += 1;
        if self.una == self.sent_end && self.recovery.was_idle(now) {
            self.window.restart_after_idle();
        }
        if cursor.psn.before(self.sent_end) {
            cx.counters.retransmitted += 1;
            let end = next.psn;
            self.recovery.retransmitted(end, self.sent_end);
        } else if is_answered {
            let spacing = self.window.packets() / SAMPLES_PER_WINDOW;
            self.recovery.measure(cursor.psn, spacing.max(1), now);
        }
        self.begun = self.begun.max(cursor.index + 1);
        let new = next.psn.diff(self.sent_end);
        if new > 0 {
            self.quantum.spend(new as u32);
            self.sent_end = next.psn;
        }
        self.recovery.sent(now);
    }

    /// See [`super::RcQp::seed_timeout`].
    pub(super) fn seed_timeout(&mut self, timeout: Duration) {
        self.recovery.seed_timeout(timeout);
    }

    /// Handles a CNP: packets of this connection met congestion.
    pub(super) fn cnp_received(&mut self, now: Time) {
        self.window.cnp_received(now);
    }

    /// Resets the round-trip estimate and the window after a change of path.
    ///
    /// Round trips and the window of the old path do not apply to the new one (RFC 9000, 9.4), and
    /// neither do losses of packets sent before the change. The retries start over.
    pub(super) fn path_changed(&mut self, attr: &QpAttr) {
        self.configure(attr);
        self.recovery.path_changed();
        self.stop_pacing();
        self.window = self.new_window(attr);
        self.window.ignore_losses_before(self.sent_end);
        self.single_read.reset();
    }

    /// Starts over on another path after the first has failed.
    ///
    /// All unacknowledged packets are sent again, with all retries.
    pub(super) fn start_over(&mut self, attr: &QpAttr) {
        self.path_changed(attr);
        self.recovery.reset();
        self.go_back();
    }

    /// Fails the oldest work request if it is the one that cannot be sent.
    pub(super) fn fail_unsendable<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
    ) -> Outcome {
        match self.unsendable {
            Some((index, status)) if index == self.queue.head() => self.fail(cx, status, host),
            _ => Outcome::Continue,
        }
    }

    /// Sends a keep-alive, unless an answer is outstanding, the receiver is not ready, or the sink
    /// is full. Returns whether it was sent.
    pub(super) fn send_keep_alive<T: Transmit>(&self, cx: &mut Context<'_>, out: &mut T) -> bool {
        if self.awaits_answer() || self.recovery.waits_for_receiver() {
            return false;
        }
        let header = cx.header(
            Operation::Write,
            Position::Only,
            Headers::empty(),
            self.una.prev(),
        );
        send_duplicate(cx, header, out)
    }

    /// Whether an answer of the peer is outstanding.
    pub(super) fn awaits_answer(&self) -> bool {
        self.una != self.sent_end
    }

    /// Completes the oldest work request with `status` and flushes the others.
    #[cold]
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
}

impl SendSide for Requester {
    fn reset(&mut self, attr: &QpAttr) {
        let psn = attr.sq_psn;
        self.queue.reset(psn);
        self.cursor = SendCursor::in_oldest(&self.queue, psn);
        self.begun = self.cursor.index;
        self.sent_end = psn;
        self.una = psn;
        self.requests.clear();
        self.single_read.reset();
        self.scoreboard.reset();
        self.credits = ReceiveCredits::default();
        self.recovery = LossRecovery::new(attr.timeout, attr.retry_cnt, attr.rnr_retry);
        self.fast_retransmit = FastRetransmit::default();
        self.back_for_gap = false;
        self.short_probe = ShortProbe::None;
        self.stop_pacing();
        self.window = self.new_window(attr);
        self.window.ignore_losses_before(psn);
        self.unsendable = None;
    }

    fn configure(&mut self, attr: &QpAttr) {
        self.recovery
            .configure(attr.timeout, attr.retry_cnt, attr.rnr_retry);
    }

    /// If the last packet had no AckReq because others were to follow, it is sent again with
    /// AckReq.
    fn drain(&mut self) {
        let between_messages = self.cursor.packet == 0 && self.cursor.index == self.begun;
        if self.in_flight() == 0 || self.cursor.follows_ack_req() || !between_messages {
            return;
        }
        // Local operations have no packets; since some are in flight, another work request has.
        let with_packets = |index: &u64| self.queue.get(*index).is_some_and(|w| w.packets > 0);
        let sent = self.queue.head()..self.cursor.index;
        if let Some(index) = sent.rev().find(with_packets)
            && let Some(last) = self.queue.get(index)
        {
            // A fast retransmit would end at the packet that is sent here.
            let packet = last.packets - 1;
            self.fast_retransmit.cancel();
            self.set_cursor_back(SendCursor {
                index,
                packet,
                psn: self.cursor.psn.prev(),
                ..self.cursor
            });
        }
    }

    fn is_drained(&self) -> bool {
        self.queue.head() >= self.begun
    }

    fn next_psn(&self) -> Psn {
        self.cursor.psn
    }

    fn post(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<(), PostError> {
        self.queue.post(wr, attr.path_mtu)
    }

    fn flush<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        cx.flush_sends(&mut self.queue, host);
        self.recovery.reset();
        self.stop_pacing();
        self.fast_retransmit.cancel();
        self.short_probe = ShortProbe::None;
        self.unsendable = None;
        self.requests.clear();
        self.scoreboard.reset();
        self.begun = self.queue.head();
        self.cursor = SendCursor {
            index: self.begun,
            packet: 0,
            ..self.cursor
        };
    }
}
