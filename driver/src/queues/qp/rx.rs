//! Reception of packets by a queue pair.

use super::pair::{Inner, Qp};
use crate::lock_order::Ordered;
use crate::memory::regions::RegionTable;
use std::sync::{Arc, MutexGuard};
use urxe_proto::ids::Gid;
use urxe_proto::time::Time;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Packet;

/// The ECN bits of a packet that has met congestion: CE (RFC 3168).
const CE: u8 = 0b11;

impl Qp {
    /// Returns whether the queue pair must not receive this multicast datagram: it is its own, and
    /// it was created with `block_own_multicast`. Other hosts have queue pairs of the same number,
    /// so the source address must be this host's.
    pub(crate) fn blocks(&self, network: &NetworkHeader, packet: &Packet<'_>) -> bool {
        let is_from_here = |qpn| {
            qpn == self.qpn
                && self
                    .device
                    .sources()
                    .any(|address| Gid::from_ip(address.ip()) == network.source)
        };
        self.block_own_multicast && packet.header.deth.is_some_and(|d| is_from_here(d.src_qp))
    }
}

/// A locked queue pair that receives packets. The lock is held from the first to the last of
/// consecutive packets for it: the atomic write of an unlock after each would have the processor
/// wait until the packet's data is stored.
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

    pub(crate) fn is_for(&self, qp: &Arc<Qp>) -> bool {
        Arc::ptr_eq(self.qp, qp)
    }

    /// The number of WRITEs that were executed without a completion for the application.
    pub(crate) fn writes(&self) -> u64 {
        self.inner.transport.counters().writes_done
    }

    /// Handles a packet from this UDP source port. Returns true when the caller must add the queue
    /// pair to its list of those that may have to send.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        network: &NetworkHeader,
        source_port: u16,
        packet: &Packet<'_>,
        regions: &RegionTable,
    ) -> bool {
        let inner = &mut *self.inner;
        let taken = inner.transport.counters().received_packets;
        inner.transport.handle_packet(
            now,
            network,
            source_port,
            packet,
            &mut self.qp.host(regions),
        );
        let taken = inner.transport.counters().received_packets > taken;
        if taken && network.traffic_class & CE == CE {
            inner.transport.handle_ecn_mark(now, packet);
        }
        if taken && let Some(share) = &mut inner.share {
            share.set_silent(false);
        }
        inner.traffic.received(packet, taken);
        !std::mem::replace(&mut inner.touched, true)
    }
}
