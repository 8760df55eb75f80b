//! The base, the send queue and the receive side of an unreliable queue pair of any service.

use super::requester::{Requester, Sent};
use crate::host::{Completions, Host, Transmit};
use crate::ids::Qpn;
use crate::placement::{MessageInfo, Placement, PlacementError};
use crate::qp::{AttrMask, QpAttr, QpType, TransitionError};
use crate::qp_base::{QpBase, ReceiveSide};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::service::Context;
use crate::time::Time;
use crate::work::{SendWr, UdDestination, WcOpcode, WcStatus};
use std::ops::RangeInclusive;

/// The parts of an unreliable queue pair that do not depend on its service.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) base: QpBase,
    requester: Requester,
    placement: Placement,
}

impl Core {
    pub(crate) fn new(
        service: QpType,
        qpn: Qpn,
        send: SendQueueSize,
        signal_all: bool,
        initial: QpAttr,
    ) -> Result<Self, NoMemory> {
        Ok(Core {
            base: QpBase::new(service, qpn, initial),
            requester: Requester::new(send, signal_all)?,
            placement: Placement::default(),
        })
    }

    pub(crate) fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Changes attributes and state.
    pub(crate) fn modify<H: Host>(
        &mut self,
        new: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
    ) -> Result<(), TransitionError> {
        let Core {
            base,
            requester,
            placement,
        } = self;
        base.modify(new, mask, now, host, requester, placement)
    }

    /// Posts a send work request; in SQE and ERR it is flushed at once.
    pub(crate) fn post_send<H: Host>(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.base.post_send(wr, now, host, &mut self.requester)
    }

    /// The destination of the next datagram.
    pub(crate) fn next_destination(&self) -> Option<UdDestination> {
        self.requester.next(self.base.attr.state)?.dest?.datagram()
    }

    /// Whether a work request is queued that the state allows to send.
    pub(crate) fn has_sends(&self) -> bool {
        self.requester.next(self.base.attr.state).is_some()
    }

    pub(crate) fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        let mut cx = self.base.context(now);
        let sent = self.requester.transmit(&mut cx, host, out);
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
        let mut cx = self.base.context(now);
        let sent = self.requester.transmit_frames(&mut cx, frames, host, out);
        self.after_transmit(sent, host)
    }

    /// Applies the result of sending to the state. Returns whether more is to be sent.
    fn after_transmit<H: Host>(&mut self, sent: Sent, host: &mut H) -> bool {
        if sent == Sent::Failed {
            self.base.enter_sqe();
        }
        self.base.report_drained(host, &self.requester);
        sent == Sent::Part
    }

    /// Enters the error state after a receive error; the receive has completed (9.9.3, class A).
    pub(crate) fn enter_error<H: Host>(&mut self, now: Time, host: &mut H) {
        self.base
            .enter_error(now, host, &mut self.requester, &mut self.placement);
    }

    pub(crate) fn fail<H: Host>(&mut self, now: Time, host: &mut H) {
        self.base
            .fail(now, host, &mut self.requester, &mut self.placement);
    }

    /// What the receive side of a service needs for a packet.
    pub(crate) fn receive_side(&mut self, now: Time) -> (Context<'_>, &mut Placement) {
        (self.base.context(now), &mut self.placement)
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
        let (mut cx, placement) = self.receive_side(now);
        cx.counters.received_packets += 1;
        match placement.place_message(pieces, host) {
            Ok(len) => placement.complete(&mut cx, WcOpcode::Recv, len, message, host),
            Err(error) => {
                if let Err(status) = drop_message(error, placement, &mut cx, host) {
                    placement.abort(cx.qpn, status, host);
                    self.enter_error(now, host);
                }
            }
        }
    }
}

/// Drops a SEND or a datagram that could not be placed, and counts the reason.
///
/// # Errors
/// The status of its receive, if the error is one that ends in the error state (9.9.3, class A).
pub(crate) fn drop_message<H: Host>(
    error: PlacementError,
    placement: &mut Placement,
    cx: &mut Context<'_>,
    host: &mut H,
) -> Result<(), WcStatus> {
    match error {
        PlacementError::NoReceive => cx.counters.no_receive += 1,
        PlacementError::TooLong => placement.receive_too_small(cx, host),
        PlacementError::Protection => return Err(WcStatus::LocProtErr),
    }
    Ok(())
}

impl ReceiveSide for Placement {
    fn start(&mut self, _attr: &QpAttr) {}

    fn reset(&mut self) {
        *self = Placement::default();
    }

    fn stop<H: Completions>(&mut self, cx: &mut Context<'_>, host: &mut H) {
        self.abort(cx.qpn, WcStatus::WrFlushErr, host);
    }
}
