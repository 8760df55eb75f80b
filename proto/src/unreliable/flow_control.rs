//! Flow control for unreliable connections between same-host peers; see [`crate::uc`].

use super::Core;
use crate::host::{Host, Transmit};
use crate::psn::Psn;
use crate::qp::PathMigState;
use crate::time::Time;
use crate::wire::{Bth, Header, Opcode};
use std::time::Duration;

/// The most probes without an echo while further data is sent.
const MAX_OUTSTANDING_PROBES: i32 = 2;

/// How long the requester waits for an echo. The peer process may be descheduled.
const ECHO_TIMEOUT: Duration = Duration::from_millis(100);

/// After this many consecutive timeouts, the peer is assumed not to support probes.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 10;

/// The flow-control state of one side of a connection.
#[derive(Debug, Default)]
pub struct FlowControl {
    /// Bytes between two probes; 0 disables probes.
    interval: u32,
    /// Bytes sent since the last probe.
    sent_since_probe: u64,
    /// The number of the next probe.
    next_probe: Psn,
    /// The number of the first probe without an echo.
    first_outstanding: Psn,
    /// While blocked: the time at which to stop waiting for the echo of the first outstanding
    /// probe.
    blocked_until: Option<Time>,
    /// Consecutive probes without an echo in time.
    consecutive_timeouts: u32,
    /// The peer's last probe without an echo from here; its echo covers all earlier ones.
    pending_echo: Option<Psn>,
}

impl FlowControl {
    pub(crate) fn set_interval(&mut self, bytes: u32) {
        self.interval = bytes;
    }

    /// Handles a probe from the peer: an echo becomes due.
    pub(crate) fn probe_received(&mut self, number: Psn) {
        self.pending_echo = Some(number);
    }

    /// Handles an echo. It covers all probes up to `number`; an echo of no outstanding probe is
    /// ignored.
    pub(crate) fn echo_received(&mut self, number: Psn) {
        let ahead = number.diff(self.first_outstanding);
        if ahead >= self.outstanding() {
            return;
        }
        // A late echo, too, shows that the peer supports probes.
        self.consecutive_timeouts = 0;
        if ahead >= 0 {
            self.first_outstanding = number.next();
            self.blocked_until = None;
        }
    }

    /// The time at which to stop waiting for an echo.
    pub(crate) fn deadline(&self) -> Time {
        self.blocked_until.unwrap_or(Time::NEVER)
    }

    /// Stops waiting for one echo if its deadline has passed. Returns whether it has.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        let expired = self.deadline() <= now;
        if expired {
            self.first_outstanding = self.first_outstanding.next();
            self.blocked_until = None;
            self.consecutive_timeouts += 1;
        }
        expired
    }

    /// Sends due echoes and probes, and between them packets of `core` as far as probes allow.
    ///
    /// Returns true when the sink was full and more remains.
    pub(crate) fn poll_transmit<H: Host, T: Transmit>(
        &mut self,
        core: &mut Core,
        now: Time,
        host: &mut H,
        out: &mut T,
    ) -> bool {
        // In the error state nothing is sent (10.3.1.7).
        if let Some(number) = self
            .pending_echo
            .filter(|_| core.base.attr.state.handles_packets())
        {
            if !put(core, Opcode::FlowProbeEcho, number, out) {
                return true;
            }
            self.pending_echo = None;
        }
        loop {
            if self.is_probe_due() {
                if !core.has_sends() {
                    return false;
                }
                if self.outstanding() >= MAX_OUTSTANDING_PROBES {
                    self.blocked_until.get_or_insert(now + ECHO_TIMEOUT);
                    return false;
                }
                if !put(core, Opcode::FlowProbe, self.next_probe, out) {
                    return true;
                }
                self.next_probe = self.next_probe.next();
                self.sent_since_probe = 0;
            }
            let mut sink = LimitedSink {
                remaining: self.remaining(),
                out,
                sent: 0,
                staged: 0,
            };
            let more = core.poll_transmit(now, host, &mut sink);
            self.sent_since_probe += sink.sent;
            if !more || !self.is_probe_due() {
                return more;
            }
        }
    }

    /// Whether the next packet must be a probe.
    fn is_probe_due(&self) -> bool {
        self.remaining() == 0
    }

    /// The bytes that may be sent before the next probe.
    fn remaining(&self) -> u64 {
        match self.interval {
            0 => u64::MAX,
            _ if self.consecutive_timeouts >= MAX_CONSECUTIVE_TIMEOUTS => u64::MAX,
            interval => u64::from(interval).saturating_sub(self.sent_since_probe),
        }
    }

    fn outstanding(&self) -> i32 {
        self.next_probe.diff(self.first_outstanding)
    }
}

/// Stages and commits a probe or an echo. Returns false when the sink is full.
fn put<T: Transmit>(core: &Core, opcode: Opcode, number: Psn, out: &mut T) -> bool {
    let Some(packet) = out.stage(Bth::LEN) else {
        return false;
    };
    let migrated = core.base.attr.path_mig_state == PathMigState::Migrated;
    Header::new(opcode, core.base.attr.dest_qpn, number)
        .with_mig_req(migrated)
        .emit(packet);
    out.commit();
    true
}

/// A sink that reports itself full when a probe is due. The last packet may exceed the limit.
struct LimitedSink<'a, T> {
    out: &'a mut T,
    remaining: u64,
    staged: usize,
    sent: u64,
}

impl<T: Transmit> Transmit for LimitedSink<'_, T> {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.sent >= self.remaining {
            return None;
        }
        self.staged = len;
        self.out.stage(len)
    }

    fn commit(&mut self) {
        self.sent += self.staged as u64;
        self.out.commit();
    }

    fn cancel(&mut self) {
        self.out.cancel();
    }

    fn now(&self) -> Time {
        self.out.now()
    }
}
