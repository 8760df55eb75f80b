//! Reception of packets by a queue pair.

use super::effects::Effects;
use super::pair::{Inner, Qp};
use crate::lock_order::Ordered;
use crate::memory::regions::RegionTable;
use crate::sync::MutexGuard;
use std::sync::Arc;
use urxe_net::{Datagram, SendBatch};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;

/// The ECN bits of a packet that has met congestion: CE (RFC 3168).
const CE: u8 = 0b11;

impl Qp {
    /// Returns whether the queue pair must not receive this multicast datagram: it is its own, and
    /// it was created with `block_own_multicast`. Other hosts have queue pairs of the same number,
    /// so the source address must be this host's.
    pub(crate) fn blocks(&self, datagram: &Datagram<'_>, packet: &Packet<'_>) -> bool {
        let source = datagram.src.ip();
        let is_from_here =
            |qpn| qpn == self.qpn && (self.device.sources()).any(|address| address.ip() == source);
        self.block_own_multicast && packet.header.deth.is_some_and(|d| is_from_here(d.src_qp))
    }
}

/// A locked queue pair that receives packets. The lock is held from the first to the last of
/// consecutive packets for it, and while it answers them: the atomic write of an unlock after each
/// would have the processor wait until the packet's data is stored.
pub(crate) struct Incoming<'a> {
    qp: &'a Arc<Qp>,
    inner: Ordered<MutexGuard<'a, Inner>>,
}

impl<'a> Incoming<'a> {
    pub(crate) fn of(qp: &'a Arc<Qp>) -> Self {
        Incoming {
            qp,
            inner: qp.lock(),
        }
    }

    pub(crate) fn qp(&self) -> &'a Arc<Qp> {
        self.qp
    }

    pub(crate) fn is_for(&self, qp: &Arc<Qp>) -> bool {
        Arc::ptr_eq(self.qp, qp)
    }

    /// Returns whether the queue pair is on its caller's list of those that may have to send.
    pub(crate) fn is_answer_pending(&self) -> bool {
        self.inner.answer_pending
    }

    /// Releases the queue pair before it has answered, and adds it to the list of those that may
    /// have to send.
    pub(crate) fn defer_answer(mut self, to_answer: &mut Vec<Qpn>) {
        if !std::mem::replace(&mut self.inner.answer_pending, true) {
            to_answer.push(self.qp.qpn);
        }
    }

    /// Handles a packet for the queue pair, or for a multicast group that it is attached to.
    /// Returns true when it was a WRITE that was executed without a completion for the application.
    #[inline(always)]
    pub(crate) fn handle<const MULTICAST: bool>(
        &mut self,
        now: Time,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        regions: &RegionTable,
    ) -> bool {
        let inner = &mut *self.inner;
        let counters = inner.transport.counters();
        let (taken, written) = (counters.received_packets, counters.writes_done);
        let long_missing = counters.long_packet_timeouts;
        let mut host = self.qp.host(regions);
        match MULTICAST {
            true => (inner.transport).handle_multicast(now, datagram, packet, &mut host),
            false => (inner.transport).handle_packet(now, datagram, packet, &mut host),
        }
        let counters = inner.transport.counters();
        let taken = counters.received_packets > taken;
        let wrote = counters.writes_done != written;
        if !taken {
            let violations = counters.key_violations();
            let before = std::mem::replace(&mut inner.counted_violations, violations);
            self.qp.counters.count_key_violations(before, violations);
        }
        if counters.long_packet_timeouts != long_missing {
            inner.path_timed_out(true);
        }
        if taken && datagram.tos & CE == CE {
            inner.transport.handle_ecn_mark(now, packet);
        }
        if taken && let Some(share) = &mut inner.share {
            share.set_silent(false);
        }
        inner.traffic.received(packet, taken);
        wrote
    }

    /// Transmits after packets were received. `empty_polls` is the number of empty polls with the
    /// queue pair's affinity, if a poll or a wait of the application received these packets and ACKs
    /// may be delayed; then the ACK may be delayed, to be sent with the next post. `batch` is for
    /// the packets that are sent. Usually there are no effects.
    #[inline(always)]
    pub(crate) fn answer(
        mut self,
        now: Time,
        empty_polls: Option<u64>,
        regions: &RegionTable,
        batch: &mut Option<Box<SendBatch>>,
    ) -> Option<Effects> {
        let inner = &mut *self.inner;
        inner.answer_pending = false;
        let delays = |polls| inner.transport.defer_ack() && inner.delayed_ack.delays(now, polls);
        if empty_polls.is_some_and(delays) {
            self.qp.publish(inner, regions);
            inner.effects.acks_delayed += 1;
            inner.effects.delayed_ack = !inner.delayed_ack.list();
        } else {
            self.qp.transmit_with(inner, now, regions, batch);
        }
        inner.take_any_effects()
    }
}
