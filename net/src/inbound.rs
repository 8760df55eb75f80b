//! The stages between a socket and the caller: fault injection, the ICRC, counters and capture.
//!
//! Without faults and capture nothing is allocated for a packet.

use crate::address::{LocalAddress, ROCE_PORT};
use crate::capture::{CaptureHook, Direction, Record};
use crate::clock;
use crate::counters::NetCounters;
use crate::datagram::{Datagram, OwnedDatagram};
use crate::faults::FaultSpec;
use crate::faults::injector::Injector;
use crate::receive::{Arrival, InboundState, Messages, ReceiveCounts, RecvBatch};
use crate::sync::lock;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use urxe_proto::icrc::IcrcError;
use urxe_proto::time::Time;

/// The stages that each received datagram passes on its way to the caller: fault injection, the
/// check of the ICRC, counters and capture. Cloning shares them.
#[derive(Clone)]
pub(super) struct Inbound {
    counters: Arc<NetCounters>,
    capture: CaptureHook,
    faults: Option<Arc<Mutex<Injector<OwnedDatagram>>>>,
}

impl Inbound {
    /// Returns stages without fault injection.
    pub(super) fn new(counters: Arc<NetCounters>, capture: CaptureHook) -> Self {
        Inbound {
            counters,
            capture,
            faults: None,
        }
    }

    /// Returns these stages with fault injection, if `spec` applies to received packets.
    pub(super) fn with_faults(&self, spec: Option<FaultSpec>) -> Self {
        let injector = |spec| Arc::new(Mutex::new(Injector::new(spec, self.counters.clone())));
        Inbound {
            faults: spec.filter(FaultSpec::receives).map(injector),
            ..self.clone()
        }
    }

    /// Receives once from a socket. Returns the number of messages.
    ///
    /// # Errors
    /// When the socket fails.
    #[inline]
    pub(super) fn receive(
        &self,
        batch: &mut RecvBatch,
        socket: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        self.counters.receive_calls.add(1);
        let count = batch.fill(socket)?;
        if count > 0 {
            self.counters.messages_in.add(count as u64);
        }
        Ok(count)
    }

    /// Returns the messages that the last call of [`Inbound::receive`] has received from a socket
    /// that is bound to `dst`.
    #[inline]
    pub(super) fn received<'a>(
        &'a self,
        batch: &'a mut RecvBatch,
        dst: LocalAddress,
    ) -> Received<'a> {
        let (messages, state) = batch.parts();
        Received {
            inbound: self,
            dst,
            messages,
            state,
        }
    }

    /// Whether [`Inbound::deliver`] may keep a datagram for later.
    pub(super) fn delays(&self) -> bool {
        self.faults.is_some()
    }

    /// Passes a datagram through all stages, and calls `f` if its ICRC is correct. The injector may
    /// release earlier datagrams as well, or none.
    #[inline]
    pub(super) fn deliver(
        &self,
        state: &mut InboundState,
        datagram: &mut Datagram<'_>,
        mut f: impl FnMut(&Datagram<'_>),
    ) {
        if let Some(injector) = &self.faults {
            self.deliver_through_faults(injector, state, datagram, &mut f);
        } else if self.verify(state, datagram) {
            f(datagram);
        }
    }

    /// Passes a datagram to the fault injector, and delivers those that the injector releases.
    #[cold]
    fn deliver_through_faults(
        &self,
        injector: &Mutex<Injector<OwnedDatagram>>,
        state: &mut InboundState,
        datagram: &Datagram<'_>,
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        let mut released = Vec::new();
        lock(injector).pass(datagram.into(), clock::now(), &mut |p| released.push(p));
        self.deliver_released(state, &released, f);
    }

    /// Calls `f` with each datagram that the fault injector has released and whose ICRC is correct.
    fn deliver_released(
        &self,
        state: &mut InboundState,
        released: &[OwnedDatagram],
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        for datagram in released {
            let mut datagram = datagram.datagram();
            if self.verify(state, &mut datagram) {
                f(&datagram);
            }
        }
    }

    /// Verifies the ICRC of a datagram, sets its identification, counts and captures it. Returns
    /// whether the ICRC is correct.
    #[inline(always)]
    fn verify(&self, state: &mut InboundState, datagram: &mut Datagram<'_>) -> bool {
        let (src, dst) = (&datagram.src, datagram.dst.ip());
        let verdict = (state.senders).verify(src, dst, datagram.index, datagram.bytes);
        datagram.ip_id = verdict.unwrap_or(None);
        if self.capture.is_active() {
            self.capture(datagram, verdict.as_ref().err());
        }
        match verdict {
            Ok(_) => {
                state.tally.datagrams += 1;
                state.tally.bytes += datagram.bytes.len() as u64;
                true
            }
            Err(error) => {
                self.drop_invalid(datagram, &error);
                false
            }
        }
    }

    /// Captures a datagram, with a comment if it is dropped.
    #[cold]
    fn capture(&self, datagram: &Datagram<'_>, error: Option<&IcrcError>) {
        let comment = error.map(|error| match error {
            IcrcError::Length(_) => "wrong length",
            IcrcError::Mismatch { .. } => "wrong ICRC",
        });
        self.capture.record(&Record {
            direction: Direction::In,
            src: datagram.src,
            dst: datagram.dst.with_port(ROCE_PORT),
            tos: datagram.tos,
            ttl: datagram.ttl,
            ip_id: datagram.ip_id,
            comment,
            bytes: datagram.bytes,
        });
    }

    /// Counts a datagram that is dropped for its ICRC or length.
    #[cold]
    fn drop_invalid(&self, datagram: &Datagram<'_>, error: &IcrcError) {
        match error {
            IcrcError::Length(_) => self.counters.malformed.add(1),
            IcrcError::Mismatch { .. } => self.counters.icrc_errors.add(1),
        }
        self.counters.count_invalid(datagram.dst);
        tracing::debug!(src = %datagram.src, %error, "dropped a datagram");
    }

    /// Counts the datagrams delivered since the last call, and writes the capture. To be called
    /// after each batch.
    #[inline]
    pub(super) fn finish(&self, state: &mut InboundState) {
        let ReceiveCounts { datagrams, bytes } = std::mem::take(&mut state.tally);
        if datagrams > 0 {
            self.counters.datagrams_in.add(datagrams);
            self.counters.bytes_in.add(bytes);
        }
        self.capture.flush();
    }

    /// The time of the next call of [`Inbound::release`].
    pub(super) fn next_deadline(&self) -> Time {
        let injector = self.faults.as_ref();
        injector.map_or(Time::NEVER, |injector| lock(injector).next_deadline())
    }

    /// Delivers the datagrams whose injected delay has ended.
    pub(super) fn release(
        &self,
        now: Time,
        batch: &mut RecvBatch,
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        let Some(injector) = &self.faults else {
            return;
        };
        let mut released = Vec::new();
        lock(injector).release(now, &mut |p| released.push(p));
        self.deliver_released(batch.parts().1, &released, f);
        self.finish(batch.parts().1);
    }
}

/// The messages of one receive call. Dropping it counts the delivered datagrams, and writes the
/// capture.
pub(super) struct Received<'a> {
    inbound: &'a Inbound,
    dst: LocalAddress,
    messages: Messages<'a>,
    state: &'a mut InboundState,
}

impl<'a> Received<'a> {
    /// Returns the next message. Truncated messages are counted and skipped.
    #[inline(always)]
    pub(super) fn next_arrival(&mut self) -> Option<Arrival<'a>> {
        loop {
            let (message, bytes) = self.messages.next()?;
            if let Some(src) = message.src.filter(|_| !message.truncated) {
                return Some(Arrival {
                    src,
                    dst: self.dst,
                    message,
                    bytes,
                });
            }
            self.inbound.counters.malformed.add(1);
        }
    }

    /// See [`Inbound::deliver`].
    #[inline]
    pub(super) fn deliver(&mut self, datagram: &mut Datagram<'_>, f: impl FnMut(&Datagram<'_>)) {
        self.inbound.deliver(self.state, datagram, f);
    }
}

impl Drop for Received<'_> {
    #[inline]
    fn drop(&mut self) {
        self.inbound.finish(self.state);
    }
}
