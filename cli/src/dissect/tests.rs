//! Whole dissections: captures of NICs and the kernel, and conversations with one fault each.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use etherparse::PacketBuilder;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use urxe_proto::icrc::{self, Flow};
use urxe_proto::ids::{Qpn, RKey};
use urxe_proto::psn::Psn;
use urxe_proto::wire::{
    Credits, Header, NakCode, Opcode, Packet, PayloadRule, Reth, RnrTimer, Syndrome, UDP_PORT,
};

use super::finding::Kind;
use super::{Dissection, read, report};

const A: [u8; 4] = [192, 0, 2, 1];
const B: [u8; 4] = [192, 0, 2, 2];
const QP_A: u32 = 0x11;
const QP_B: u32 = 0x22;
const PORT: u16 = 0xc001;
const MTU: usize = 1024;

/// A congestion notification of a ConnectX-4 Lx from scapy's public tests: an Ethernet frame.
const CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a0012010000\
                   12b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";
const ETHERNET_LEN: usize = 14;

fn bytes(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16);
    pairs.map(|pair| byte(pair).expect("hex")).collect()
}

/// Writes a capture of frames with their times in microseconds, and dissects it.
fn dissect(link: DataLink, frames: &[(u64, Vec<u8>)]) -> Dissection {
    let file = write(link, Endianness::native(), frames);
    let dissection = read(&file).expect("own file");
    std::fs::remove_file(file).expect("own file");
    dissection
}

fn write(link: DataLink, endianness: Endianness, frames: &[(u64, Vec<u8>)]) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("urxe-dissect-{}-{number}.pcap", std::process::id());
    let path = std::env::temp_dir().join(name);
    let header = PcapHeader {
        datalink: link,
        endianness,
        ts_resolution: TsResolution::MicroSecond,
        ..PcapHeader::default()
    };
    let file = File::create(&path).expect("temporary files");
    let mut writer = PcapWriter::with_header(file, header).expect("a header");
    for (micros, frame) in frames {
        let time = Duration::from_micros(*micros);
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        writer.write_packet(&packet).expect("a packet");
    }
    path
}

/// Returns an IP packet with `packets`, each with its ICRC: several are a batch.
fn ip(src: [u8; 4], dst: [u8; 4], packets: &[Vec<u8>]) -> Vec<u8> {
    let address = |ip| (IpAddr::from(Ipv4Addr::from(ip)), PORT);
    let flow =
        Flow::new(address(src).into(), (address(dst).0, UDP_PORT).into()).expect("one family");
    let mut payload = Vec::new();
    for (id, packet) in packets.iter().enumerate() {
        payload.extend(packet);
        payload.extend(icrc::compute(&flow, id as u16, true, packet));
    }
    let builder = PacketBuilder::ipv4(src, dst, 64).udp(PORT, UDP_PORT);
    let mut frame = Vec::new();
    builder.write(&mut frame, &payload).expect("a vector");
    assert_eq!(
        frame[4..8],
        [0, 0, 0x40, 0],
        "identification 0, don't fragment"
    );
    frame
}

fn emit(header: Header, payload: &[u8]) -> Vec<u8> {
    let header = header.with_payload_len(payload.len());
    let packet = Packet { header, payload };
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes);
    bytes
}

fn to_b(opcode: Opcode, psn: u32) -> Header {
    Header::new(opcode, Qpn::new(QP_B), Psn::new(psn))
}

/// A SEND of one packet.
fn send(psn: u32) -> Vec<u8> {
    ip(
        A,
        B,
        &[emit(to_b(Opcode::RcSendOnly, psn), &psn.to_be_bytes())],
    )
}

fn read_request(psn: u32, length: u32) -> Vec<u8> {
    let reth = Reth {
        addr: 0,
        rkey: RKey(7),
        length,
    };
    ip(
        A,
        B,
        &[emit(to_b(Opcode::RcReadRequest, psn).with_reth(reth), &[])],
    )
}

fn answer(psn: u32, syndrome: Syndrome, msn: u32) -> Vec<u8> {
    let header = Header::ack(Opcode::RcAck, Qpn::new(QP_A), Psn::new(psn), syndrome, msn);
    ip(B, A, &[emit(header, &[])])
}

fn ack(psn: u32, msn: u32) -> Vec<u8> {
    answer(psn, Syndrome::Ack(Credits::INVALID), msn)
}

fn read_response(opcode: Opcode, psn: u32, len: usize) -> Vec<u8> {
    let mut header = Header::new(opcode, Qpn::new(QP_A), Psn::new(psn));
    if opcode != Opcode::RcReadResponseMiddle {
        header = header.with_aeth(urxe_proto::wire::Aeth::default());
    }
    ip(B, A, &[emit(header, &vec![0; len])])
}

/// Dissects IP packets that are 10 ms apart.
fn conversation(packets: &[Vec<u8>]) -> Dissection {
    let frames = packets.iter().cloned().enumerate();
    let frames: Vec<_> = frames
        .map(|(i, packet)| (i as u64 * 10_000, packet))
        .collect();
    dissect(DataLink::RAW, &frames)
}

fn kinds(dissection: &Dissection) -> Vec<Kind> {
    dissection
        .findings
        .iter()
        .map(|finding| finding.kind)
        .collect()
}

/// Checks that a conversation has these findings, of which the first violates `section`.
#[track_caller]
fn assert_found(packets: &[Vec<u8>], expected: &[Kind], section: Option<&str>) {
    let dissection = conversation(packets);
    assert_eq!(kinds(&dissection), expected, "{:#?}", dissection.findings);
    assert_eq!(dissection.findings[0].section, section);
    assert_eq!(dissection.is_faultless(), section.is_none());
}

#[test]
fn packet_of_a_nic_is_right_in_every_link_layer() {
    let ethernet = bytes(CNP);
    let ip = &ethernet[ETHERNET_LEN..];
    let with = |header: &[u8]| [header, ip].concat();
    let mut sll = vec![0; 14];
    sll.extend([8, 0]);
    let mut sll2 = vec![8, 0];
    sll2.extend([0; 18]);
    let mut vlan = ethernet[..12].to_vec();
    vlan.extend([0x81, 0, 0, 5]);
    vlan.extend(&ethernet[12..]);
    let frames = [
        (DataLink::ETHERNET, ethernet.clone()),
        (DataLink::ETHERNET, vlan),
        (DataLink::LINUX_SLL, with(&sll)),
        (DataLink::LINUX_SLL2, with(&sll2)),
        (DataLink::NULL, with(&[2, 0, 0, 0])),
        (DataLink::LOOP, with(&[0, 0, 0, 2])),
        (DataLink::RAW, ip.to_vec()),
        (DataLink::IPV4, ip.to_vec()),
    ];
    for (link, frame) in frames {
        let dissection = dissect(link, &[(0, frame.clone())]);
        assert_eq!((dissection.right, dissection.wrong), (1, 0), "{link:?}");
        assert!(dissection.is_faultless(), "{link:?}");
        let mut corrupt = frame;
        *corrupt.last_mut().expect("a frame") ^= 1;
        let dissection = dissect(link, &[(0, corrupt)]);
        assert_eq!((dissection.right, dissection.wrong), (0, 1), "{link:?}");
        assert_eq!(kinds(&dissection), [Kind::WrongIcrc]);
    }
}

/// UC SEND Only of scapy's public tests, with 18 bytes and 2 bytes of pad.
#[test]
fn unreliable_send_of_scapy_is_right() {
    let frame = bytes(
        "4501 0040 0478 4000 4011 0000 c0a8 0007 c0a8 0007 c000 12b7 002c 0000
         2460 ffff 0000 00d3 00cf 1710 4630 818b e289 35d9 0e9a 9550 5401 be88 5e50 0000 78f353f3",
    );
    let dissection = dissect(DataLink::RAW, &[(0, frame)]);
    assert_eq!((dissection.right, dissection.wrong), (1, 0));
    let packet = &dissection.packets[0];
    assert_eq!(packet.label(), "SEND Only PSN 13571856, 18 bytes");
}

#[test]
fn every_kind_of_packet_of_rxe_is_right() {
    let vectors = include_str!("../../../proto/tests/vectors/rxe.txt");
    let lines = vectors.lines().filter(|line| !line.starts_with('#'));
    let frames: Vec<_> = lines
        .map(|line| bytes(line.split(' ').nth(3).expect("a packet")))
        .enumerate()
        .map(|(i, frame)| (i as u64, frame))
        .collect();
    let dissection = dissect(DataLink::RAW, &frames);
    assert_eq!(dissection.right, frames.len() as u64);
    assert_eq!((dissection.wrong, dissection.malformed), (0, 0));
}

#[test]
fn directions_are_paired_by_their_psns() {
    let dissection = conversation(&[send(7), send(8), ack(8, 2), send(9), ack(9, 3)]);
    assert!(dissection.is_faultless() && dissection.findings.is_empty());
    let [followed] = &dissection.connections[..] else {
        panic!("one connection: {:?}", dissection.connections);
    };
    let qpns = followed.connection.ends.map(|end| end.qpn.map(Qpn::get));
    assert_eq!(qpns, [Some(QP_A), Some(QP_B)]);
    assert_eq!(
        (followed.counts[0].requests, followed.counts[0].acks),
        (3, 2)
    );
}

/// An unreliable SEND to a queue pair.
fn unreliable(src: [u8; 4], dst: [u8; 4], qpn: u32, psn: u32) -> Vec<u8> {
    let header = Header::new(Opcode::UcSendOnly, Qpn::new(qpn), Psn::new(psn));
    ip(src, dst, &[emit(header, &psn.to_be_bytes())])
}

#[test]
fn only_two_directions_of_unreliable_packets_are_one_connection() {
    const AT_A: u32 = 0x31;
    const AT_B: u32 = 0x32;
    let there = [
        unreliable(A, B, AT_B, 100),
        unreliable(B, A, AT_A, 700),
        unreliable(A, B, AT_B, 101),
    ];
    let dissection = conversation(&there);
    assert_eq!(dissection.connections.len(), 1);
    let connection = &dissection.connections[0].connection;
    let qpns = connection.ends.map(|end| end.qpn.map(Qpn::get));
    assert_eq!(qpns, [Some(AT_A), Some(AT_B)]);
    let directions: Vec<usize> = connection.packets.iter().map(|&(_, way)| way).collect();
    assert_eq!(directions, [0, 1, 0]);
    assert_eq!(kinds(&dissection), []);

    // Both queue pairs at one address.
    let local = [unreliable(A, A, AT_B, 100), unreliable(A, A, AT_A, 700)];
    assert_eq!(conversation(&local).connections.len(), 1);

    // A third queue pair: two of them may belong together in more than one way.
    let ambiguous = [there.as_slice(), &[unreliable(B, A, AT_A + 1, 9)]].concat();
    assert_eq!(conversation(&ambiguous).connections.len(), 3);
    let one_way = [unreliable(A, B, AT_B, 100), unreliable(A, B, AT_B + 1, 100)];
    assert_eq!(conversation(&one_way).connections.len(), 2);
    // Flows that are paired already do not count.
    let reliable = [there.as_slice(), &[send(5), ack(5, 1)]].concat();
    let dissection = conversation(&reliable);
    assert_eq!(dissection.connections.len(), 2);
}

#[test]
fn psns_wrap_around() {
    let last = Psn::SPACE - 1;
    let dissection = conversation(&[send(last), send(0), ack(0, 2)]);
    assert!(dissection.findings.is_empty(), "{:?}", dissection.findings);
}

#[test]
fn timeout_is_a_retransmission() {
    let packets = [send(1), send(1), ack(1, 1)];
    assert_found(&packets, &[Kind::Retransmission], None);
}

#[test]
fn retransmissions_after_a_nak_are_one_finding() {
    let nak = answer(2, Syndrome::Nak(NakCode::PsnSequence), 1);
    let packets = [send(1), send(2), send(3), nak, send(2), send(3), ack(3, 3)];
    assert_found(&packets, &[Kind::Nak, Kind::Retransmission], None);
    let dissection = conversation(&packets);
    assert_eq!(dissection.findings[1].count, 2);
    assert_eq!(dissection.findings[1].text, "after the NAK in frame 4");
}

#[test]
fn gap_and_the_packet_that_fills_it() {
    let packets = [send(1), send(4), send(2), send(3), ack(4, 4)];
    assert_found(&packets, &[Kind::Gap, Kind::Late], None);
    let dissection = conversation(&packets);
    assert_eq!(dissection.findings[0].count, 2);
    assert_eq!(dissection.connections[0].counts[0].missing, 0);
}

#[test]
fn identical_packet_at_once_is_a_copy() {
    let frames = [(0, send(1)), (5, send(1)), (20, ack(1, 1))];
    assert_eq!(kinds(&dissect(DataLink::RAW, &frames)), [Kind::Copy]);
}

#[test]
fn rnr_wait_must_not_be_short() {
    // Timer 20 is 10.24 ms.
    let rnr = |timer| answer(1, Syndrome::RnrNak(RnrTimer::new(timer)), 0);
    let packets = [send(1), rnr(19), send(1), ack(1, 1)];
    assert_found(&packets, &[Kind::RnrNak, Kind::Retransmission], None);
    let dissection = conversation(&[send(1), rnr(20), send(1), ack(1, 1)]);
    let expected = [Kind::RnrNak, Kind::Rule, Kind::Retransmission];
    assert_eq!(kinds(&dissection), expected);
    assert_eq!(dissection.findings[1].section, Some("9.7.5.2.8"));
}

#[test]
fn acknowledgement_of_the_future_is_a_fault() {
    let packets = [send(1), ack(2, 2), send(2), ack(2, 2)];
    assert_found(&packets, &[Kind::Rule], Some("9.7.5.2.1"));
    // The capture lacks PSN 2.
    let packets = [send(1), ack(2, 2), send(3), ack(3, 3)];
    assert_found(&packets, &[Kind::Gap], None);
}

#[test]
fn msn_must_count_the_messages() {
    let packets = [send(1), ack(1, 1), send(2), ack(2, 3)];
    assert_found(&packets, &[Kind::Rule], Some("9.7.7.1"));
}

#[test]
fn read_responses_must_have_the_requested_length() {
    let first = read_response(Opcode::RcReadResponseFirst, 1, MTU);
    let last = |len| read_response(Opcode::RcReadResponseLast, 2, len);
    let length = MTU as u32 + 8;
    let dissection = conversation(&[read_request(1, length), first.clone(), last(8)]);
    assert!(dissection.findings.is_empty(), "{:?}", dissection.findings);
    let packets = [read_request(1, length), first, last(12)];
    assert_found(&packets, &[Kind::Rule], Some("9.7.5"));
}

#[test]
fn missing_read_response_and_the_part_that_is_requested_again() {
    let first = read_response(Opcode::RcReadResponseFirst, 1, MTU);
    let last = |psn, len| read_response(Opcode::RcReadResponseLast, psn, len);
    let packets = [
        read_request(1, 3 * MTU as u32),
        first,
        last(3, MTU),
        read_request(2, MTU as u32),
        read_response(Opcode::RcReadResponseOnly, 2, MTU),
    ];
    let expected = [Kind::MissingResponse, Kind::Retransmission];
    let dissection = conversation(&packets);
    assert_eq!(kinds(&dissection), expected, "{:?}", dissection.findings);
}

#[test]
fn response_to_another_kind_of_request_is_a_fault() {
    let packets = [
        send(1),
        read_response(Opcode::RcReadResponseOnly, 1, 8),
        ack(1, 1),
    ];
    assert_found(&packets, &[Kind::Rule], Some("9.7.5.1"));
}

#[test]
fn message_that_does_not_start_is_a_fault() {
    let middle = emit(to_b(Opcode::RcSendMiddle, 2), &[0; MTU]);
    let packets = [send(1), ip(A, B, &[middle]), ack(2, 1)];
    assert_found(&packets, &[Kind::Rule], Some("9.7.4.1.2"));
}

#[test]
fn reserved_opcode_and_cut_header_are_malformed() {
    let mut reserved = emit(to_b(Opcode::RcSendOnly, 1), &[]);
    reserved[0] = 0x7f;
    assert_found(&[ip(A, B, &[reserved])], &[Kind::Malformed], Some("9.2.1"));
    let mut cut = emit(to_b(Opcode::RcSendOnly, 1), &[]);
    cut[0] = Opcode::RcWriteOnly as u8;
    assert_found(&[ip(A, B, &[cut])], &[Kind::Malformed], Some("9.3"));
}

#[test]
fn batch_is_split_into_its_packets() {
    let packet = |opcode, psn, len: usize| emit(to_b(opcode, psn), &vec![psn as u8; len]);
    let batch = [
        packet(Opcode::RcSendFirst, 1, MTU),
        packet(Opcode::RcSendMiddle, 2, MTU),
        packet(Opcode::RcSendLast, 3, 20),
    ];
    let dissection = conversation(&[ip(A, B, &batch), ack(3, 1)]);
    assert_eq!((dissection.frames, dissection.right), (2, 4));
    assert!(dissection.findings.is_empty(), "{:?}", dissection.findings);
    assert_eq!(dissection.connections[0].connection.mtu, Some(MTU));
}

#[test]
fn truncated_packets_are_followed_without_their_icrc() {
    let header = to_b(Opcode::RcSendOnly, 1);
    let mut whole = ip(A, B, &[emit(header, &[0; 500])]);
    whole.truncate(60);
    let dissection = conversation(&[whole, send(2), ack(2, 2)]);
    assert_eq!((dissection.right, dissection.truncated), (2, 1));
    assert!(dissection.findings.is_empty(), "{:?}", dissection.findings);
    assert_eq!(dissection.connections[0].counts[0].bytes, 504);
}

#[test]
fn packet_at_a_second_interface_is_counted_once() {
    let cooked = |kind: u8, packet: Vec<u8>| {
        let mut frame = vec![0, kind];
        frame.extend([0; 12]);
        frame.extend([8, 0]);
        [frame, packet].concat()
    };
    let (outgoing, incoming) = (4, 0);
    let frames = [
        (0, cooked(outgoing, send(1))),
        (3, cooked(incoming, send(1))),
        (9, cooked(outgoing, ack(1, 1))),
    ];
    let dissection = dissect(DataLink::LINUX_SLL, &frames);
    assert_eq!((dissection.right, dissection.copies), (2, 1));
    assert!(dissection.findings.is_empty(), "{:?}", dissection.findings);
}

/// Requests and responses of any opcode, PSN and length, between two queue pairs, in any order.
#[test]
fn arbitrary_packets_are_followed() {
    const PACKETS: usize = 1000;
    for seed in 0..4 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut packets = Vec::new();
        while packets.len() < PACKETS {
            let Some(opcode) = Opcode::from_u8(random.random::<u8>() & 0x1f) else {
                continue;
            };
            // Mostly near each other, and around the end of the number space.
            let psn = match random.random_range(0..50) {
                0 => random.random(),
                _ => Psn::SPACE - 20 + random.random_range(0..40),
            };
            let is_response = opcode.info().operation.is_response();
            let qpn = if is_response { QP_A } else { QP_B };
            let bytes: Vec<u8> = (0..32).map(|_| random.random()).collect();
            let mut packet = vec![0; 12];
            Header::new(opcode, Qpn::new(qpn), Psn::new(psn))
                .bth
                .emit(&mut packet);
            packet.extend(&bytes[..opcode.info().headers_len.min(bytes.len())]);
            if opcode.info().payload != PayloadRule::None {
                let lengths = [0, 4, 256, MTU, MTU + 4];
                packet.resize(packet.len() + lengths[random.random_range(0..5)], 0);
            }
            let (src, dst) = if is_response { (B, A) } else { (A, B) };
            packets.push(ip(src, dst, &[packet]));
        }
        let dissection = conversation(&packets);
        assert_eq!(dissection.right, PACKETS as u64);
        assert!(!dissection.findings.is_empty());
        let sizes = dissection.connections.iter();
        let sizes = sizes.map(|followed| followed.connection.packets.len());
        assert_eq!(sizes.sum::<usize>(), dissection.packets.len());
        // Every finding has a place in the text and in JSON.
        assert!(report::text(&dissection, true).len() > PACKETS);
        assert!(report::json(&dissection, true).len() > PACKETS);
    }
}

#[test]
fn fragment_is_a_fault() {
    let mut fragment = send(1);
    fragment[6] = 0x20;
    assert_found(&[fragment], &[Kind::Malformed], Some("A17.3.1"));
}

#[test]
fn both_byte_orders_are_read_and_a_cut_file_as_far_as_it_goes() {
    let frames = [(0, send(1)), (5, ack(1, 1))];
    for endianness in [Endianness::Little, Endianness::Big] {
        let file = write(DataLink::RAW, endianness, &frames);
        let len = std::fs::metadata(&file).expect("own file").len();
        assert_eq!(read(&file).expect("own file").right, 2);
        let open = File::options().write(true).open(&file).expect("own file");
        open.set_len(len - 3).expect("own file");
        let dissection = read(&file).expect("own file");
        assert_eq!(dissection.right, 1);
        assert_eq!(
            dissection.cut.as_deref(),
            Some("the file ends within frame 2")
        );
        std::fs::remove_file(file).expect("own file");
    }
}

#[test]
fn report_lists_what_was_found() {
    let nak = answer(2, Syndrome::Nak(NakCode::RemoteAccess), 1);
    let dissection = conversation(&[send(1), send(2), nak]);
    let text = report::text(&dissection, true);
    for part in [
        "3 RoCEv2 packets",
        "RC 192.0.2.1 QP 0x11 <-> 192.0.2.2 QP 0x22",
        "remote access error: ends the connection",
        "SEND Only PSN 1, 4 bytes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&report::json(&dissection, true)).expect("JSON");
    assert_eq!(json["icrc"]["right"], 3);
    assert_eq!(json["findings"][0]["kind"], "nak");
    assert_eq!(json["list"][2]["label"], "NAK remote access error PSN 2");
}
