//! The state of a queue pair, as other processes read it.

use super::Qp;
use super::transport::Transport;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;
use urxe_proto::qp::QpType;

/// A queue pair of a process. Counters start at zero with the queue pair.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(default)]
pub struct QueuePairReport {
    /// The queue pair number.
    pub qpn: u32,
    /// The name of the device.
    pub device: String,
    /// The transport service.
    pub service: String,
    /// The state of the queue pair.
    pub state: String,
    /// The peer's address and queue pair number, from the state RTR on; `None` for datagrams.
    pub peer: Option<(IpAddr, u32)>,
    /// Packets sent, retransmissions included.
    pub sent_packets: u64,
    /// Bytes sent, from the BTH to the ICRC.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Bytes received, from the BTH to the ICRC.
    pub received_bytes: u64,
    /// Request packets retransmitted.
    pub retransmitted: u64,
    /// Timeouts that led to a retransmission.
    pub timeouts: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// The congestion window in packets; `None` for services without one.
    pub window: Option<u32>,
    /// The upper bound of the bytes in flight.
    pub in_flight: u32,
    /// The smoothed round-trip time in nanoseconds, once it is known.
    pub round_trip: Option<u64>,
    /// The retransmission timeout in nanoseconds, before a back-off; `None` for services without
    /// one.
    pub retransmission_timeout: Option<u64>,
}

impl Qp {
    /// Returns the state for other processes.
    pub(crate) fn report(&self) -> QueuePairReport {
        let inner = self.lock();
        let attributes = inner.transport.attributes();
        let counters = inner.transport.counters();
        let is_connected = inner.route.is_some();
        let connection = match &inner.transport {
            Transport::Rc(qp) if is_connected => Some(qp),
            _ => None,
        };
        let traffic = inner.traffic.amounts();
        QueuePairReport {
            qpn: self.qpn().get(),
            device: self.device().name().to_owned(),
            service: service_name(self.service()).to_owned(),
            state: format!("{:?}", attributes.state).to_uppercase(),
            peer: is_connected.then(|| (attributes.av.dgid.to_ip(), attributes.dest_qpn.get())),
            sent_packets: traffic.sent_packets,
            sent_bytes: traffic.sent_bytes,
            received_packets: traffic.received_packets,
            received_bytes: traffic.received_bytes,
            retransmitted: counters.retransmitted,
            timeouts: counters.timeouts,
            rnr_naks: counters.rnr_naks_received,
            window: connection.map(|qp| qp.congestion_window()),
            in_flight: inner.transport.status().bytes_in_flight,
            round_trip: connection.and_then(|qp| qp.smoothed_round_trip().map(nanos)),
            retransmission_timeout: connection.map(|qp| nanos(qp.retransmission_timeout())),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn service_name(service: QpType) -> &'static str {
    match service {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcIni => "XRC initiator",
        QpType::XrcTgt => "XRC target",
        QpType::RawPacket => "raw packet",
    }
}
