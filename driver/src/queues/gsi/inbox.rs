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
pub(super) struct Arrived {
    datagram: OwnedDatagram,
    pub(super) passed_on: bool,
    src_qp: Qpn,
    mad: Range<usize>,
}

impl Arrived {
    /// Returns the payload, which may not be a valid MAD.
    pub(super) fn mad(&self) -> &[u8] {
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

    /// Passes the packet to the process in another slot; returns false if there is none.
    pub(super) fn hand_on(&self, shared: &Shared, slot: u8) -> bool {
        shared.forward(slot, &self.datagram.datagram())
    }
}

/// The packets, oldest first.
#[derive(Debug, Default)]
pub(super) struct Inbox(DeferredQueue<Arrived>);

impl Inbox {
    /// Adds a packet, if queue pair 1 accepts it (10.2.5) and there is room.
    pub(super) fn put(&self, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let header = &packet.header;
        let enters = header.bth.opcode == Opcode::UdSendOnly
            && PKey::DEFAULT.matches(header.bth.pkey)
            && header.deth.is_some_and(|deth| deth.qkey == GSI_QKEY);
        let Some(deth) = header.deth.filter(|_| enters) else {
            tracing::debug!(src = %datagram.src, "dropped a packet that may not enter queue pair 1");
            return;
        };
        let start = header.len();
        let is_put = self.0.put(|| Arrived {
            datagram: datagram.into(),
            passed_on: datagram.forwarded,
            src_qp: deth.src_qp,
            mad: start..start + packet.payload.len(),
        });
        if !is_put {
            tracing::debug!(src = %datagram.src, "dropped a MAD: too many wait");
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns all packets.
    pub(super) fn take(&self) -> Vec<Arrived> {
        self.0.take()
    }
}
