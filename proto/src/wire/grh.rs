//! The global route header, GRH (8.3).
//!
//! RoCEv2 replaces it by an IP header. The receive of a datagram still starts with 40 bytes for a
//! GRH: the IPv6 header, or an IPv4 header in the last 20 of them (A17.4.5).

use crate::ids::Gid;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The global route header. Its layout is that of an IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Grh {
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// The next header: UDP in RoCEv2, [`Grh::NEXT_IBA`] in InfiniBand and RoCEv1.
    pub next_header: u8,
    /// The remaining hops.
    pub hop_limit: u8,
    /// The source GID.
    pub sgid: Gid,
    /// The destination GID.
    pub dgid: Gid,
}

/// Why bytes are not a valid GRH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrhError {
    /// There are too few bytes.
    #[error("{have} bytes are too short for a GRH, which takes {}", Grh::LEN)]
    TooShort {
        /// The number of bytes.
        have: usize,
    },
    /// The version is not 6.
    #[error("a GRH has version 6, not {0}")]
    Version(u8),
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    /// Version (4 bits), traffic class (8), flow label (20).
    version: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}

const FLOW_LABEL: u32 = 0xf_ffff;

impl Grh {
    /// The length of the GRH, in bytes.
    pub const LEN: usize = size_of::<Raw>();
    /// The IP version (8.3).
    pub const VERSION: u8 = 6;
    /// The next header value of a BTH (8.3).
    pub const NEXT_IBA: u8 = 0x1b;
    /// The next header value of UDP.
    pub const NEXT_UDP: u8 = 17;

    /// Reads the header from the start of `bytes`; returns it and the rest.
    ///
    /// # Errors
    /// [`GrhError`] when `bytes` are too short, or the version is not 6.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), GrhError> {
        let Ok((raw, rest)) = Raw::ref_from_prefix(bytes) else {
            return Err(GrhError::TooShort { have: bytes.len() });
        };
        let first = raw.version.get();
        let version = (first >> 28) as u8;
        if version != Self::VERSION {
            return Err(GrhError::Version(version));
        }
        let grh = Grh {
            traffic_class: (first >> 20) as u8,
            flow_label: first & FLOW_LABEL,
            payload_len: raw.payload_len.get(),
            next_header: raw.next_header,
            hop_limit: raw.hop_limit,
            sgid: Gid(raw.sgid),
            dgid: Gid(raw.dgid),
        };
        Ok((grh, rest))
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`Grh::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let raw = Raw {
            version: U32::new(
                u32::from(Self::VERSION) << 28
                    | u32::from(self.traffic_class) << 20
                    | (self.flow_label & FLOW_LABEL),
            ),
            payload_len: U16::new(self.payload_len),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            sgid: self.sgid.0,
            dgid: self.dgid.0,
        };
        out[..Self::LEN].copy_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_undoes_emit(
            traffic_class: u8, flow_label in 0..=FLOW_LABEL, payload_len: u16,
            next_header: u8, hop_limit: u8, sgid: [u8; 16], dgid: [u8; 16],
        ) {
            let grh = Grh {
                traffic_class, flow_label, payload_len, next_header, hop_limit,
                sgid: Gid(sgid), dgid: Gid(dgid),
            };
            let mut out = [0; Grh::LEN];
            grh.emit(&mut out);
            prop_assert_eq!(Grh::parse(&out), Ok((grh, &[][..])));
        }
    }

    #[test]
    fn field_offsets_match_ipv6() {
        let mut bytes = [0u8; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0x01, 0x02, 17, 64]);
        bytes[8] = 0xfe;
        bytes[24] = 0xfd;
        let (grh, _) = Grh::parse(&bytes).unwrap();
        assert_eq!(grh.traffic_class, 0xab);
        assert_eq!(grh.flow_label, 0x1_2345);
        assert_eq!(grh.payload_len, 0x102);
        assert_eq!((grh.next_header, grh.hop_limit), (Grh::NEXT_UDP, 64));
        assert_eq!((grh.sgid.0[0], grh.dgid.0[0]), (0xfe, 0xfd));
    }

    #[test]
    fn short_input_and_other_versions_are_refused() {
        assert_eq!(
            Grh::parse(&[0x60; 39]),
            Err(GrhError::TooShort { have: 39 })
        );
        assert_eq!(Grh::parse(&[0x45; 40]), Err(GrhError::Version(4)));
    }
}
