//! The states and the send queue of an unreliable queue pair, whichever its service is.

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

/// What a completion tells of a message beside its length.
pub(crate) struct Told {
    pub(crate) src_qp: Qpn,
    pub(crate) extra: Extra,
    /// The version of the IP header that the receive begins with, if it does.
    pub(crate) grh: Option<IpVersion>,
    pub(crate) solicited: bool,
}

/// What an unreliable queue pair has beside its responder.
#[derive(Debug)]
pub(crate) struct Core {
    qpn: Qpn,
    service: QpType,
    transport: Transport,
    pub(crate) attr: QpAttr,
    pub(crate) migration: Migration,
    /// The attributes in RESET.
    initial: QpAttr,
    requester: Requester,
    pub(crate) receive: HeldReceive,
    /// Whether the end of draining is to be announced.
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
        if attr.state.takes_sends() {
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
                self.announce_drained(host);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a send work request; in SQE and ERR it is flushed at once.
    pub(crate) fn post_send<H: Host>(
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

    /// Where the next datagram goes.
    pub(crate) fn next_destination(&self) -> Option<UdDestination> {
        self.requester.next(self.attr.state)?.dest?.datagram()
    }

    /// Whether there is something to send that may go.
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
        self.sent(sent, host)
    }

    /// The same for requests whose data are whole frames, of the lengths in `frames`.
    pub(crate) fn poll_frames<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        frames: RangeInclusive<usize>,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let (mut cx, requester, _) = self.parts(now);
        let sent = requester.transmit_frames(&mut cx, frames, host, out);
        self.sent(sent, host)
    }

    /// What follows from how sending went; whether there is more to send.
    fn sent<H: Host>(&mut self, sent: Sent, host: &mut H) -> bool {
        if sent == Sent::Failed {
            self.attr.state = QpState::Sqe;
            self.draining = false;
        }
        self.announce_drained(host);
        sent == Sent::Part
    }

    /// A receive met an error that ends the queue pair: it has completed already (9.9.3, class A).
    pub(crate) fn end<H: Host>(&mut self, now: Time, host: &mut H) {
        self.attr.state = QpState::Err;
        self.flush(now, host);
    }

    pub(crate) fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state != QpState::Reset && self.attr.state != QpState::Err {
            self.end(now, host);
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

    /// A message has come in one packet: puts its `pieces`, one after the other, into a receive.
    /// Without one that it fits, it is dropped.
    pub(crate) fn receive_whole<H: Host>(
        &mut self,
        now: Time,
        pieces: &[&[u8]],
        told: Told,
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
            self.end(now, host);
            return;
        }
        cx.counters.receives_done += 1;
        let completion = Completion {
            wr_id: into.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: total as u32,
            qpn: cx.qpn,
            src_qp: told.src_qp,
            extra: told.extra,
            grh: told.grh,
        };
        receive.complete(completion, told.solicited, host);
    }

    fn announce_drained<H: Completions>(&mut self, host: &mut H) {
        if self.draining && self.requester.is_drained() {
            self.draining = false;
            host.event(QpEvent::SendQueueDrained);
        }
    }

    /// Ends all that is outstanding, sends first.
    fn flush<H: Host>(&mut self, now: Time, host: &mut H) {
        self.draining = false;
        let (cx, requester, receive) = self.parts(now);
        requester.flush(&cx, host);
        receive.end(cx.qpn, WcStatus::WrFlushErr, host);
        flush_receives(self.qpn, host);
    }

    /// Back to the state of creation; nothing outstanding completes (10.3.1.1).
    fn reset<H: Host>(&mut self, host: &mut H) {
        self.attr = self.initial;
        self.migration = Migration::default();
        self.requester.reset(self.attr.sq_psn);
        self.receive = HeldReceive::default();
        self.draining = false;
        discard_receives(host);
    }
}
