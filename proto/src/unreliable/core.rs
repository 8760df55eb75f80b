//! The state and the send queue of an unreliable queue pair of any service.

use super::requester::{Requester, Sent};
use crate::held_receive::HeldReceive;
use crate::host::{Completions, Host, MemoryError, QpEvent, Transmit};
use crate::ids::Qpn;
use crate::psn::Psn;
use crate::qp::{AttrMask, Counters, Migration, QpAttr, QpState, QpType, TransitionError};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::service::{Context, discard_receives, flush_receives};
use crate::time::Time;
use crate::wire::Transport;
use crate::work::{Completion, Extra, IpVersion, SendWr, UdDestination, WcOpcode, WcStatus};
use std::ops::RangeInclusive;

/// The fields of a receive completion other than its length.
pub(crate) struct MessageInfo {
    pub(crate) src_qp: Qpn,
    pub(crate) extra: Extra,
    /// The version of the IP header that the receive begins with, if it does.
    pub(crate) grh: Option<IpVersion>,
    pub(crate) solicited: bool,
}

/// The parts of an unreliable queue pair that do not depend on its service.
#[derive(Debug)]
pub(crate) struct Core {
    qpn: Qpn,
    service: QpType,
    transport: Transport,
    pub(crate) attr: QpAttr,
    pub(crate) migration: Migration,
    /// The attributes in the RESET state.
    initial: QpAttr,
    requester: Requester,
    pub(crate) receive: HeldReceive,
    /// Whether to report [`QpEvent::SendQueueDrained`] when the send queue is drained.
    draining: bool,
    pub(crate) counters: Counters,
}

impl Core {
    pub(crate) fn new(
        service: QpType,
        transport: Transport,
        qpn: Qpn,
        send: SendQueueSize,
        signal_all: bool,
        initial: QpAttr,
    ) -> Result<Self, NoMemory> {
        Ok(Core {
            qpn,
            service,
            transport,
            attr: initial,
            migration: Migration::default(),
            initial,
            requester: Requester::new(send, signal_all)?,
            receive: HeldReceive::default(),
            draining: false,
            counters: Counters::default(),
        })
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn service(&self) -> QpType {
        self.service
    }

    pub(crate) fn attributes(&self, expected: Option<Psn>) -> QpAttr {
        let mut attr = self.attr;
        attr.cur_state = attr.state;
        attr.sq_draining = self.attr.state == QpState::Sqd && !self.requester.is_drained();
        if let Some(expected) = expected.filter(|_| attr.state.handles_packets()) {
            attr.rq_psn = expected;
        }
        if attr.state.accepts_sends() {
            attr.sq_psn = self.requester.next_psn();
        }
        attr
    }

    pub(crate) fn send_queue_size(&self) -> SendQueueSize {
        self.requester.size()
    }

    pub(crate) fn send_queue_room(&self) -> u32 {
        self.requester.queue_room()
    }

    /// Changes attributes and state.
    pub(crate) fn modify<H: Host>(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
    ) -> Result<(), TransitionError> {
        let (from, to) = self
            .migration
            .change(&mut self.attr, self.service, new, mask, host)?;
        match (from, to) {
            (_, QpState::Reset) => self.reset(host),
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => self.flush(now, host),
            (QpState::Rtr, QpState::Rts) => self.requester.reset(self.attr.sq_psn),
            (QpState::Sqd, QpState::Rts) => self.draining = false,
            (QpState::Rts, QpState::Sqd) => {
                self.draining = self.attr.en_sqd_async_notify;
                self.report_drained(host);
            }
            _ => {}
        }
        Ok(())
    }

    /// Posts a send work request; in SQE and ERR it is flushed at once.
    pub(crate) fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        if !self.attr.state.accepts_sends() {
            return Err(PostError::State);
        }
        self.requester.post(wr, &self.attr)?;
        if self.attr.state.flushes_sends() {
            let (cx, requester, _) = self.parts(now);
            requester.flush(&cx, host);
        }
        Ok(())
    }

    pub(crate) fn receive_posted<H: Host>(&mut self, host: &mut H) {
        if self.attr.state.flushes_receives() && host.receive_credits().is_some() {
            flush_receives(self.qpn, host);
        }
    }

    /// The destination of the next datagram.
    pub(crate) fn next_destination(&self) -> Option<UdDestination> {
        self.requester.next(self.attr.state)?.dest?.datagram()
    }

    /// Whether a work request is queued that the state allows to send.
    pub(crate) fn has_sends(&self) -> bool {
        self.requester.next(self.attr.state).is_some()
    }

    pub(crate) fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let (mut cx, requester, _) = self.parts(now);
        let sent = requester.transmit(&mut cx, host, out);
        self.after_transmit(sent, host)
    }

    /// Like [`Self::poll_transmit`], for work requests that are whole frames of lengths in
    /// `frames`.
    pub(crate) fn poll_frames<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        frames: RangeInclusive<usize>,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let (mut cx, requester, _) = self.parts(now);
        let sent = requester.transmit_frames(&mut cx, frames, host, out);
        self.after_transmit(sent, host)
    }

    /// Applies the result of sending to the state. Returns whether more is to be sent.
    fn after_transmit<H: Host>(&mut self, sent: Sent, host: &mut H) -> bool {
        if sent == Sent::Failed {
            self.attr.state = QpState::Sqe;
            self.draining = false;
        }
        self.report_drained(host);
        sent == Sent::Part
    }

    /// Enters the error state after a receive error; the receive has completed (9.9.3, class A).
    pub(crate) fn enter_error<H: Host>(&mut self, now: Time, host: &mut H) {
        self.attr.state = QpState::Err;
        self.flush(now, host);
    }

    pub(crate) fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state != QpState::Reset && self.attr.state != QpState::Err {
            self.enter_error(now, host);
            host.event(QpEvent::Fatal);
        }
    }

    pub(crate) fn parts(&mut self, now: Time) -> (Context<'_>, &mut Requester, &mut HeldReceive) {
        let cx = Context {
            qpn: self.qpn,
            transport: self.transport,
            attr: &self.attr,
            now,
            counters: &mut self.counters,
        };
        (cx, &mut self.requester, &mut self.receive)
    }

    /// Places a single-packet message, the concatenation of `pieces`, into a receive and completes
    /// it.
    ///
    /// The message is dropped, and counted, when no receive fits.
    pub(crate) fn deliver_message<H: Host>(
        &mut self,
        now: Time,
        pieces: &[&[u8]],
        message: MessageInfo,
        host: &mut H,
    ) {
        let (mut cx, _, receive) = self.parts(now);
        cx.counters.received_packets += 1;
        if !receive.hold(None, host) {
            cx.counters.no_receive += 1;
            return;
        }
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        if receive.room() < total as u64 {
            receive.too_small(&mut cx, host);
            return;
        }
        let into = receive.receive();
        let mut at = 0;
        let scattered = pieces.iter().try_for_each(|piece| {
            host.fill_receive(into, at, piece)?;
            at += piece.len() as u64;
            Ok::<_, MemoryError>(())
        });
        if scattered.is_err() {
            receive.end(cx.qpn, WcStatus::LocProtErr, host);
            self.enter_error(now, host);
            return;
        }
        cx.counters.receives_done += 1;
        let completion = Completion {
            wr_id: into.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: total as u32,
            qpn: cx.qpn,
            src_qp: message.src_qp,
            extra: message.extra,
            grh: message.grh,
        };
        receive.complete(completion, message.solicited, host);
    }

    fn report_drained<H: Completions>(&mut self, host: &mut H) {
        if self.draining && self.requester.is_drained() {
            self.draining = false;
            host.event(QpEvent::SendQueueDrained);
        }
    }

    /// Flushes all outstanding work requests, sends first.
    fn flush<H: Host>(&mut self, now: Time, host: &mut H) {
        self.draining = false;
        let (cx, requester, receive) = self.parts(now);
        requester.flush(&cx, host);
        receive.end(cx.qpn, WcStatus::WrFlushErr, host);
        flush_receives(self.qpn, host);
    }

    /// Returns to the initial state without completing outstanding work requests (10.3.1.1).
    fn reset<H: Host>(&mut self, host: &mut H) {
        self.attr = self.initial;
        self.migration = Migration::default();
        self.requester.reset(self.attr.sq_psn);
        self.receive = HeldReceive::default();
        self.draining = false;
        discard_receives(host);
    }
}
