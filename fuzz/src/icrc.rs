//! ICRC: a computed ICRC verifies with any guess of the IP ID, and an accepted one is correct.

use arbitrary::Arbitrary;
use std::net::SocketAddr;
use urxe_proto::icrc::{Flow, FlowIcrc, IpId, LEN};
use urxe_proto::wire::Bth;

/// Checks the input that `bytes` encode.
///
/// # Panics
/// If a rule is violated.
pub fn check(bytes: &[u8]) {
    crate::target::with_input(bytes, |input: Input| input.check());
}

/// A packet, its addresses, and the bit errors on its way.
#[derive(Arbitrary, Debug)]
pub struct Input {
    v6: bool,
    addresses: [[u8; 16]; 2],
    source_port: u16,
    id: (u16, bool),
    guess: (u16, bool),
    /// The positions of bit errors.
    damage: Vec<(u16, u8)>,
    packet: Vec<u8>,
}

impl Input {
    fn check(self) {
        let [src, dst] = self.addresses.map(|octets| match self.v6 {
            true => std::net::IpAddr::from(octets),
            false => std::net::IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        });
        let from = SocketAddr::new(src, self.source_port);
        let to = SocketAddr::new(dst, urxe_proto::wire::UDP_PORT);
        let Some(flow) = Flow::new(from, to) else {
            // One IPv4-mapped and one IPv6 address.
            return;
        };
        let icrc = FlowIcrc::new(&flow);
        let [sent, guess] =
            [self.id, self.guess].map(|(id, dont_fragment)| IpId { id, dont_fragment });

        // The packet as given, with arbitrary bytes in the place of the ICRC.
        self.check_accepted(&icrc, &self.packet, guess);

        let mut datagram = self.packet.clone();
        datagram.resize(datagram.len().clamp(Bth::LEN, 8192).next_multiple_of(4), 0);
        datagram.extend_from_slice(&icrc.compute(sent, &datagram));
        let v4 = matches!(flow, Flow::V4 { .. });
        let expected = if v4 { sent } else { guess };
        assert_eq!(icrc.verify(&datagram, guess), Ok(expected));
        let known = IpId {
            dont_fragment: sent.dont_fragment,
            ..guess
        };
        assert!(icrc.verify_known_sender(&datagram, known).is_ok());

        let before = datagram.clone();
        for &(at, bit) in &self.damage {
            let at = usize::from(at) % datagram.len();
            datagram[at] ^= 1 << (bit % 8);
        }
        let changed: u32 = before
            .iter()
            .zip(&datagram)
            .enumerate()
            // The ICRC does not cover variant fields (A17.3.3).
            .filter(|(at, _)| *at != Bth::VARIANT_BYTE)
            .map(|(_, (a, b))| (a ^ b).count_ones())
            .sum();
        if changed == 0 {
            assert!(icrc.verify_known_sender(&datagram, known).is_ok());
        } else if changed == 1 {
            assert!(icrc.verify_known_sender(&datagram, known).is_err());
        }
        self.check_accepted(&icrc, &datagram, guess);
    }

    fn check_accepted(&self, icrc: &FlowIcrc, datagram: &[u8], guess: IpId) {
        if let Ok(found) = icrc.verify(datagram, guess) {
            let (packet, end) = datagram.split_at(datagram.len() - LEN);
            assert_eq!(icrc.compute(found, packet), end);
        }
    }
}
