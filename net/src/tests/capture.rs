//! Captures: the headers of sent and received packets match their ICRC.

use super::*;

/// Returns every packet of a capture: whether it was sent, its IPv4 identification, and whether its
/// ICRC is correct.
fn packets_of(path: &std::path::Path) -> Vec<(bool, u16, bool)> {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::{Block, PcapNgReader};
    let mut reader = PcapNgReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else {
            continue;
        };
        let outgoing = packet.options.contains(&EnhancedPacketOption::Flags(2));
        // Compute the ICRC independently: mask the headers, and sum.
        let mut bytes = packet.data.to_vec();
        let id = u16::from_be_bytes([bytes[4], bytes[5]]);
        let end = bytes.len() - urxe_proto::icrc::LEN;
        for masked in [1, 8, 10, 11, 26, 27, 32] {
            bytes[masked] = 0xff;
        }
        let mut crc = !0_u32;
        for byte in [0xff; 8].iter().chain(&bytes[..end]) {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            }
        }
        packets.push((outgoing, id, bytes[end..] == (!crc).to_le_bytes()));
    }
    packets
}

#[test]
fn captured_headers_match_the_icrc() {
    let name = |end| {
        let file = format!("urxe-wire-{end}-{}", std::process::id());
        std::env::temp_dir().join(file)
    };
    let captured = |end| Options {
        capture: Some(name(end).to_str().unwrap().to_owned()),
        ..Options::default()
    };
    let (from, to) = (own_address(), own_address());
    let mut a = Node::new(from, captured("out"));
    let mut b = Node::new(to, captured("in"));
    let dst = (to, b.qpn());
    a.send(dst, 0, &[1040; 10]);
    pump_until(&mut [&mut b], |n| n[0].got.len() == 10);
    // A damaged packet is captured as well.
    let other = std::net::UdpSocket::bind(from.with_port(0)).unwrap();
    let mut broken = [0; 64];
    write_packet(&mut broken, b.qpn(), 11);
    other.send_to(&broken, to.with_port(ROCE_PORT)).unwrap();
    pump_until(&mut [&mut b], |n| {
        n[0].shared.counters().icrc_errors.get() == 1
    });

    let (out, mut arrived) = (packets_of(&name("out")), packets_of(&name("in")));
    for end in ["out", "in"] {
        std::fs::remove_file(name(end)).unwrap();
    }
    let (_, _, right) = arrived.pop().unwrap();
    assert!(!right);
    assert_eq!(out.len(), 10);
    for (expected, (sent, came)) in (0..).zip(out.iter().zip(&arrived)) {
        assert_eq!(*sent, (true, expected, true));
        assert_eq!(*came, (false, expected, true));
    }
}
