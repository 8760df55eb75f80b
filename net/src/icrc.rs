//! The ICRC of sent and received packets.
//!
//! Over IPv4 it covers the identification of the packet, which the socket interface neither sets
//! nor reports. For sent packets it follows from the position in the GSO batch; for received ones
//! it is computed from the ICRC itself.

use crate::address::ROCE_PORT;
use std::net::{IpAddr, SocketAddr};
use urxe_proto::icrc::{self, Flow, FlowIcrc, IcrcError, IpId};
use urxe_proto::wire::Bth;

/// The length of the ICRC in bytes.
pub(super) const LEN: usize = icrc::LEN;

/// The shortest packet, from the BTH to the end of the pad, in bytes.
pub(super) const MIN_PACKET: usize = Bth::LEN;

/// Returns the identification of a packet that this host sends at position `position` of a GSO
/// batch. IPv6 has no identification, and there the result is not used.
pub(super) const fn sent_id(position: u16) -> IpId {
    IpId {
        id: position,
        dont_fragment: true,
    }
}

/// Writes the ICRC into the last four bytes of `packet`, which has at least a BTH before them.
pub(super) fn seal(flow: &FlowIcrc, position: u16, packet: &mut [u8]) {
    if let Some((packet, icrc)) = packet.split_last_chunk_mut::<LEN>() {
        *icrc = flow.compute(sent_id(position), packet);
    }
}

/// A cache of recent senders: the constant part of their ICRC, and how each numbers its packets.
///
/// The ICRC reveals the identification of any packet. A correct guess saves work and gives the
/// check its full strength. Senders like this one number each batch from 0; NICs and rxe count
/// upwards.
///
/// All of them set «don't fragment». From a sender that does not, the first packet is dropped:
/// otherwise certain single-bit errors would pass (see [`urxe_proto::icrc`]).
pub(super) struct SenderCache(Vec<Option<Sender>>);

/// The number of cache entries: a power of two, for [`SenderCache::index`].
const SENDERS: usize = 256;

#[derive(Clone, Copy)]
struct Sender {
    src: SocketAddr,
    dst: IpAddr,
    icrc: FlowIcrc,
    last: IpId,
    /// Whether the last identification was not the position in the batch, so that the next one is
    /// expected to be one higher.
    increments: bool,
    /// Whether the last packet failed, but would have passed with «don't fragment» inverted.
    df_in_doubt: bool,
}

impl SenderCache {
    pub(super) fn new() -> Self {
        SenderCache(vec![None; SENDERS])
    }

    fn index(src: &SocketAddr) -> usize {
        let ip = match src.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() as u64,
        };
        // Fibonacci hashing: the top bits of the product are the best mixed.
        let hash = ((ip << 16) ^ u64::from(src.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - SENDERS.trailing_zeros())) as usize
    }

    /// Verifies the ICRC of a packet that arrived at position `position` of a GRO batch. Returns
    /// its identification, `None` for IPv6.
    #[inline]
    pub(super) fn verify(
        &mut self,
        src: &SocketAddr,
        dst: IpAddr,
        position: u16,
        bytes: &[u8],
    ) -> Result<Option<IpId>, IcrcError> {
        let entry = &mut self.0[Self::index(src)];
        let sender = match entry {
            Some(sender) if sender.src == *src && sender.dst == dst => sender,
            // The kernel does not mix address families on one socket, but a forwarded message may.
            _ => entry.insert(Sender::new(*src, dst).ok_or(IcrcError::Length(bytes.len()))?),
        };
        let id = sender.verify(position, bytes)?;
        Ok(src.is_ipv4().then_some(id))
    }
}

impl Sender {
    /// Returns the entry of a sender whose IP identifications are unknown yet; `None` if the
    /// address families differ.
    #[cold]
    fn new(src: SocketAddr, dst: IpAddr) -> Option<Self> {
        let flow = Flow::new(src, SocketAddr::new(dst, ROCE_PORT))?;
        Some(Sender {
            src,
            dst,
            icrc: FlowIcrc::new(&flow),
            last: sent_id(0),
            increments: false,
            df_in_doubt: false,
        })
    }

    /// Verifies the ICRC of a packet of this sender. Returns its IP identification.
    #[inline]
    fn verify(&mut self, position: u16, bytes: &[u8]) -> Result<IpId, IcrcError> {
        let guess = IpId {
            id: if self.increments {
                self.last.id.wrapping_add(1)
            } else {
                position
            },
            dont_fragment: self.last.dont_fragment,
        };
        let id = if self.df_in_doubt {
            self.verify_in_doubt(bytes, guess)?
        } else {
            (self.icrc.verify_known_sender(bytes, guess))
                .inspect_err(|_| self.failed(bytes, guess))?
        };
        self.last = id;
        self.increments = id.id != position;
        Ok(id)
    }

    /// Verifies the ICRC of a packet with either value of «don't fragment».
    #[cold]
    fn verify_in_doubt(&mut self, bytes: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
        let id = self.icrc.verify(bytes, guess)?;
        self.df_in_doubt = false;
        Ok(id)
    }

    /// Records that a packet failed with the known value of «don't fragment». One damaged packet
    /// may pass with the other value. Two in a row mean that the sender differs.
    #[cold]
    fn failed(&mut self, bytes: &[u8], guess: IpId) {
        self.df_in_doubt = self.icrc.verify(bytes, guess).is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(senders: &mut SenderCache, packet: &[u8]) -> Result<Option<IpId>, IcrcError> {
        let src: SocketAddr = "192.0.2.1:49152".parse().unwrap();
        senders.verify(&src, [192, 0, 2, 2].into(), 0, packet)
    }

    #[test]
    fn identification_is_found_for_each_way_of_numbering() {
        let mut senders = SenderCache::new();
        let mut packet = vec![0; 64];
        let flow = Flow::new(
            "192.0.2.1:49152".parse().unwrap(),
            "192.0.2.2:4791".parse().unwrap(),
        );
        let icrc = FlowIcrc::new(&flow.unwrap());
        for id in [0, 0x718c, 0x718d, 9] {
            let id = IpId {
                id,
                dont_fragment: true,
            };
            let sum = icrc.compute(id, &packet[..60]);
            packet[60..].copy_from_slice(&sum);
            assert_eq!(verify(&mut senders, &packet), Ok(Some(id)));
        }
        packet[20] ^= 1;
        assert!(verify(&mut senders, &packet).is_err());
    }

    /// Returns a packet of 1040 bytes with the identification `id`, and byte 173 XORed with
    /// `damage`.
    fn packet(id: IpId, damage: u8) -> Vec<u8> {
        let mut packet = vec![0; 1040];
        let flow = Flow::new(
            "192.0.2.1:49152".parse().unwrap(),
            "192.0.2.2:4791".parse().unwrap(),
        );
        let sum = FlowIcrc::new(&flow.unwrap()).compute(id, &packet[..1036]);
        packet[1036..].copy_from_slice(&sum);
        packet[173] ^= damage;
        packet
    }

    fn is_accepted(senders: &mut SenderCache, packet: &[u8]) -> bool {
        verify(senders, packet).is_ok()
    }

    #[test]
    fn single_wrong_bit_is_detected_in_every_state_of_the_cache() {
        let mut senders = SenderCache::new();
        for number in 0..8 {
            let id = |id| IpId {
                id,
                dont_fragment: true,
            };
            for bit in 0..8 {
                assert!(!is_accepted(
                    &mut senders,
                    &packet(id(number * 10 + bit), 1 << bit)
                ));
                assert!(is_accepted(
                    &mut senders,
                    &packet(id(number * 10 + bit + 1), 0)
                ));
            }
        }
    }

    #[test]
    fn sender_without_dont_fragment_loses_one_packet() {
        let mut senders = SenderCache::new();
        let id = |id| IpId {
            id,
            dont_fragment: false,
        };
        assert!(!is_accepted(&mut senders, &packet(id(5), 0)));
        for number in 6..20 {
            assert!(is_accepted(&mut senders, &packet(id(number), 0)));
        }
    }
}
