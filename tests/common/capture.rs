//! Captures, and the two programs that verify them: Wireshark's dissector, and scapy's ICRC.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::namespace::Namespace;
use super::require::venv_python;
use super::run::{POLL_INTERVAL, Running, run};

const LIMIT: Duration = Duration::from_secs(120);
const ROCE_PORT: &str = "udp.port == 4791";

/// Opcodes as Wireshark prints them, of the reliable connection unless stated otherwise.
pub mod opcode {
    /// The first packet of a SEND.
    pub const SEND_FIRST: u32 = 0;
    /// A packet in the middle of a SEND.
    pub const SEND_MIDDLE: u32 = 1;
    /// The last packet of a SEND.
    pub const SEND_LAST: u32 = 2;
    /// The last packet of a SEND, with immediate data.
    pub const SEND_LAST_WITH_IMMEDIATE: u32 = 3;
    /// A SEND of a single packet.
    pub const SEND_ONLY: u32 = 4;
    /// The first packet of an RDMA WRITE.
    pub const WRITE_FIRST: u32 = 6;
    /// The last packet of an RDMA WRITE, with immediate data.
    pub const WRITE_LAST_WITH_IMMEDIATE: u32 = 9;
    /// An acknowledgement.
    pub const ACKNOWLEDGE: u32 = 17;
    /// A compare-and-swap.
    pub const COMPARE_AND_SWAP: u32 = 19;
    /// A fetch-and-add.
    pub const FETCH_AND_ADD: u32 = 20;
    /// The first packet of a SEND on an unreliable connection.
    pub const UC_SEND_FIRST: u32 = 32;
    /// A packet in the middle of a SEND on an unreliable connection.
    pub const UC_SEND_MIDDLE: u32 = 33;
    /// The last packet of a SEND on an unreliable connection.
    pub const UC_SEND_LAST: u32 = 34;
    /// A datagram.
    pub const UD_SEND_ONLY: u32 = 100;
}

/// A RoCEv2 packet as Wireshark dissects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: String,
    /// The IPv4 identification; `None` for IPv6.
    pub identification: Option<u32>,
    /// The UDP source port.
    pub source_port: u32,
    /// The UDP length, including the header.
    pub udp_length: u32,
    /// The BTH opcode.
    pub opcode: u32,
    /// The destination queue pair.
    pub destination_qp: u32,
    /// The packet sequence number.
    pub psn: u32,
    /// The ICRC in the byte order of the wire.
    pub icrc: u32,
    /// The IPv4 TTL or the IPv6 hop limit.
    pub hop_limit: u32,
}

impl Packet {
    /// Returns whether the packet belongs to a SEND.
    pub fn is_send(&self) -> bool {
        self.opcode <= opcode::SEND_ONLY
    }

    /// Returns the length of payload and padding of a SEND without immediate data, in bytes.
    pub fn send_payload(&self) -> u32 {
        const UDP_HEADER: u32 = 8;
        const BTH: u32 = 12;
        const ICRC: u32 = 4;
        self.udp_length - UDP_HEADER - BTH - ICRC
    }
}

/// Dissects a capture.
///
/// # Panics
/// If Wireshark finds a packet that is malformed, erroneous or not RoCEv2, or finds no packets.
#[track_caller]
pub fn dissect(capture: &Path) -> Vec<Packet> {
    let suspect = format!(
        "_ws.malformed || _ws.short || _ws.expert.severity == error || \
         ({ROCE_PORT} && !infiniband.bth)"
    );
    let suspects = tshark(capture, &["-Y", &suspect]);
    assert!(
        suspects.is_empty(),
        "tshark objects to packets of {}:\n{suspects}",
        capture.display()
    );

    let fields = [
        "ip.src",
        "ipv6.src",
        "ip.id",
        "udp.srcport",
        "udp.length",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
        "ip.ttl",
        "ipv6.hlim",
    ];
    let mut arguments = vec!["-Y", "infiniband.bth", "-T", "fields"];
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let table = tshark(capture, &arguments);
    let packets: Vec<_> = table.lines().map(parse_packet).collect();
    assert!(
        !packets.is_empty(),
        "no RoCEv2 packet in {}",
        capture.display()
    );
    packets
}

/// Returns a field of each packet that has it and passes `filter`.
#[track_caller]
pub fn values(capture: &Path, filter: &str, field: &str) -> Vec<String> {
    let filter = format!("{field} && {filter}");
    let table = tshark(capture, &["-Y", &filter, "-T", "fields", "-e", field]);
    table.lines().map(str::to_owned).collect()
}

/// Checks every ICRC of a capture of `packets` packets with scapy.
///
/// # Panics
/// If an ICRC is wrong, or the number of packets differs.
#[track_caller]
pub fn assert_every_icrc(capture: &Path, packets: usize) {
    let finished = check_icrc(capture);
    let verdict = finished.stdout.clone();
    finished.success();
    assert_eq!(verdict.trim(), format!("checked {packets}, wrong 0"));
}

/// Runs scapy's ICRC check on a capture.
pub fn check_icrc(capture: &Path) -> super::run::Finished {
    let script = urxe_tests::workspace().join("tests/common/check_icrc.py");
    let mut command = Command::new(venv_python());
    command.arg(script).arg(capture);
    run("check_icrc.py", command, LIMIT)
}

/// A capture by the kernel of all packets of an interface on port 4791.
pub struct Sniffer {
    dumpcap: Running,
    file: PathBuf,
}

impl Sniffer {
    /// Starts the capture, and returns when it is active.
    #[track_caller]
    pub fn start(namespace: &Namespace, interface: &str, file: &Path) -> Self {
        let mut command = namespace.runner().command("dumpcap");
        // A buffer of 64 MiB, so that no packet is dropped.
        command
            .args([
                "-q",
                "-B",
                "64",
                "-i",
                interface,
                "-f",
                "udp port 4791",
                "-w",
            ])
            .arg(file);
        let mut dumpcap = Running::start("dumpcap", command);
        let deadline = Instant::now() + LIMIT;
        // dumpcap writes the file's header when the capture is active.
        while file.metadata().map_or(0, |metadata| metadata.len()) == 0 {
            if !dumpcap.is_running() || Instant::now() > deadline {
                panic!("no capture\n{}", dumpcap.finish(Duration::ZERO));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Self {
            dumpcap,
            file: file.to_owned(),
        }
    }

    /// Stops the capture.
    ///
    /// # Panics
    /// If packets were dropped.
    #[track_caller]
    pub fn stop(self) -> PathBuf {
        // dumpcap writes packets with a delay of up to 200 ms.
        thread::sleep(Duration::from_millis(500));
        self.dumpcap.signal("INT");
        let finished = self.dumpcap.finish(LIMIT).success();
        let complete = finished.stderr.lines().any(|line| {
            line.starts_with("Packets received/dropped") && line.contains("/0 (pcap:0/dumpcap:0")
        });
        assert!(complete, "packets are missing\n{finished}");
        self.file
    }
}

#[track_caller]
fn tshark(capture: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    // Disables the dissector of NFS over RDMA, which claims other messages and calls them
    // malformed.
    command.args(["-n", "--disable-heuristic", "rpcrdma_infiniband"]);
    command.arg("-r").arg(capture).args(arguments);
    run("tshark", command, LIMIT).success().stdout
}

#[track_caller]
fn parse_packet(line: &str) -> Packet {
    let fields: Vec<_> = line.split('\t').collect();
    let [
        ip,
        ipv6,
        identification,
        source_port,
        udp_length,
        opcode,
        destination_qp,
        psn,
        icrc,
        ttl,
        hop_limit,
    ] = fields[..]
    else {
        panic!("unexpected fields in tshark's line {line:?}")
    };
    Packet {
        source: [ip, ipv6].concat(),
        identification: (!identification.is_empty()).then(|| number(identification)),
        source_port: number(source_port),
        udp_length: number(udp_length),
        opcode: number(opcode),
        destination_qp: number(destination_qp),
        psn: number(psn),
        icrc: number(icrc),
        hop_limit: number(&[ttl, hop_limit].concat()),
    }
}

#[track_caller]
fn number(text: &str) -> u32 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("tshark's number {text:?}: {error}"))
}
