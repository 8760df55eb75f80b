//! The address of a connection's end, and the attributes of a connection.
#![forbid(unsafe_code)]

use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;

/// The bytes do not encode an [`Endpoint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The path MTU is not a number from 1 to 5.
    #[error("{0} is not a path MTU: the numbers are 1 (256 bytes) to 5 (4096 bytes)")]
    PathMtu(u8),
    /// A queue pair number or a PSN is larger than 24 bits.
    #[error("{0:#x} is not a queue pair number or PSN: they have 24 bits")]
    Not24Bits(u32),
}

/// One end of a connection: the values that the peer needs to connect to it.
///
/// The program exchanges endpoints by a means of its own, such as a TCP connection. For a peer that
/// does not use urxe, build one with [`Endpoint::new`] from the values that the peer reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The address.
    pub gid: Gid,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The PSN of the first request packet.
    pub psn: Psn,
    /// The largest path MTU that this end can use; a connection uses the smaller of both ends'.
    pub path_mtu: Mtu,
    /// READs and atomics that this end can answer at a time, 0 to 128. (`max_dest_rd_atomic`.)
    pub responder_resources: u8,
}

impl Endpoint {
    /// The length of the result of [`Endpoint::to_bytes`].
    pub const BYTES: usize = 26;

    /// Returns the endpoint with these values, for a peer that does not use urxe.
    pub const fn new(
        gid: Gid,
        qpn: Qpn,
        psn: Psn,
        path_mtu: Mtu,
        responder_resources: u8,
    ) -> Endpoint {
        Endpoint {
            gid,
            qpn,
            psn,
            path_mtu,
            responder_resources,
        }
    }

    /// Encodes the endpoint for the peer.
    ///
    /// The fields are GID, queue pair number, PSN, path MTU number and responder resources, in
    /// network order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.qpn.get().to_be_bytes());
        bytes[20..24].copy_from_slice(&self.psn.get().to_be_bytes());
        bytes[24] = self.path_mtu as u8;
        bytes[25] = self.responder_resources;
        bytes
    }

    /// Decodes the result of [`Endpoint::to_bytes`].
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Endpoint, EndpointError> {
        let [
            gid @ ..,
            q0,
            q1,
            q2,
            q3,
            p0,
            p1,
            p2,
            p3,
            mtu,
            responder_resources,
        ] = *bytes;
        let qpn = bits24([q0, q1, q2, q3])?;
        let psn = bits24([p0, p1, p2, p3])?;
        Ok(Endpoint {
            gid: Gid(gid),
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            path_mtu: Mtu::from_number(mtu).ok_or(EndpointError::PathMtu(mtu))?,
            responder_resources,
        })
    }
}

fn bits24(bytes: [u8; 4]) -> Result<u32, EndpointError> {
    match u32::from_be_bytes(bytes) {
        number if number < Psn::SPACE => Ok(number),
        number => Err(EndpointError::Not24Bits(number)),
    }
}

/// Attributes of a connection that each end sets for itself.
///
/// The defaults tolerate long outages: a request is retried 7 times, and without limit while the
/// peer has no receive posted.
///
/// ```
/// let mut options = urxe::ConnectOptions::default();
/// options.retry_cnt = 3;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The ACK timeout: 4.096 us x 2^n for n from 1 to 31; 0 disables it.
    /// (`timeout`; default 14, 67 ms.)
    pub timeout: u8,
    /// Retransmissions without a response before the work request fails, 0 to 7. (Default 7.)
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 is unlimited. (Default 7.)
    pub rnr_retry: u8,
    /// The delay that this end asks for in its RNR NAKs: 1 to 31 for 0.01 to 491.52 ms, 0 for
    /// 655.36 ms. (Default 12, 0.64 ms.)
    pub min_rnr_timer: u8,
    /// The maximum of outstanding READs and atomics, 0 to 128. The peer's
    /// [`responder_resources`](Endpoint::responder_resources) limit it too. (`max_rd_atomic`;
    /// default 16.)
    pub max_rd_atomic: u8,
    /// The IPv4 type of service or IPv6 traffic class. (Default 0.)
    pub traffic_class: u8,
    /// The time to live or hop limit; 0 for the system's default. (Default 0.)
    pub hop_limit: u8,
    /// The flow label, 20 bits, which also selects the UDP source port; 0 derives one from the
    /// queue pair. (Default 0.)
    pub flow_label: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const ENDPOINT: Endpoint = Endpoint {
        gid: Gid([7; 16]),
        qpn: Qpn::new(0x12_3456),
        psn: Psn::new(0xab_cdef),
        path_mtu: Mtu::B1024,
        responder_resources: 9,
    };

    #[test]
    fn an_endpoint_is_decoded_from_its_encoding() {
        let endpoint = Endpoint {
            gid: Ipv4Addr::LOCALHOST.into(),
            ..ENDPOINT
        };
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
    }

    #[test]
    fn invalid_encodings_are_errors() {
        let mut bytes = ENDPOINT.to_bytes();
        bytes[24] = 6;
        assert_eq!(Endpoint::from_bytes(&bytes), Err(EndpointError::PathMtu(6)));
        let mut bytes = ENDPOINT.to_bytes();
        bytes[20] = 1;
        let error = EndpointError::Not24Bits(0x1ab_cdef);
        assert_eq!(Endpoint::from_bytes(&bytes), Err(error));
    }
}
