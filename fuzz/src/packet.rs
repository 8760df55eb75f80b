//! Wire formats: parsing and emitting are inverse.

use urxe_proto::cm::wire::{IpHeader, Message};
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::{Grh, Packet};

/// Parses `bytes` as each wire format.
///
/// # Panics
/// If a parsed value differs after it is emitted and parsed again.
pub fn check(bytes: &[u8]) {
    packet(bytes);
    cm(bytes);
    if let Some(header) = bytes.first_chunk::<{ Grh::LEN }>()
        && let Some(network) = NetworkHeader::parse(header)
    {
        let again = NetworkHeader::parse(&network.bytes(100));
        // Between IPv4-mapped addresses it is emitted as IPv4, which has no flow label.
        let v4 = network.source.to_ip().is_ipv4() && network.destination.to_ip().is_ipv4();
        let flow_label = if v4 { 0 } else { network.flow_label };
        let expected = NetworkHeader {
            flow_label,
            ..network
        };
        assert_eq!(again, Some(expected));
    }
}

fn packet(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    assert!(packet.len() <= bytes.len());
    let mut written = vec![0xa5; packet.len()];
    assert_eq!(packet.emit(&mut written), packet.len());
    let again = Packet::parse(&written).expect("an emitted packet is well-formed");
    assert_eq!(again.payload, packet.payload);
    let expected = packet.header.with_payload_len(packet.payload.len());
    assert_eq!(again.header, expected);
    let mut twice = vec![0x5a; packet.len()];
    again.emit(&mut twice);
    assert_eq!(written, twice);
}

fn cm(bytes: &[u8]) {
    if let Ok((header, _)) = IpHeader::parse(bytes) {
        let again = IpHeader::parse(&header.to_bytes()).map(|(again, _)| again);
        assert_eq!(again, Ok(header));
    }
    let Ok((transaction, message)) = Message::parse(bytes) else {
        return;
    };
    let mad = message.to_mad(transaction);
    let again = Message::parse(&mad).expect("an emitted message is well-formed");
    assert_eq!(again, (transaction, message));
}
