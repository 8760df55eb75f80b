//! Unreliable datagram (9.8.3): single-packet messages between queue pairs that share a queue key.
//!
//! The path belongs to the work request, by its address handle. The caller resolves handles: it
//! queries the handle of the next datagram ([`UdQp::next_destination`]) and passes a sink for that
//! path.

mod network;
#[cfg(test)]
mod tests;

pub use network::NetworkHeader;

use crate::host::Host;
use crate::ids::{PKey, Qpn};
use crate::mtu::Mtu;
use crate::placement::MessageInfo;
use crate::qp::{QpAttr, QpType};
use crate::queue::{NoMemory, PostError, SendQueueSize};
use crate::time::Time;
use crate::unreliable::{Core, Service, UnreliableQp};
use crate::wire::{Packet, Transport};
use crate::work::{Destination, Extra, SendWr};

/// The length of a UDP header, in bytes.
const UDP_LEN: usize = 8;

/// The parameters of a datagram queue pair.
#[derive(Clone, Copy, Debug)]
pub struct UdConfig {
    /// The queue pair number; [`Qpn::GSI`] for the general service interface.
    pub qpn: Qpn,
    /// The limits of the send queue.
    pub send: SendQueueSize,
    /// Whether every work request generates a completion.
    pub signal_all: bool,
    /// The port's MTU: the limit of a message.
    pub mtu: Mtu,
}

/// A datagram queue pair.
pub type UdQp = UnreliableQp<Ud>;

/// The unreliable datagram service. It has no state between messages.
#[derive(Debug)]
pub struct Ud;

impl Service for Ud {
    /// Checks that the work request has a datagram destination ([`PostError::Destination`]).
    ///
    /// A message longer than the MTU is accepted, and completes successfully without being sent
    /// (C10-93.1.1).
    fn prepare<'a>(wr: &SendWr<'a>) -> Result<SendWr<'a>, PostError> {
        if wr.dest.and_then(Destination::datagram).is_none() {
            return Err(PostError::Destination);
        }
        Ok(*wr)
    }
}

impl UnreliableQp<Ud> {
    /// Returns a queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] when the send queue could not be allocated.
    pub fn new(config: UdConfig) -> Result<Self, NoMemory> {
        let initial = QpAttr {
            path_mtu: config.mtu,
            ..QpAttr::default()
        };
        Ok(UnreliableQp {
            core: Core::new(
                QpType::Ud,
                config.qpn,
                config.send,
                config.signal_all,
                initial,
            )?,
            service: Ud,
        })
    }

    /// Handles a packet for this queue pair, or for a multicast group it is attached to.
    ///
    /// The ICRC must be valid. Packets that fail a check are dropped silently and counted (9.6.1,
    /// 9.8.3.2).
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
        if !core.base.attr.state.handles_packets() {
            core.base.counters.dropped_in_state += 1;
            return;
        }
        if !PKey::DEFAULT.matches(bth.pkey) {
            core.base.counters.bad_pkey += 1;
            return;
        }
        let payload = packet.payload;
        let well_formed = info.transport == Transport::Ud
            && info
                .payload
                .accepts(payload.len(), core.base.attr.path_mtu.bytes());
        let Some(deth) = packet.header.deth.filter(|_| well_formed) else {
            core.base.counters.malformed += 1;
            return;
        };
        if deth.qkey != core.base.attr.qkey {
            core.base.counters.bad_qkey += 1;
            return;
        }
        let udp_len = UDP_LEN + packet.len() + crate::icrc::LEN;
        let grh = network.bytes(udp_len as u16);
        let message = MessageInfo {
            src_qp: deth.src_qp,
            extra: packet.header.imm.map_or(Extra::None, Extra::Imm),
            grh: Some(network.ip_version()),
            solicited: bth.solicited,
        };
        core.deliver_message(now, &[&grh, payload], message, host);
    }

    /// The address handle of the next datagram that [`UdQp::poll_transmit`] will send.
    ///
    /// `None` when there is nothing to send.
    pub fn next_destination(&self) -> Option<u64> {
        self.core.next_destination().map(|dest| dest.handle)
    }
}
