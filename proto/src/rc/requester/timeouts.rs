//! Timeouts: what the requester sends again, and when it gives up (9.7.6.1.3).

use super::short_probe::{Purpose, ShortProbe};
use super::{Outcome, Requester};
use crate::host::Host;
use crate::mtu::Mtu;
use crate::queue::SendWqe;
use crate::rc::loss_recovery::Expired;
use crate::service::Context;

/// The payload in bytes from which a packet may exceed the MTU of a link: each carries IPv4 packets
/// of 576 bytes (RFC 1122, 3.3.3).
const LONG_PAYLOAD: usize = 512;

impl Requester {
    /// Runs the timers that have expired.
    pub(in crate::rc) fn expire<H: Host>(&mut self, cx: &mut Context<'_>, host: &mut H) -> Outcome {
        if self.awaits_pacing() && self.pacing.resumes_at(self.sent_end) <= cx.now {
            // The next transmission sends what pacing permits now.
            self.quantum.set_needed(false);
        }
        match self.recovery.expire(cx.now) {
            Expired::Nothing | Expired::RnrOver => {}
            Expired::RepairGap if self.has_gone_back() => {}
            Expired::RepairGap => match self.scoreboard.executed() {
                Some(executed) => self.repair_responses(cx, executed),
                None => self.repair_gap(cx),
            },
            Expired::Probe if self.probe_tail() => cx.counters.probes += 1,
            Expired::Probe | Expired::Retransmit => {
                cx.counters.timeouts += 1;
                self.note_long_packet_timeout(cx);
                self.window.timed_out(cx.now, self.una, self.sent_end);
                self.single_read.lost();
                self.go_back();
                if self.is_oldest_long(cx.attr.path_mtu) {
                    self.short_probe = ShortProbe::Due(Purpose::Reachability);
                }
            }
            // Only parts were requested again; the peer may accept a request for the whole rest.
            Expired::RetriesExceeded if self.awaits_partial() => {
                cx.counters.timeouts += 1;
                self.go_back();
            }
            Expired::RetriesExceeded => {
                self.note_long_packet_timeout(cx);
                return Outcome::RetriesExceeded;
            }
        }
        self.fail_unsendable(cx, host)
    }

    /// Counts the timeout of a long packet if the peer has answered a short one.
    fn note_long_packet_timeout(&self, cx: &mut Context<'_>) {
        if self.short_probe == ShortProbe::Answered && self.is_oldest_long(cx.attr.path_mtu) {
            cx.counters.long_packet_timeouts += 1;
        }
    }

    /// Counts a long packet that the peer has reported as missing until the retries were exhausted,
    /// if the packets behind it that the peer received may all have been short.
    pub(super) fn note_long_packet_missing(&self, cx: &mut Context<'_>) {
        let path_mtu = cx.attr.path_mtu;
        let mut sent = (self.queue.head()..self.begun).filter_map(|index| self.queue.get(index));
        // The request for a READ has no payload.
        let ends_short = |wqe: &SendWqe| {
            wqe.op.has_response()
                || (wqe.packets > 0 && wqe.payload_of(wqe.packets - 1, path_mtu) <= LONG_PAYLOAD)
        };
        let oldest = self.queue.get(self.queue.head());
        let is_request_long =
            oldest.is_some_and(|it| !it.op.has_response()) && self.is_oldest_long(path_mtu);
        if is_request_long && sent.any(ends_short) {
            cx.counters.long_packet_timeouts += 1;
        }
    }

    /// Whether the oldest packet or response that is not done may exceed the MTU of a link.
    pub(in crate::rc) fn is_oldest_long(&self, path_mtu: Mtu) -> bool {
        let oldest = self.queue.get(self.queue.head());
        oldest.is_some_and(|wqe| {
            let index = self.una.diff(wqe.first_psn).max(0) as u32;
            wqe.payload_of(index, path_mtu) > LONG_PAYLOAD
        })
    }

    /// Ends the connection: the peer does not answer, and there is no alternate path.
    pub(in crate::rc) fn give_up<H: Host>(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut H,
    ) -> Outcome {
        cx.counters.retries_exceeded += 1;
        self.fail(cx, self.exhausted_status(), host)
    }
}
