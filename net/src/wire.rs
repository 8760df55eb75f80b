//! The layer between an endpoint and its sockets: counters, capture, and faults if requested.

use crate::counters::NetCounters;
use crate::faults::{self, FaultSpec, Injector};
use crate::path::Path;
use crate::pcap::{Capture, Direction, Record};
use crate::receive::{Datagram, Kept, Senders, Tally};
use crate::socket::LocalAddress;
use crate::{ROCE_PORT, clock};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use urxe_proto::icrc::IcrcError;
use urxe_proto::time::Time;

/// The counters and the capture of the process.
pub(super) struct Tap {
    pub(super) counters: Arc<NetCounters>,
    /// The number of datagrams per local address that were dropped as invalid.
    pub(super) bad: Mutex<HashMap<LocalAddress, u64>>,
    pub(super) capture: Option<Capture>,
}

impl Tap {
    pub(super) fn captures(&self) -> bool {
        self.capture.is_some()
    }

    /// Captures a packet, if a capture is configured.
    pub(super) fn capture(&self, record: &Record<'_>) {
        if let Some(capture) = &self.capture
            && let Err(error) = capture.record(record)
        {
            self.capture_failed(&error);
        }
    }

    pub(super) fn flush_capture(&self) {
        if let Some(capture) = &self.capture
            && let Err(error) = capture.flush()
        {
            self.capture_failed(&error);
        }
    }

    fn capture_failed(&self, error: &io::Error) {
        if self.counters.capture_errors.get() == 0 {
            tracing::warn!(%error, "the capture has gaps from here on");
        }
        self.counters.capture_errors.add(1);
    }

    pub(super) fn count_send_error(&self, packets: u64, error: &io::Error) {
        let counters = &self.counters;
        let counter = match error.raw_os_error() {
            Some(libc::EAGAIN) => &counters.send_blocked,
            Some(libc::EMSGSIZE) => &counters.send_too_large,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
                &counters.send_unreachable
            }
            Some(libc::EPERM | libc::EACCES) => &counters.send_refused,
            Some(libc::ENOBUFS | libc::ENOMEM) => &counters.send_no_buffers,
            _ => &counters.send_other_errors,
        };
        counter.add(packets);
        tracing::debug!(%error, packets, "packets could not be sent");
    }

    /// Counts a datagram to `address` that was dropped as invalid.
    #[cold]
    pub(super) fn count_bad(&self, address: LocalAddress) {
        *self.bad().entry(address).or_default() += 1;
    }

    pub(super) fn bad(&self) -> MutexGuard<'_, HashMap<LocalAddress, u64>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the tally to the counters, and writes the capture. Counting each datagram by itself
    /// would make the processor wait for the stores of the one before.
    pub(super) fn conclude(&self, senders: &mut Senders) {
        let Tally { datagrams, bytes } = std::mem::take(&mut senders.tally);
        self.counters.datagrams_in.add(datagrams);
        self.counters.bytes_in.add(bytes);
        self.flush_capture();
    }

    /// Verifies the ICRC of a datagram for this process, captures it, and calls `f` if the ICRC is
    /// correct.
    pub(super) fn deliver(
        &self,
        senders: &mut Senders,
        datagram: &mut Datagram<'_>,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        let verdict = senders.verify(datagram);
        datagram.ip_id = verdict.unwrap_or(None);
        if self.captures() {
            self.capture(&Record {
                direction: Direction::In,
                src: datagram.src,
                dst: datagram.dst.with_port(ROCE_PORT),
                tos: datagram.tos,
                ttl: datagram.ttl,
                ip_id: datagram.ip_id,
                comment: verdict.is_err().then_some("wrong ICRC"),
                bytes: datagram.bytes,
            });
        }
        match verdict {
            Ok(_) => {
                senders.tally.datagrams += 1;
                senders.tally.bytes += datagram.bytes.len() as u64;
                f(datagram);
            }
            Err(error) => {
                match error {
                    IcrcError::Length(_) => self.counters.malformed.add(1),
                    IcrcError::Mismatch { .. } => self.counters.icrc_errors.add(1),
                }
                self.count_bad(datagram.dst);
                tracing::debug!(src = %datagram.src, %error, "dropped a datagram");
            }
        }
    }
}

/// A packet to send through the fault injector.
#[derive(Clone)]
struct Outgoing {
    path: Path,
    bytes: Vec<u8>,
}

impl faults::Packet for Outgoing {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Outgoing {
    /// Sends the packet on its own, so its identification is 0.
    fn send(self) {
        let path = self.path.inner();
        path.capture(0, &self.bytes);
        if let Err(error) = path.send_one(&self.bytes) {
            path.wire.tap.count_send_error(1, &error);
        }
    }
}

impl faults::Packet for Kept {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// The layer that the packets of one endpoint pass through.
pub(super) struct Wire {
    pub(super) tap: Arc<Tap>,
    tx_faults: Option<Mutex<Injector<Outgoing>>>,
    rx_faults: Option<Mutex<Injector<Kept>>>,
}

impl Wire {
    pub(super) fn new(tap: Arc<Tap>, faults: Option<FaultSpec>) -> Self {
        let injector = |spec| Injector::new(spec, tap.counters.clone());
        Wire {
            tx_faults: faults
                .filter(FaultSpec::sends)
                .map(|spec| Mutex::new(injector(spec))),
            rx_faults: faults
                .filter(FaultSpec::receives)
                .map(|spec| Mutex::new(Injector::new(spec, tap.counters.clone()))),
            tap,
        }
    }

    pub(super) fn sends_through_faults(&self) -> bool {
        self.tx_faults.is_some()
    }

    /// Passes a copy of a sealed packet to the fault injector.
    pub(super) fn send_through_faults(&self, path: &Path, bytes: &[u8]) {
        let Some(injector) = &self.tx_faults else {
            return;
        };
        let packet = Outgoing {
            path: path.clone(),
            bytes: bytes.to_vec(),
        };
        lock(injector).pass(packet, clock::now(), &mut Outgoing::send);
    }

    /// Delivers a datagram for this process, after fault injection if that is configured.
    pub(super) fn deliver(
        &self,
        senders: &mut Senders,
        datagram: &mut Datagram<'_>,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        let Some(injector) = &self.rx_faults else {
            return self.tap.deliver(senders, datagram, f);
        };
        let packet = Kept::from(&*datagram);
        let mut arrivals = Vec::new();
        lock(injector).pass(packet, clock::now(), &mut |p| arrivals.push(p));
        self.deliver_all(senders, &arrivals, f);
    }

    /// Delivers datagrams that the fault injector has released.
    pub(super) fn deliver_all(
        &self,
        senders: &mut Senders,
        arrivals: &[Kept],
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        for incoming in arrivals {
            self.tap.deliver(senders, &mut incoming.datagram(), f);
        }
    }

    /// The time of the next call of [`Wire::release`].
    pub(super) fn next_deadline(&self) -> Time {
        if self.tx_faults.is_none() && self.rx_faults.is_none() {
            return Time::NEVER;
        }
        let tx = self.tx_faults.as_ref().map(|i| lock(i).next_deadline());
        let rx = self.rx_faults.as_ref().map(|i| lock(i).next_deadline());
        tx.into_iter().chain(rx).min().unwrap_or(Time::NEVER)
    }

    /// Sends the packets whose delay has ended, and appends the received ones to `out`.
    pub(super) fn release(&self, now: Time, out: &mut Vec<Kept>) {
        if let Some(injector) = &self.tx_faults {
            lock(injector).release(now, &mut Outgoing::send);
            self.tap.flush_capture();
        }
        if let Some(injector) = &self.rx_faults {
            lock(injector).release(now, &mut |p| out.push(p));
        }
    }

    /// Drops the delayed packets to send. Their paths hold references to this object.
    pub(super) fn clear(&self) {
        if let Some(injector) = &self.tx_faults {
            lock(injector).clear();
        }
    }
}

fn lock<P>(injector: &Mutex<Injector<P>>) -> MutexGuard<'_, Injector<P>> {
    injector.lock().unwrap_or_else(PoisonError::into_inner)
}
