//! Receive side scaling: frames are distributed to several work queues by a hash that is equal for
//! all frames of a connection.

use super::flow::Headers;
use super::wq::Wq;
use crate::memory::regions::RegionTable;
use crate::queues::cq::Cq;
use bitflags::bitflags;
use std::sync::Arc;

/// The length of the hash key in bytes.
pub const KEY_LEN: usize = 40;
/// The maximum number of entries of an indirection table.
pub const MAX_ENTRIES: usize = 1 << 10;

bitflags! {
    /// The header fields that the hash covers; the bits of `enum ibv_rx_hash_fields`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct HashFields: u64 {
        /// The source IPv4 address.
        const SRC_IPV4 = 1 << 0;
        /// The destination IPv4 address.
        const DST_IPV4 = 1 << 1;
        /// The source IPv6 address.
        const SRC_IPV6 = 1 << 2;
        /// The destination IPv6 address.
        const DST_IPV6 = 1 << 3;
        /// The source TCP port.
        const SRC_PORT_TCP = 1 << 4;
        /// The destination TCP port.
        const DST_PORT_TCP = 1 << 5;
        /// The source UDP port.
        const SRC_PORT_UDP = 1 << 6;
        /// The destination UDP port.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// The distribution of a raw packet queue pair's frames.
#[derive(Clone, Debug)]
pub struct Spread {
    key: [u8; KEY_LEN],
    fields: HashFields,
    /// The indirection table; its length is a power of two.
    table: Vec<Arc<Wq>>,
}

impl Spread {
    /// Creates a distribution to the work queues of `table`, which may contain a queue several
    /// times. Returns `None` unless the length of `table` is a power of two and at most
    /// [`MAX_ENTRIES`].
    pub fn new(key: [u8; KEY_LEN], fields: HashFields, table: Vec<Arc<Wq>>) -> Option<Self> {
        let possible = table.len().is_power_of_two() && table.len() <= MAX_ENTRIES;
        possible.then_some(Spread { key, fields, table })
    }

    /// Returns the completion queue of one of its work queues.
    pub fn cq(&self) -> &Arc<Cq> {
        // The table is not empty: its length is a power of two.
        self.table[0].cq()
    }

    /// Passes a frame to its work queue.
    pub(super) fn deliver(&self, frame: &[u8], regions: &RegionTable) {
        let input = Headers::of(frame).map(|headers| self.input(&headers));
        let hash = toeplitz(&self.key, &input.unwrap_or_default());
        let entry = hash as usize & (self.table.len() - 1);
        self.table[entry].deliver(frame, regions);
    }

    /// Returns the input of the hash for a frame: addresses, then ports, the source's before the
    /// destination's.
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

/// Computes the Toeplitz hash: the XOR of the 32-bit windows of the key at each set bit of the
/// input.
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

    /// The key and the results of Microsoft's published RSS hash verification suite.
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn toeplitz_matches_published_vectors() {
        let source = [66, 9, 149, 187];
        let destination = [161, 142, 100, 80];
        let ports = [2794_u16.to_be_bytes(), 1766_u16.to_be_bytes()].concat();
        let addresses = [source, destination].concat();
        assert_eq!(toeplitz(&KEY, &addresses), 0x323e_8fc2);
        assert_eq!(toeplitz(&KEY, &[addresses, ports].concat()), 0x51cc_c178);
    }
}
