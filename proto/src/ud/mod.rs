//! Unreliable datagram (9.8.3): messages of one packet to and from any queue pair that shares a
//! queue key.
//!
//! The path belongs to the work request, by its address handle. Handles are the caller's: it asks
//! where the next datagram goes ([`UdQp::next_destination`]) and hands in a sink for that path.

mod network;
#[cfg(test)]
mod tests;

pub use network::NetworkHeader;

use crate::host::Host;
use crate::ids::{PKey, Qpn};
use crate::mtu::Mtu;
use crate::qp::{QpAttr, QpType};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::time::Time;
use crate::unreliable::{Core, Service, Told, UnreliableQp};
use crate::wire::{Packet, Transport};
use crate::work::{Destination, Extra, SendWr};

/// The bytes of a UDP header.
const UDP_LEN: usize = 8;

/// What a datagram queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct UdConfig {
    /// Its number; [`Qpn::GSI`] for the general service interface.
    pub qpn: Qpn,
    /// Its send queue.
    pub send: SendQueueSize,
    /// Whether every send makes a completion.
    pub signal_all: bool,
    /// The port's MTU, which no message is longer than.
    pub mtu: Mtu,
}

/// A datagram queue pair.
pub type UdQp = UnreliableQp<Ud>;

/// Unreliable datagram: no message leaves anything behind.
#[derive(Debug)]
pub struct Ud;

impl Service for Ud {
    /// Refuses what does not say where it goes ([`PostError::Destination`]). A message that is longer
    /// than the MTU is taken, and completes without being sent or an error (C10-93.1.1).
    fn prepare<'a>(wr: &SendWr<'a>) -> Result<SendWr<'a>, PostError> {
        if wr.dest.and_then(Destination::datagram).is_none() {
            return Err(PostError::Destination);
        }
        Ok(*wr)
    }
}

impl UnreliableQp<Ud> {
    /// A queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] for its send queue.
    pub fn new(config: UdConfig) -> Result<Self, NoMemory> {
        let initial = QpAttr {
            path_mtu: config.mtu,
            ..QpAttr::default()
        };
        Ok(UnreliableQp {
            core: Core::new(
                QpType::Ud,
                Transport::Ud,
                config.qpn,
                config.send,
                config.signal_all,
                initial,
            )?,
            service: Ud,
        })
    }

    /// Handles a packet for this queue pair, or for a multicast group that it is in, whose ICRC was
    /// right. Whatever is not for it is dropped in silence (9.6.1, 9.8.3.2).
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        network: &NetworkHeader,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.header.bth;
        let info = bth.opcode.info();
        let core = &mut self.core;
        if !core.attr.state.handles_packets() {
            core.counters.dropped_in_state += 1;
            return;
        }
        if !PKey::DEFAULT.matches(bth.pkey) {
            core.counters.bad_pkey += 1;
            return;
        }
        let payload = packet.payload;
        let well_formed = info.transport == Transport::Ud
            && info
                .payload
                .accepts(payload.len(), core.attr.path_mtu.bytes());
        let Some(deth) = packet.header.deth.filter(|_| well_formed) else {
            core.counters.malformed += 1;
            return;
        };
        if deth.qkey != core.attr.qkey {
            core.counters.bad_qkey += 1;
            return;
        }
        let udp_len = UDP_LEN + packet.len() + crate::icrc::LEN;
        let grh = network.bytes(udp_len as u16);
        let told = Told {
            src_qp: deth.src_qp,
            extra: packet.header.imm.map_or(Extra::None, Extra::Imm),
            grh: Some(network.ip_version()),
            solicited: bth.solicited,
        };
        core.receive_whole(now, &[&grh, payload], told, host);
    }

    /// The address handle of the datagram that [`UdQp::poll_transmit`] sends next; `None` when
    /// there is nothing to send.
    pub fn next_destination(&self) -> Option<u64> {
        self.core.next_destination().map(|dest| dest.handle)
    }
}
