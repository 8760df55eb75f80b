//! Receive side scaling: frames spread over several work queues by a hash of what they have in common
//! with others of their connection.

use super::flow::Headers;
use super::wq::Wq;
use crate::cq::Cq;
use crate::regions::RegionTable;
use bitflags::bitflags;
use std::sync::Arc;

/// Bytes of the hash's key.
pub const KEY_LEN: usize = 40;
/// The most entries of a table.
pub const MAX_ENTRIES: usize = 1 << 10;

bitflags! {
    /// What the hash is of; the bits of `enum ibv_rx_hash_fields`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct HashFields: u64 {
        /// The source's IPv4 address.
        const SRC_IPV4 = 1 << 0;
        /// The destination's.
        const DST_IPV4 = 1 << 1;
        /// The source's IPv6 address.
        const SRC_IPV6 = 1 << 2;
        /// The destination's.
        const DST_IPV6 = 1 << 3;
        /// The source's TCP port.
        const SRC_PORT_TCP = 1 << 4;
        /// The destination's.
        const DST_PORT_TCP = 1 << 5;
        /// The source's UDP port.
        const SRC_PORT_UDP = 1 << 6;
        /// The destination's.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// How the frames of a raw packet queue pair are spread.
#[derive(Clone, Debug)]
pub struct Spread {
    key: [u8; KEY_LEN],
    fields: HashFields,
    /// A power of two of them.
    table: Vec<Arc<Wq>>,
}

impl Spread {
    /// Over the work queues of `table`, in which each may be several times; `None` unless it has a
    /// power of two of entries, at most [`MAX_ENTRIES`].
    pub fn new(key: [u8; KEY_LEN], fields: HashFields, table: Vec<Arc<Wq>>) -> Option<Self> {
        let possible = table.len().is_power_of_two() && table.len() <= MAX_ENTRIES;
        possible.then_some(Spread { key, fields, table })
    }

    /// A completion queue of its work queues.
    pub fn cq(&self) -> &Arc<Cq> {
        // There is one entry at least: zero is no power of two.
        self.table[0].cq()
    }

    /// Gives a frame to its work queue.
    pub(super) fn deliver(&self, frame: &[u8], regions: &RegionTable) {
        let input = Headers::of(frame).map(|headers| self.input(&headers));
        let hash = toeplitz(&self.key, &input.unwrap_or_default());
        let entry = hash as usize & (self.table.len() - 1);
        self.table[entry].deliver(frame, regions);
    }

    /// What the hash is of, for one frame: addresses, then ports, the source's first.
    fn input(&self, headers: &Headers<'_>) -> Vec<u8> {
        use HashFields as F;
        let ipv4 = |range| headers.ipv4.map(|header| &header[range]);
        let ipv6 = |range| headers.ipv6.map(|header| &header[range]);
        let tcp = |range| headers.tcp.map(|header| &header[range]);
        let udp = |range| headers.udp.map(|header| &header[range]);
        let fields = [
            (F::SRC_IPV4, ipv4(12..16)),
            (F::DST_IPV4, ipv4(16..20)),
            (F::SRC_IPV6, ipv6(8..24)),
            (F::DST_IPV6, ipv6(24..40)),
            (F::SRC_PORT_TCP, tcp(0..2)),
            (F::DST_PORT_TCP, tcp(2..4)),
            (F::SRC_PORT_UDP, udp(0..2)),
            (F::DST_PORT_UDP, udp(2..4)),
        ];
        let chosen = fields
            .into_iter()
            .filter(|(field, _)| self.fields.contains(*field));
        chosen
            .filter_map(|(_, bytes)| bytes)
            .flatten()
            .copied()
            .collect()
    }
}

/// The Toeplitz hash: for each bit of the input that is set, the 32 bits of the key that begin there.
fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let window = |at: usize| {
        let byte = |index: usize| u64::from(key.get(index).copied().unwrap_or(0));
        let five = (0..5).fold(0, |bits, index| bits << 8 | byte(at / 8 + index));
        (five >> (8 - at % 8)) as u32
    };
    let bits = (0..input.len() * 8).filter(|at| input[at / 8] & (0x80 >> (at % 8)) != 0);
    bits.fold(0, |hash, at| hash ^ window(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the results that Microsoft publishes for verifying an RSS hash.
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn published_hashes_come_out() {
        let source = [66, 9, 149, 187];
        let destination = [161, 142, 100, 80];
        let ports = [2794_u16.to_be_bytes(), 1766_u16.to_be_bytes()].concat();
        let addresses = [source, destination].concat();
        assert_eq!(toeplitz(&KEY, &addresses), 0x323e_8fc2);
        assert_eq!(toeplitz(&KEY, &[addresses, ports].concat()), 0x51cc_c178);
    }
}
