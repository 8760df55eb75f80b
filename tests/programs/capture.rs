//! The bytes on the wire, checked by Wireshark and scapy: as urxe writes them to `URXE_PCAP`, and
//! as the kernel sends them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::capture::{
    Packet, Sniffer, assert_every_icrc, check_icrc, dissect, opcode, values,
};
use crate::common::devices::DeviceInfo;
use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::{Ended, Pingpong, Side, addresses};
use crate::common::require::{DEVINFO, IP, Need, PINGPONG, TSHARK, require};
use crate::common::run::run;
use crate::common::runner::{Directory, Runner};

/// Runs a pair with `URXE_PCAP` on both sides, and checks both captures.
fn captured(mut pingpong: Pingpong) -> (Vec<Packet>, Ended) {
    let directory = Directory::new();
    let [server, client] =
        ["server", "client"].map(|side| directory.path().join(format!("{side}.pcapng")));
    pingpong.server = pingpong
        .server
        .env("URXE_PCAP", &server.display().to_string());
    pingpong.client = pingpong
        .client
        .env("URXE_PCAP", &client.display().to_string());
    let ended = pingpong.run().success();

    let packets = [server, client].map(|file| {
        let packets = dissect(&file);
        assert_every_icrc(&file, packets.len());
        packets
    });
    let [_, client] = packets;
    (client, ended)
}

/// Returns the largest payload of a SEND.
fn largest_payload(packets: &[Packet]) -> u32 {
    let payloads = packets
        .iter()
        .filter(|packet| packet.is_send())
        .map(Packet::send_payload);
    payloads.max().expect("there are SENDs")
}

fn opcodes(packets: &[Packet]) -> BTreeSet<u32> {
    packets.iter().map(|packet| packet.opcode).collect()
}

fn loopback() -> Option<Pingpong> {
    require(&[PINGPONG, TSHARK, Need::Scapy]).then(|| Pingpong::over_loopback(&Runner::alone()))
}

#[test]
fn small_message_is_a_single_packet() {
    let Some(pingpong) = loopback() else { return };
    // Every length of padding.
    for size in [1, 2, 3, 4, 64] {
        let (packets, _) = captured(pingpong.clone().size(size).iterations(20));
        let seen = opcodes(&packets);
        assert_eq!(
            seen,
            BTreeSet::from([opcode::SEND_ONLY, opcode::ACKNOWLEDGE])
        );
        assert_eq!(largest_payload(&packets), size.next_multiple_of(4));
    }
}

#[test]
fn large_message_is_segmented_at_the_path_mtu() {
    let Some(pingpong) = loopback() else { return };
    for mtu in [256, 1024, 4096] {
        let pingpong = pingpong.clone().options(&format!("-m {mtu}"));
        // Three full packets and a short one.
        let (packets, _) = captured(pingpong.size(3 * mtu + 5).iterations(10));
        let all = [
            opcode::SEND_FIRST,
            opcode::SEND_MIDDLE,
            opcode::SEND_LAST,
            opcode::ACKNOWLEDGE,
        ];
        assert_eq!(opcodes(&packets), BTreeSet::from(all));
        assert_eq!(largest_payload(&packets), mtu);
    }
}

/// Runs in a private namespace, where no process that shares the port is killed: these services do
/// not retransmit packets lost that way.
fn unreliable(program: &'static str) -> Option<(Namespace, Pingpong)> {
    let needs = [
        PINGPONG,
        DEVINFO,
        TSHARK,
        IP,
        Need::Scapy,
        Need::NetworkNamespaces,
    ];
    if !require(&needs) {
        return None;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let pingpong = Pingpong::over_loopback(namespace.runner()).program(program);
    Some((namespace, pingpong))
}

#[test]
fn packets_of_unreliable_connections() {
    let Some((_namespace, pingpong)) = unreliable("ibv_uc_pingpong") else {
        return;
    };
    let pingpong = pingpong.options("-m 512");
    let (packets, _) = captured(pingpong.size(3 * 512 + 5).iterations(10));
    let all = [
        opcode::UC_SEND_FIRST,
        opcode::UC_SEND_MIDDLE,
        opcode::UC_SEND_LAST,
    ];
    assert_eq!(opcodes(&packets), BTreeSet::from(all));
}

#[test]
fn packets_of_datagrams() {
    let Some((namespace, pingpong)) = unreliable("ibv_ud_pingpong") else {
        return;
    };
    let pingpong = pingpong.iterations(20);
    for size in [1, 2, 3, 1024] {
        let (packets, _) = captured(pingpong.clone().size(size));
        assert_eq!(opcodes(&packets), BTreeSet::from([opcode::UD_SEND_ONLY]));
    }
    let index = DeviceInfo::query(namespace.runner(), "urxe_lo").gid_index("::1");
    captured(pingpong.gids(index, index).size(1024));
}

#[test]
fn batches_of_many_packets() {
    let Some(pingpong) = loopback() else { return };
    captured(pingpong.options("-m 1024").size(300_000).iterations(3));
}

#[test]
fn ipv6_packets() {
    let Some(pingpong) = loopback() else { return };
    let index = DeviceInfo::query(&Runner::here(), "urxe_lo").gid_index("::1");
    let (packets, _) = captured(pingpong.gids(index, index).size(100_000).iterations(3));
    assert!(packets.iter().all(|packet| packet.source == "::1"));
}

#[test]
fn queue_pair_numbers_and_psns_are_the_negotiated_ones() {
    let Some(pingpong) = loopback() else { return };
    let (packets, ended) = captured(pingpong.size(3000).iterations(5));
    let printed = addresses(&ended.client.stdout);
    let [(client_qp, client_psn), (server_qp, server_psn)] = printed[..] else {
        panic!("two addresses in {}", ended.client)
    };
    for (qp, psn) in [(server_qp, client_psn), (client_qp, server_psn)] {
        let sent: BTreeSet<_> = packets
            .iter()
            .filter(|packet| packet.is_send() && packet.destination_qp == qp)
            .map(|packet| packet.psn)
            .collect();
        // Five messages of three packets.
        let expected = (0..15).map(|number| (psn + number) & 0xff_ffff).collect();
        assert_eq!(sent, expected);
    }
    // The source port range of NICs and rxe.
    assert!(packets.iter().all(|packet| packet.source_port >= 0xc000));
}

/// `urxe demo` covers WRITE, READ, atomics and immediate data, which `ibv_rc_pingpong` does not.
#[test]
fn every_operation_of_the_demo() {
    const LIMIT: Duration = Duration::from_secs(120);
    const MESSAGES: usize = 8;
    const ATOMICS: usize = 20;
    // Four full packets and a short one at a path MTU of 4096; latency messages are single packets.
    const SIZE: u32 = 20_000;
    if !require(&[TSHARK, Need::Scapy]) {
        return;
    }
    let directory = Directory::new();
    let runner = Runner::alone();
    let mut command = runner.urxe();
    command
        .args(["demo", "--skip-pingpong", "--device", "urxe_lo"])
        .args(["--mtu", "4096", "--round-trips", "10"])
        .args(["--size", &SIZE.to_string()])
        .args(["--iterations", &MESSAGES.to_string()])
        .args(["--atomics", &ATOMICS.to_string()])
        .env("URXE_PCAP", directory.path().join("%p.pcapng"));
    run("urxe demo", command, LIMIT).success();

    let files: Vec<_> = fs::read_dir(directory.path())
        .expect("a directory of one's own")
        .map(|entry| entry.expect("a file").path())
        .collect();
    assert_eq!(files.len(), 2, "one for each process: {files:?}");
    for file in files {
        let packets = dissect(&file);
        assert_every_icrc(&file, packets.len());
        // All opcodes but SEND with invalidate.
        let all = opcode::SEND_FIRST..=opcode::FETCH_AND_ADD;
        assert_eq!(opcodes(&packets), all.collect());

        // The headers between BTH and payload have the requested values. Captures include
        // retransmitted requests.
        let of = |opcode: u32, field: &str| {
            let filter = format!("infiniband.bth.opcode == {opcode}");
            values(&file, &filter, field)
        };
        let lengths = of(opcode::WRITE_FIRST, "infiniband.reth.dmalen");
        assert!(lengths.len() >= 2 * MESSAGES, "{lengths:?}");
        let size = SIZE.to_string();
        assert!(lengths.iter().all(|length| *length == size), "{lengths:?}");
        for opcode in [
            opcode::SEND_LAST_WITH_IMMEDIATE,
            opcode::WRITE_LAST_WITH_IMMEDIATE,
        ] {
            let immediate: BTreeSet<_> = of(opcode, "infiniband.immdt").into_iter().collect();
            assert!(immediate.len() >= MESSAGES, "{immediate:?}");
        }
        for opcode in [opcode::COMPARE_AND_SWAP, opcode::FETCH_AND_ADD] {
            let asked = packets.iter().filter(|packet| packet.opcode == opcode);
            assert!(asked.count() >= ATOMICS, "opcode {opcode}");
        }
    }
}

/// Returns a pair at a cable on which the kernel segments batches, and a directory for captures.
fn at_a_cable(interface_mtu: u32, ipv6: bool) -> Option<(VethPair, Pingpong, Directory)> {
    if !require(&[PINGPONG, TSHARK, IP, Need::Scapy, Need::NetworkNamespaces]) {
        return None;
    }
    let cable = VethPair::new(&Runner::here(), interface_mtu);
    cable.disable_gso();
    let mut server = Side::new(cable.a.runner(), "urxe_va");
    let mut client = Side::new(cable.b.runner(), "urxe_vb");
    if ipv6 {
        server.gid_index = DeviceInfo::query(&server.runner, "urxe_va").gid_index(VethPair::A6);
        client.gid_index = DeviceInfo::query(&client.runner, "urxe_vb").gid_index(VethPair::B6);
    }
    Some((
        cable,
        Pingpong::new(server, client, VethPair::A),
        Directory::new(),
    ))
}

/// Captures at the far end of a cable the packets that the kernel makes of urxe's batches.
fn sniffed(interface_mtu: u32, ipv6: bool, options: &str) -> Option<Vec<Packet>> {
    let (cable, pingpong, directory) = at_a_cable(interface_mtu, ipv6)?;
    let file = directory.path().join("cable.pcapng");
    let sniffer = Sniffer::start(&cable.b, "vb", &file);
    let pingpong = pingpong.options(options);
    for (size, iterations) in [(1, 10), (4096, 10), (100_000, 5)] {
        pingpong
            .clone()
            .size(size)
            .iterations(iterations)
            .run()
            .success();
    }
    let file = sniffer.stop();

    let packets = dissect(&file);
    assert_every_icrc(&file, packets.len());
    Some(packets)
}

#[test]
fn packets_at_mtu_1500_have_the_icrc_of_their_own_header() {
    let Some(packets) = sniffed(1500, false, "-c") else {
        return;
    };
    assert_eq!(largest_payload(&packets), 1024);
    // The kernel must have numbered the packets of batches, or the test would be void.
    assert!(
        packets
            .iter()
            .any(|packet| packet.identification.is_some_and(|id| id > 1))
    );
}

#[test]
fn packets_at_mtu_9000_have_the_icrc_of_their_own_header() {
    let Some(packets) = sniffed(9000, false, "-c -m 4096") else {
        return;
    };
    assert_eq!(largest_payload(&packets), 4096);
    assert!(
        packets
            .iter()
            .any(|packet| packet.identification.is_some_and(|id| id > 1))
    );
}

#[test]
fn ipv6_packets_have_the_icrc_of_their_own_header() {
    let Some(packets) = sniffed(1500, true, "-c") else {
        return;
    };
    assert_eq!(largest_payload(&packets), 1024);
    assert!(packets.iter().all(|packet| packet.identification.is_none()));
}

/// Compares the headers in `URXE_PCAP`, which urxe computes, with those of the kernel's capture.
fn urxe_and_kernel_capture_the_same(ipv6: bool) {
    let Some((cable, mut pingpong, directory)) = at_a_cable(1500, ipv6) else {
        return;
    };
    let [kernel, urxe] =
        ["kernel", "urxe"].map(|name| directory.path().join(format!("{name}.pcapng")));
    pingpong.client = pingpong
        .client
        .env("URXE_PCAP", &urxe.display().to_string());
    let sniffer = Sniffer::start(&cable.b, "vb", &kernel);
    pingpong.size(20_000).iterations(10).run().success();
    let [kernel, urxe] = [sniffer.stop(), urxe].map(|file| dissect(&file));

    // The captures may differ in the order of packets that cross each other.
    let unknown: Vec<_> = urxe
        .iter()
        .filter(|packet| !kernel.contains(packet))
        .collect();
    assert!(
        unknown.is_empty(),
        "not in the kernel's capture: {unknown:#?}"
    );
    // The kernel's capture also has packets that arrived after the program's end.
    let missing = kernel
        .iter()
        .filter(|packet| !urxe.contains(packet))
        .count();
    assert!(
        missing <= 4,
        "urxe's capture lacks {missing} of {} packets",
        kernel.len()
    );
}

#[test]
fn urxe_pcap_shows_the_true_headers() {
    urxe_and_kernel_capture_the_same(false);
}

#[test]
fn urxe_pcap_shows_the_true_headers_over_ipv6() {
    urxe_and_kernel_capture_the_same(true);
}

/// A CNP of a ConnectX-4 Lx from scapy's public tests, from Ethernet header to ICRC.
const CNP_OF_A_NIC: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201\
                            000012b7002800008100ffff40000118000000000000000000000000000000000000\
                            000082fd002a";

#[test]
fn icrc_check_detects_a_wrong_icrc() {
    if !require(&[Need::Scapy]) {
        return;
    }
    let digits = CNP_OF_A_NIC.as_bytes().chunks_exact(2);
    let frame: Vec<u8> = digits
        .map(|digits| u8::from_str_radix(&String::from_utf8_lossy(digits), 16).expect("hex"))
        .collect();
    let mut corrupt = frame.clone();
    corrupt[60] ^= 1;

    let directory = Directory::new();
    let file = directory.path().join("cnp.pcap");
    write_pcap(&file, &[&frame]);
    assert_every_icrc(&file, 1);
    write_pcap(&file, &[&frame, &corrupt]);
    let verdict = check_icrc(&file);
    assert_eq!(verdict.status.code(), Some(1), "{verdict}");
    assert!(verdict.stdout.contains("checked 2, wrong 1"), "{verdict}");
}

/// Writes Ethernet frames in the classic pcap format.
fn write_pcap(file: &Path, frames: &[&[u8]]) {
    const MAGIC: u32 = 0xa1b2_c3d4;
    const VERSION: [u16; 2] = [2, 4];
    const SNAP_LENGTH: u32 = 0xffff;
    const ETHERNET: u32 = 1;
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(VERSION.iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend(
        [0, 0, SNAP_LENGTH, ETHERNET]
            .iter()
            .flat_map(|number: &u32| number.to_le_bytes()),
    );
    for frame in frames {
        let length = u32::try_from(frame.len()).expect("a frame is short");
        bytes.extend(
            [0, 0, length, length]
                .iter()
                .flat_map(|number: &u32| number.to_le_bytes()),
        );
        bytes.extend_from_slice(frame);
    }
    fs::write(file, bytes).expect("a file of one's own");
}
