//! What the two ends of a connection must know of each other, and of how to keep it.
#![forbid(unsafe_code)]

use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;

/// Bytes that are no [`Endpoint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// The path MTU's number is none.
    #[error("{0} is no path MTU: the numbers are 1 (256 bytes) to 5 (4096 bytes)")]
    PathMtu(u8),
    /// A queue pair number or a PSN does not fit 24 bits.
    #[error("{0:#x} is no queue pair number or PSN: they have 24 bits")]
    Not24Bits(u32),
}

/// One end of a connection: what the other must know to connect to it. How the bytes get there is
/// the program's own affair.
///
/// For a peer that is no urxe program, fill in what it says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// Its address.
    pub gid: Gid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The PSN of its first request packet.
    pub psn: Psn,
    /// The largest path MTU that it can use; a connection has the smaller of its ends'.
    pub path_mtu: Mtu,
    /// How many READs and atomics it can answer at a time: 0 to 128. (`max_dest_rd_atomic`.)
    pub responder_resources: u8,
}

impl Endpoint {
    /// How many bytes [`Endpoint::to_bytes`] makes.
    pub const BYTES: usize = 26;

    /// For sending to a peer: GID, queue pair number, PSN, the number of the path MTU, responder
    /// resources, each in network order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.qpn.get().to_be_bytes());
        bytes[20..24].copy_from_slice(&self.psn.get().to_be_bytes());
        bytes[24] = self.path_mtu as u8;
        bytes[25] = self.responder_resources;
        bytes
    }

    /// What [`Endpoint::to_bytes`] made.
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

/// How a connection is kept: attributes that each end sets for itself. The default is patient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// How long to wait for an acknowledgement: 4.096 us x 2^n for n from 1 to 31; 0 is for ever.
    /// (`timeout`; default 14, 67 ms.)
    pub timeout: u8,
    /// How often to send again without an answer, 0 to 7. (Default 7.)
    pub retry_cnt: u8,
    /// How often to send again to a peer that has no receive: 0 to 6, 7 for ever. (Default 7.)
    pub rnr_retry: u8,
    /// How long the peer shall wait when there is no receive here: 1 to 31 for 0.01 to 491.52 ms,
    /// 0 for 655.36 ms. (Default 12, 0.64 ms.)
    pub min_rnr_timer: u8,
    /// READs and atomics under way at a time, at most; what the peer can answer is a limit too.
    /// 0 to 128. (`max_rd_atomic`; default 16.)
    pub max_rd_atomic: u8,
    /// Type of service, or traffic class. (Default 0.)
    pub traffic_class: u8,
    /// Time to live; 0 for the system's usual. (Default 0.)
    pub hop_limit: u8,
    /// Flow label, 20 bits, which also picks the UDP source port; 0 for one by queue pair.
    /// (Default 0.)
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
    fn an_endpoint_survives_its_bytes() {
        let endpoint = Endpoint {
            gid: Ipv4Addr::LOCALHOST.into(),
            ..ENDPOINT
        };
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
    }

    #[test]
    fn impossible_bytes_are_refused() {
        let mut bytes = ENDPOINT.to_bytes();
        bytes[24] = 6;
        assert_eq!(Endpoint::from_bytes(&bytes), Err(EndpointError::PathMtu(6)));
        let mut bytes = ENDPOINT.to_bytes();
        bytes[20] = 1;
        let error = EndpointError::Not24Bits(0x1ab_cdef);
        assert_eq!(Endpoint::from_bytes(&bytes), Err(error));
    }
}
