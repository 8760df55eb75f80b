//! Packets that were received for queue pair 1 and are not processed yet.

use super::deferred::DeferredQueue;
use std::ops::Range;
use urxe_net::{Datagram, OwnedDatagram, Shared};
use urxe_proto::cm::Address;
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::ids::{Gid, PKey, Qpn};
use urxe_proto::wire::{Opcode, Packet};

/// A received packet with a MAD.
#[derive(Debug)]
pub(super) struct ReceivedMad {
    datagram: OwnedDatagram,
    /// Whether another process forwarded it: it is not forwarded again.
    pub(super) forwarded: bool,
    src_qp: Qpn,
    mad: Range<usize>,
}

impl ReceivedMad {
    /// Returns the payload, which may not be a valid MAD.
    pub(super) fn payload(&self) -> &[u8] {
        &self.datagram.bytes[self.mad.clone()]
    }

    /// Returns the address of the sender, and the local address to which it was sent.
    pub(super) fn address(&self) -> Address {
        let datagram = self.datagram.datagram();
        Address {
            local: Gid::from_ip(datagram.dst.ip()),
            remote: Gid::from_ip(datagram.src.ip()),
            remote_qpn: self.src_qp,
            traffic_class: datagram.tos,
        }
    }

    /// Forwards the packet to the process in another slot; returns false if there is none.
    pub(super) fn forward(&self, shared: &Shared, slot: u8) -> bool {
        shared.forward(slot, &self.datagram.datagram())
    }
}

/// The packets, oldest first.
#[derive(Debug, Default)]
pub(super) struct Inbox(DeferredQueue<ReceivedMad>);

impl Inbox {
    /// Adds a packet, if queue pair 1 accepts it (10.2.5) and the inbox is not full.
    pub(super) fn put(&self, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let header = &packet.header;
        let is_accepted = header.bth.opcode == Opcode::UdSendOnly
            && PKey::DEFAULT.matches(header.bth.pkey)
            && header.deth.is_some_and(|deth| deth.qkey == GSI_QKEY);
        let Some(deth) = header.deth.filter(|_| is_accepted) else {
            tracing::debug!(src = %datagram.src, "queue pair 1 does not accept a packet");
            return;
        };
        let start = header.len();
        let is_put = self.0.put(|| ReceivedMad {
            datagram: datagram.into(),
            forwarded: datagram.forwarded,
            src_qp: deth.src_qp,
            mad: start..start + packet.payload.len(),
        });
        if !is_put {
            tracing::debug!(src = %datagram.src, "dropped a MAD: the inbox is full");
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns all packets.
    pub(super) fn take(&self) -> Vec<ReceivedMad> {
        self.0.take()
    }
}
