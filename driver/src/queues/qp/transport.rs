//! The transport's state machine of a queue pair, for each service.

use super::init::{QpCap, QpInit};
use super::resources::QpResources;
use std::sync::Arc;
use std::time::Duration;
use urxe_net::Datagram;
use urxe_proto::host::{Host, Transmit};
use urxe_proto::ids::{Gid, Qpn, Source};
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::{AttrMask, Counters, QpAttr, QpState, QpType, TransitionError};
use urxe_proto::queue::{NoMemory, PostError};
use urxe_proto::raw::{RawConfig, RawQp};
use urxe_proto::rc::congestion::WindowLimits;
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::uc::{UcConfig, UcQp};
use urxe_proto::ud::{NetworkHeader, UdConfig, UdQp};
use urxe_proto::wire::Packet;
use urxe_proto::work::SendWr;

/// The limits of the bytes that a connection has in flight. The base window fits a receive buffer
/// of the default `rmem_max`, 212,992 bytes, which the kernel doubles. The maximum fills 10 Gbit/s
/// over 200 ms.
const WINDOW: WindowLimits = WindowLimits {
    base_bytes: 256 << 10,
    max_bytes: 256 << 20,
};

/// Most bytes in the out-of-order queue of a connection: half of what a process permits to all, so
/// that one connection does not exhaust it.
const OUT_OF_ORDER_BYTES: u32 = 16 << 20;

/// The state machine of each service (9.7, 9.8).
#[expect(
    clippy::large_enum_variant,
    reason = "most are the largest; what the others waste is less than their queues"
)]
#[derive(Debug)]
// Without this attribute, the variant is encoded in a field of one of them, and each dispatch takes
// six instructions instead of two.
#[repr(u8)]
pub(crate) enum Transport {
    Rc(RcQp),
    Uc(UcQp),
    Ud(UdQp),
    Raw(RawQp),
}

/// The state of a queue pair that others use without calling its state machine.
pub(crate) struct Status {
    pub(crate) state: QpState,
    /// See [`Transport::deadline`].
    pub(crate) deadline: Time,
    /// See [`RcQp::bytes_in_flight`].
    pub(crate) bytes_in_flight: u32,
}

/// The destination of a queue pair's next packet.
pub(crate) enum Next {
    /// The connected peer, if there is a packet to send.
    Peer,
    /// The address handle with this number.
    Handle(u64),
    /// None: the send queue is empty.
    Nothing,
    /// None yet: the send queue holds datagrams that may not be sent now.
    Waits,
}

/// Dispatches to the state machine of the service. Their methods have the same names and
/// signatures.
macro_rules! each {
    ($transport:expr, $qp:ident => $ask:expr) => {
        match $transport {
            Transport::Rc($qp) => $ask,
            Transport::Uc($qp) => $ask,
            Transport::Ud($qp) => $ask,
            Transport::Raw($qp) => $ask,
        }
    };
}

impl Transport {
    /// Creates the state machine for `init.service`, in RESET. `mtu` is the port's MTU and
    /// `max_frame` its largest frame, both in bytes.
    pub(crate) fn new(
        qpn: Qpn,
        init: &QpInit,
        cap: QpCap,
        mtu: Mtu,
        max_frame: usize,
        resources: &QpResources,
    ) -> Result<Self, NoMemory> {
        let send = cap.send_queue_size();
        let signal_all = init.signal_all;
        Ok(match init.service {
            service @ (QpType::Rc | QpType::XrcIni | QpType::XrcTgt) => {
                let mut qp = RcQp::new(RcConfig {
                    service,
                    qpn,
                    send,
                    signal_all,
                    window: WINDOW,
                    out_of_order_bytes: OUT_OF_ORDER_BYTES,
                    congestion: resources.congestion,
                })?;
                qp.share_out_of_order_budget(Arc::clone(&resources.out_of_order));
                Self::Rc(qp)
            }
            QpType::Uc => Self::Uc(UcQp::new(UcConfig {
                qpn,
                send,
                signal_all,
            })?),
            QpType::Ud => Self::Ud(UdQp::new(UdConfig {
                qpn,
                send,
                signal_all,
                mtu,
            })?),
            QpType::RawPacket => Self::Raw(RawQp::new(RawConfig {
                qpn,
                send,
                signal_all,
                max_frame,
            })?),
        })
    }

    pub(crate) fn state(&self) -> QpState {
        each!(self, qp => qp.state())
    }

    pub(crate) fn attributes(&self) -> QpAttr {
        each!(self, qp => qp.attributes())
    }

    pub(crate) fn counters(&self) -> &Counters {
        each!(self, qp => qp.counters())
    }

    pub(crate) fn send_queue_room(&self) -> u32 {
        each!(self, qp => qp.send_queue_room())
    }

    pub(crate) fn modify(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut impl Host,
    ) -> Result<(), TransitionError> {
        each!(self, qp => qp.modify(attr, mask, now, host))
    }

    /// See [`RcQp::seed_timeout`]; the other services retransmit nothing.
    pub(crate) fn seed_timeout(&mut self, timeout: Duration) {
        if let Self::Rc(qp) = self {
            qp.seed_timeout(timeout);
        }
    }

    pub(crate) fn post_send(
        &mut self,
        wr: &SendWr<'_>,
        now: Time,
        host: &mut impl Host,
    ) -> Result<(), PostError> {
        each!(self, qp => qp.post_send(wr, now, host))
    }

    pub(crate) fn receive_posted(&mut self, host: &mut impl Host) {
        each!(self, qp => qp.receive_posted(host));
    }

    pub(crate) fn handle_packet(
        &mut self,
        now: Time,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) {
        let source = Gid::from_ip(datagram.src.ip());
        match self {
            Self::Rc(qp) => {
                let port = datagram.src.port();
                qp.handle_packet(now, Source { gid: source, port }, packet, host);
            }
            Self::Uc(qp) => qp.handle_packet(now, source, packet, host),
            Self::Ud(qp) => qp.handle_packet(now, &network_header(datagram), packet, host),
            // Raw packet queue pairs receive frames from a packet socket, not packets by number.
            Self::Raw(_) => {}
        }
    }

    /// Handles a packet for a multicast group that the queue pair is attached to: only those of the
    /// datagram service are.
    pub(crate) fn handle_multicast(
        &mut self,
        now: Time,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) {
        if let Self::Ud(qp) = self {
            qp.handle_packet(now, &network_header(datagram), packet, host);
        }
    }

    /// See [`RcQp::awaits_long_packet`]; the other services await no answer.
    pub(crate) fn awaits_long_packet(&self) -> bool {
        matches!(self, Self::Rc(qp) if qp.awaits_long_packet())
    }

    /// See [`RcQp::handle_ecn_mark`]; the other services send no CNP.
    pub(crate) fn handle_ecn_mark(&mut self, now: Time, packet: &Packet<'_>) {
        if let Self::Rc(qp) = self {
            qp.handle_ecn_mark(now, packet);
        }
    }

    /// See [`UcQp::set_probe_interval`]; the other services send no flow-control probes.
    pub(crate) fn set_probe_interval(&mut self, bytes: u32) {
        if let Self::Uc(qp) = self {
            qp.set_probe_interval(bytes);
        }
    }

    /// See [`RcQp::require_send_quanta`]; the other services have no send quanta.
    pub(crate) fn require_send_quanta(&mut self, required: bool) {
        if let Self::Rc(qp) = self {
            qp.require_send_quanta(required);
        }
    }

    /// See [`RcQp::renew_send_quantum`].
    pub(crate) fn renew_send_quantum(&mut self, bytes: u32) {
        if let Self::Rc(qp) = self {
            qp.renew_send_quantum(bytes);
        }
    }

    /// See [`RcQp::refuse_send_quantum`].
    pub(crate) fn refuse_send_quantum(&mut self) -> bool {
        match self {
            Self::Rc(qp) => qp.refuse_send_quantum(),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// See [`RcQp::has_spent_send_quantum`].
    pub(crate) fn has_spent_send_quantum(&self) -> bool {
        matches!(self, Self::Rc(qp) if qp.has_spent_send_quantum())
    }

    /// See [`RcQp::needs_send_quantum`].
    pub(crate) fn needs_send_quantum(&self) -> bool {
        matches!(self, Self::Rc(qp) if qp.needs_send_quantum())
    }

    /// Returns what a queue pair publishes after each call. One function, since each dispatch to the
    /// service has its cost.
    #[inline]
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Rc(qp) => Status {
                state: qp.state(),
                deadline: qp.deadline(),
                bytes_in_flight: qp.bytes_in_flight(),
            },
            // The other services get no acknowledgements.
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => Status {
                state: self.state(),
                deadline: self.deadline(),
                bytes_in_flight: 0,
            },
        }
    }

    /// The time at which `handle_timeout` must be called. Only connections have timers.
    pub(crate) fn deadline(&self) -> Time {
        match self {
            Self::Rc(qp) => qp.deadline(),
            Self::Uc(qp) => qp.deadline(),
            Self::Ud(_) | Self::Raw(_) => Time::NEVER,
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time, host: &mut impl Host) {
        match self {
            Self::Rc(qp) => qp.handle_timeout(now, host),
            Self::Uc(qp) => qp.handle_timeout(now),
            Self::Ud(_) | Self::Raw(_) => {}
        }
    }

    pub(crate) fn next_destination(&self) -> Next {
        let Self::Ud(qp) = self else {
            return Next::Peer;
        };
        match qp.next_destination() {
            Some(number) => Next::Handle(number),
            None if qp.send_queue_room() == qp.send_queue_size().max_wr => Next::Nothing,
            None => Next::Waits,
        }
    }

    /// See [`RcQp::is_idle`]; of the other services it is not known.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Rc(qp) if qp.is_idle())
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        host: &mut impl Host,
        out: &mut impl Transmit,
    ) -> bool {
        match self {
            Self::Rc(qp) => qp.poll_transmit(now, host, out),
            _ => self.poll_transmit_unreliable(now, host, out),
        }
    }

    /// [`Transport::poll_transmit`] of the other services. Not inlined: its registers and spills
    /// would be a part of the cost of an ACK.
    #[inline(never)]
    fn poll_transmit_unreliable(
        &mut self,
        now: Time,
        host: &mut impl Host,
        out: &mut impl Transmit,
    ) -> bool {
        each!(self, qp => qp.poll_transmit(now, host, out))
    }

    /// See [`RcQp::defer_ack`]; the other services acknowledge nothing.
    pub(crate) fn defer_ack(&mut self) -> bool {
        match self {
            Self::Rc(qp) => qp.defer_ack(),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// See [`RcQp::poll_responses`]; the other services send no responses.
    pub(crate) fn poll_responses(
        &mut self,
        now: Time,
        host: &mut impl Host,
        out: &mut impl Transmit,
    ) -> bool {
        match self {
            Self::Rc(qp) => qp.poll_responses(now, host, out),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// See [`RcQp::poll_keep_alive`]; peers of the other services send no responses.
    pub(crate) fn poll_keep_alive(&mut self, now: Time, out: &mut impl Transmit) -> bool {
        match self {
            Self::Rc(qp) => qp.poll_keep_alive(now, out),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    /// See [`RcQp::handle_peer_exit`].
    pub(crate) fn handle_peer_exit(&mut self, now: Time, host: &mut impl Host) {
        if let Self::Rc(qp) = self {
            qp.handle_peer_exit(now, host);
        }
    }

    /// See [`RcQp::schedule_final_acks`].
    pub(crate) fn schedule_final_acks(&mut self) {
        if let Self::Rc(qp) = self {
            qp.schedule_final_acks();
        }
    }

    /// See [`RcQp::take_migrated`]; only connections have alternate paths.
    pub(crate) fn take_migrated(&mut self) -> bool {
        match self {
            Self::Rc(qp) => qp.take_migrated(),
            Self::Uc(qp) => qp.take_migrated(),
            Self::Ud(_) | Self::Raw(_) => false,
        }
    }

    pub(crate) fn fail(&mut self, now: Time, host: &mut impl Host) {
        each!(self, qp => qp.fail(now, host));
    }
}

/// Returns the addresses and IP header fields of a datagram. The flow label is left 0.
fn network_header(datagram: &Datagram<'_>) -> NetworkHeader {
    NetworkHeader {
        source: Gid::from_ip(datagram.src.ip()),
        destination: Gid::from_ip(datagram.dst.ip()),
        traffic_class: datagram.tos,
        flow_label: 0,
        hop_limit: datagram.ttl,
    }
}
