//! The parts of a queue pair that do not depend on its service: its state, its attributes and their
//! effects on the send and receive sides (10.3.1).

use crate::host::{Completions, Host, QpEvent};
use crate::ids::{Gid, PKey, Qpn};
use crate::psn::Psn;
use crate::qp::{AttrMask, Counters, Migration, QpAttr, QpState, QpType, TransitionError};
use crate::queue::PostError;
use crate::service::{Context, discard_receives, flush_receives};
use crate::time::Time;
use crate::wire::{Bth, Transport};
use crate::work::SendWr;

/// The send side of a queue pair, as a change of state affects it.
pub(crate) trait SendSide {
    /// Starts with an empty queue: the transition to RTS or RESET.
    fn reset(&mut self, attr: &QpAttr);

    /// Applies changed attributes.
    fn configure(&mut self, attr: &QpAttr);

    /// Handles the transition to SQD.
    fn drain(&mut self);

    /// Whether all begun work requests are done, the condition for the end of draining (10.3.1.5).
    fn is_drained(&self) -> bool;

    /// The PSN of the next new packet.
    fn next_psn(&self) -> Psn;

    /// Posts a work request.
    fn post(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<(), PostError>;

    /// Flushes all work requests, in order (10.3.1.7).
    fn flush<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H);
}

/// The receive side of a queue pair, as a change of state affects it.
pub(crate) trait ReceiveSide {
    /// Starts at the first PSN: the transition to RTR.
    fn start(&mut self, attr: &QpAttr);

    /// Returns to the initial state.
    fn reset(&mut self);

    /// Ends the message in progress, and flushes its receive, when the queue pair leaves the states
    /// that handle packets.
    fn stop<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H);
}

/// The state, the attributes and the counters of a queue pair.
#[derive(Debug)]
pub(crate) struct QpBase {
    qpn: Qpn,
    service: QpType,
    transport: Transport,
    /// The attributes in RESET.
    initial: QpAttr,
    pub(crate) attr: QpAttr,
    pub(crate) migration: Migration,
    /// Whether `SendQueueDrained` is to be raised at the end of draining.
    draining: bool,
    /// Whether `CommunicationEstablished` was raised for the first packet in RTR.
    established: bool,
    pub(crate) counters: Counters,
}

impl QpBase {
    /// Returns the base of a queue pair in RESET, with these attributes.
    pub(crate) fn new(service: QpType, qpn: Qpn, initial: QpAttr) -> Self {
        let transport = match service {
            QpType::Rc => Transport::Rc,
            QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
            QpType::Uc => Transport::Uc,
            // A raw frame has no transport header.
            QpType::Ud | QpType::RawPacket => Transport::Ud,
        };
        QpBase {
            qpn,
            service,
            transport,
            initial,
            attr: initial,
            migration: Migration::default(),
            draining: false,
            established: false,
            counters: Counters::default(),
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn service(&self) -> QpType {
        self.service
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// What the send and receive sides use of the base.
    #[inline]
    pub(crate) fn context(&mut self, now: Time) -> Context<'_> {
        Context {
            qpn: self.qpn,
            transport: self.transport,
            attr: &self.attr,
            now,
            counters: &mut self.counters,
        }
    }

    /// The current attributes; `sq_psn` and `rq_psn` are the next PSN sent and the next expected.
    pub(crate) fn attributes(&self, send: &impl SendSide, expected: Option<Psn>) -> QpAttr {
        let mut attr = self.attr;
        attr.cur_state = attr.state;
        attr.sq_draining = attr.state == QpState::Sqd && !send.is_drained();
        if let Some(expected) = expected.filter(|_| attr.state.handles_packets()) {
            attr.rq_psn = expected;
        }
        if attr.state.accepts_sends() {
            attr.sq_psn = send.next_psn();
        }
        attr
    }

    /// Changes attributes, and the state if `mask` contains it (11.2.4.2).
    ///
    /// On an error nothing changes.
    pub(crate) fn modify<H: Host>(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
        send: &mut impl SendSide,
        receive: &mut impl ReceiveSide,
    ) -> Result<(), TransitionError> {
        let (from, to) = self
            .migration
            .change(&mut self.attr, self.service, new, mask, host)?;
        match (from, to) {
            (_, QpState::Reset) => self.reset(host, send, receive),
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => self.flush(now, host, send, receive),
            (_, QpState::Rtr) => receive.start(&self.attr),
            (QpState::Rtr, QpState::Rts) => send.reset(&self.attr),
            (QpState::Sqd, QpState::Rts) => {
                self.draining = false;
                send.configure(&self.attr);
            }
            (QpState::Rts, QpState::Sqd) => {
                self.draining = self.attr.en_sqd_async_notify;
                send.drain();
                self.report_drained(host, send);
            }
            _ => send.configure(&self.attr),
        }
        Ok(())
    }

    /// Checks that the state and the service allow a send work request.
    #[inline]
    pub(crate) fn check_post(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if !self.attr.state.accepts_sends() {
            return Err(PostError::State);
        }
        if !self.service.supports(wr.op) {
            return Err(PostError::Operation);
        }
        Ok(())
    }

    /// Posts a send work request that passed [`QpBase::check_post`]. In SQE and in the error state
    /// it is flushed at once (10.3.1.6, 10.3.1.7).
    pub(crate) fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
        send: &mut impl SendSide,
    ) -> Result<(), PostError> {
        send.post(wr, &self.attr)?;
        if self.attr.state.flushes_sends() {
            send.flush(&mut self.context(now), host);
        }
        Ok(())
    }

    /// Reports that a receive was posted to the queue pair's own queue.
    ///
    /// In the error state it is flushed at once.
    pub(crate) fn receive_posted<H: Host>(&mut self, host: &mut H) {
        if self.attr.state.flushes_receives() && host.receive_credits().is_some() {
            flush_receives(self.qpn, host);
        }
    }

    /// Whether a connected queue pair accepts a packet (9.6.1). Counts the reason when it does not.
    ///
    /// Checked are the state, the source address with the migration request bit, and the partition
    /// key.
    #[inline]
    pub(crate) fn accepts_packet<C: Completions>(
        &mut self,
        from: Gid,
        bth: &Bth,
        host: &mut C,
    ) -> bool {
        let (attr, counters) = (&self.attr, &mut self.counters);
        let drop_counter = if !attr.state.handles_packets() {
            &mut counters.dropped_in_state
        } else if !self.migration.accepts_source(attr, from, bth.mig_req) {
            // Only packets from the peer's address are accepted (9.6.1.5, by way of A17.4.5).
            if bth.mig_req {
                self.migration.report_refusal(attr, host);
            }
            &mut counters.wrong_source
        } else if !PKey::DEFAULT.matches(bth.pkey) {
            &mut counters.bad_pkey
        } else {
            return true;
        };
        *drop_counter += 1;
        false
    }

    /// Migrates because the primary path failed. Returns false when there is no alternate path.
    pub(crate) fn fail_over<C: Completions>(&mut self, host: &mut C) -> bool {
        self.migration.fail_over(&mut self.attr, host)
    }

    /// Applies an accepted packet to the migration state, and reports the first one in RTR.
    ///
    /// Returns whether the connection migrated.
    #[inline]
    pub(crate) fn packet_accepted<C: Completions>(
        &mut self,
        from: Gid,
        bth: &Bth,
        host: &mut C,
    ) -> bool {
        let migrated = self
            .migration
            .packet_accepted(&mut self.attr, from, bth.mig_req, host);
        if self.attr.state == QpState::Rtr && !self.established {
            self.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        migrated
    }

    /// Whether the end of draining is to be reported.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Reports the end of draining, once.
    pub(crate) fn report_drained<H: Completions>(&mut self, host: &mut H, send: &impl SendSide) {
        if self.draining && send.is_drained() {
            self.draining = false;
            host.event(QpEvent::SendQueueDrained);
        }
    }

    /// Enters SQE after the failure of a send work request; the send side has flushed the others.
    pub(crate) fn enter_sqe(&mut self) {
        self.attr.state = QpState::Sqe;
        self.draining = false;
    }

    /// Enters the error state and flushes all work requests.
    pub(crate) fn enter_error<H: Host>(
        &mut self,
        now: Time,
        host: &mut H,
        send: &mut impl SendSide,
        receive: &mut impl ReceiveSide,
    ) {
        self.attr.state = QpState::Err;
        self.flush(now, host, send, receive);
    }

    /// Enters the error state after an error of the completion queue or the device.
    ///
    /// The error itself generates no completion (10.9.3).
    pub(crate) fn fail<H: Host>(
        &mut self,
        now: Time,
        host: &mut H,
        send: &mut impl SendSide,
        receive: &mut impl ReceiveSide,
    ) {
        if self.attr.state != QpState::Reset && self.attr.state != QpState::Err {
            self.enter_error(now, host, send, receive);
            host.event(QpEvent::Fatal);
        }
    }

    /// Flushes all outstanding work requests, sends first.
    fn flush<H: Host>(
        &mut self,
        now: Time,
        host: &mut H,
        send: &mut impl SendSide,
        receive: &mut impl ReceiveSide,
    ) {
        self.draining = false;
        let mut cx = self.context(now);
        send.flush(&mut cx, host);
        receive.stop(&mut cx, host);
        flush_receives(self.qpn, host);
    }

    /// Returns to the initial state; outstanding work requests generate no completions (10.3.1.1).
    fn reset<H: Host>(
        &mut self,
        host: &mut H,
        send: &mut impl SendSide,
        receive: &mut impl ReceiveSide,
    ) {
        self.attr = self.initial;
        self.migration = Migration::default();
        send.reset(&self.attr);
        receive.reset();
        self.draining = false;
        self.established = false;
        discard_receives(host);
    }
}
