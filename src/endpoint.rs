//! The address of a connection's end, and the attributes of a connection.
#![forbid(unsafe_code)]

use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;

/// The bytes do not encode an [`Endpoint`].
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::EndpointError;
///
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let mut bytes = pd.queue_pair(&cq, &cq).build()?.endpoint().to_bytes();
/// bytes[24] = 9;
/// assert_eq!(Endpoint::from_bytes(&bytes), Err(EndpointError::PathMtu(9)));
/// # Ok::<(), urxe::Error>(())
/// ```
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
///
/// ```
/// use urxe::Endpoint;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).build()?;
/// // 32 bytes, which the program transfers to the peer by any means.
/// let bytes = qp.endpoint().to_bytes();
/// let received = Endpoint::from_bytes(&bytes).expect("it is an encoding");
/// assert_eq!(received, qp.endpoint());
/// # Ok(())
/// # }
/// ```
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
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::io::{Cursor, Read, Write};
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let local = pd.queue_pair(&cq, &cq).build()?.endpoint();
    /// let mut stream = Cursor::new(Vec::new());
    /// stream.write_all(&local.to_bytes())?;
    /// // In another program:
    /// let mut bytes = [0; Endpoint::BYTES];
    /// stream.set_position(0);
    /// stream.read_exact(&mut bytes)?;
    /// assert_eq!(Endpoint::from_bytes(&bytes)?, local);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub const BYTES: usize = 26;

    /// Returns the endpoint of a queue pair of a peer that does not use urxe.
    ///
    /// The other values are PSN 0, path MTU 1024 and no responder resources until they are set.
    ///
    /// ```
    /// use urxe::{Endpoint, Gid, Mtu, Psn, Qpn};
    /// use std::net::Ipv4Addr;
    ///
    /// // The line that `ibv_rc_pingpong` prints has these values.
    /// let peer = Endpoint::new(Gid::from(Ipv4Addr::LOCALHOST), Qpn::new(0x11))
    ///     .psn(Psn::new(0xab_cdef))
    ///     .path_mtu(Mtu::B4096)
    ///     .responder_resources(1);
    /// assert_eq!(peer.psn, Psn::new(0xab_cdef));
    /// ```
    pub const fn new(gid: Gid, qpn: Qpn) -> Endpoint {
        Endpoint {
            gid,
            qpn,
            psn: Psn::new(0),
            path_mtu: Mtu::B1024,
            responder_resources: 0,
        }
    }

    /// Sets the PSN of the peer's first request packet.
    pub const fn psn(mut self, psn: Psn) -> Endpoint {
        self.psn = psn;
        self
    }

    /// Sets the largest path MTU that the peer can use.
    pub const fn path_mtu(mut self, path_mtu: Mtu) -> Endpoint {
        self.path_mtu = path_mtu;
        self
    }

    /// Sets the READs and atomics that the peer can answer at a time.
    pub const fn responder_resources(mut self, count: u8) -> Endpoint {
        self.responder_resources = count;
        self
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
/// let options = urxe::ConnectOptions::default().timeout(10).retry_cnt(3);
/// assert_eq!((options.timeout, options.retry_cnt), (10, 3));
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
    /// The flow label, 20 bits, which also selects the UDP source port; 0 derives one from the
    /// queue pair. (Default 0.)
    pub flow_label: u32,
}

impl ConnectOptions {
    /// Sets [`ConnectOptions::timeout`](#structfield.timeout).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// // An ACK timeout of 4.096 us x 2^10, which is 4.2 ms.
    /// assert_eq!(ConnectOptions::default().timeout(10).timeout, 10);
    /// ```
    pub const fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets [`ConnectOptions::retry_cnt`](#structfield.retry_cnt).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert_eq!(ConnectOptions::default().retry_cnt(3).retry_cnt, 3);
    /// ```
    pub const fn retry_cnt(mut self, retry_cnt: u8) -> Self {
        self.retry_cnt = retry_cnt;
        self
    }

    /// Sets [`ConnectOptions::rnr_retry`](#structfield.rnr_retry).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// // Fail at once if the peer has no receive posted.
    /// assert_eq!(ConnectOptions::default().rnr_retry(0).rnr_retry, 0);
    /// ```
    pub const fn rnr_retry(mut self, rnr_retry: u8) -> Self {
        self.rnr_retry = rnr_retry;
        self
    }

    /// Sets [`ConnectOptions::min_rnr_timer`](#structfield.min_rnr_timer).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// // A peer that finds no receive posted retries after 0.01 ms.
    /// assert_eq!(ConnectOptions::default().min_rnr_timer(1).min_rnr_timer, 1);
    /// ```
    pub const fn min_rnr_timer(mut self, min_rnr_timer: u8) -> Self {
        self.min_rnr_timer = min_rnr_timer;
        self
    }

    /// Sets [`ConnectOptions::max_rd_atomic`](#structfield.max_rd_atomic).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert_eq!(ConnectOptions::default().max_rd_atomic(4).max_rd_atomic, 4);
    /// ```
    pub const fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.max_rd_atomic = max_rd_atomic;
        self
    }

    /// Sets [`ConnectOptions::traffic_class`](#structfield.traffic_class).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// // The DSCP of expedited forwarding, 46, is in the upper six bits.
    /// assert_eq!(ConnectOptions::default().traffic_class(46 << 2).traffic_class, 184);
    /// ```
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Sets [`ConnectOptions::flow_label`](#structfield.flow_label).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert_eq!(ConnectOptions::default().flow_label(0x12345).flow_label, 0x12345);
    /// ```
    pub const fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }
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
