//! `urxe dissect` on captures of urxe and of the kernel, compared with Wireshark's dissection.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::common::capture::{self, Sniffer};
use crate::common::namespace::Namespace;
use crate::common::pingpong::Pingpong;
use crate::common::require::{IP, Need, PINGPONG, TSHARK, require};
use crate::common::run::{Finished, run};
use crate::common::runner::{Directory, Runner};
use crate::connection_manager::{RPING, Server, TCP};

const LIMIT: Duration = Duration::from_secs(120);

fn run_dissect(arguments: &[&str], file: &Path) -> Finished {
    let mut command = Runner::here().urxe();
    command.arg("dissect").args(arguments).arg(file);
    run("urxe dissect", command, LIMIT)
}

/// Returns the report on a capture in which no rule is broken.
#[track_caller]
fn faultless(file: &Path) -> Value {
    let finished = run_dissect(&["--json", "--packets", "--check"], file).success();
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// Returns how many findings are of a kind.
fn count(report: &Value, kind: &str) -> usize {
    let findings = report["findings"].as_array().expect("a list").iter();
    findings.filter(|finding| finding["kind"] == kind).count()
}

/// Checks that the packets are those that Wireshark finds.
#[track_caller]
fn assert_same_packets(report: &Value, file: &Path) {
    let list = report["list"].as_array().expect("a list").iter();
    let own: Vec<_> = list
        .map(|packet| [&packet["opcode"], &packet["qp"], &packet["psn"]].map(Value::as_u64))
        .collect();
    let packets = capture::dissect(file);
    let expected: Vec<_> = packets
        .iter()
        .map(|packet| {
            [packet.opcode, packet.destination_qp, packet.psn].map(|field| Some(field.into()))
        })
        .collect();
    assert_eq!(own, expected);
    assert_eq!(report["icrc"]["right"], packets.len());
}

#[test]
fn own_capture_is_faultless_and_as_wireshark_reads_it() {
    if !require(&[PINGPONG, TSHARK]) {
        return;
    }
    let directory = Directory::new();
    let file = directory.path().join("client.pcapng");
    let runner = Runner::alone();
    let mut pingpong = Pingpong::over_loopback(&runner).size(10_000).iterations(20);
    pingpong.client = pingpong
        .client
        .env("URXE_PCAP", &file.display().to_string());
    pingpong.run().success();
    let report = faultless(&file);
    assert_same_packets(&report, &file);
    let connections = report["connections"].as_array().expect("a list");
    let [connection] = &connections[..] else {
        panic!("one connection: {report}");
    };
    assert_eq!(connection["transport"], "RC");
    for i in 0..2 {
        assert_eq!(connection["directions"][i]["messages"], 20, "{connection}");
        assert!(!connection["ends"][i]["qp"].is_null(), "{connection}");
    }
}

/// Faults of the network are findings, but none of them violates a rule.
#[test]
fn faults_of_the_network_are_named() {
    let directory = Directory::new();
    let runner = Runner::alone();
    let mut command = runner.urxe();
    command
        .args(["demo", "--skip-pingpong", "--device", "urxe_lo"])
        .args(["--size", "100000", "--iterations", "20"])
        .args(["--atomics", "50", "--round-trips", "50"])
        .env("URXE_FAULTS", "drop=3%,dup=2%,reorder=2%,seed=3")
        .env("URXE_PCAP", directory.path().join("%p.pcapng"));
    run("urxe demo", command, LIMIT).success();
    let files = std::fs::read_dir(directory.path()).expect("a directory of one's own");
    for file in files {
        let report = faultless(&file.expect("a file").path());
        for kind in ["gap", "late", "retransmission", "copy"] {
            assert!(count(&report, kind) > 0, "{kind}: {report}");
        }
        // The connection ends after the last acknowledgement.
        let [there, back] = [0, 1].map(|i| &report["connections"][0]["directions"][i]["missing"]);
        assert!(
            there.as_u64() <= Some(1) && back.as_u64() <= Some(1),
            "{report}"
        );
    }
}

#[test]
fn damaged_packet_fails_the_check() {
    let directory = Directory::new();
    let runner = Runner::alone();
    let mut command = runner.urxe();
    command
        .args(["demo", "--skip-pingpong", "--device", "urxe_lo"])
        .args(["--size", "100000", "--iterations", "20"])
        .env("URXE_FAULTS", "corrupt=3%,seed=3")
        .env("URXE_PCAP", directory.path().join("%p.pcapng"));
    run("urxe demo", command, LIMIT).success();
    let mut wrong = 0;
    for file in std::fs::read_dir(directory.path()).expect("a directory of one's own") {
        let file = file.expect("a file").path();
        let page = file.with_extension("html");
        let page_name = page.to_str().expect("ASCII");
        let finished = run_dissect(&["--json", "--html", page_name], &file).success();
        let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        wrong += report["icrc"]["wrong"].as_u64().expect("a number");
        assert_eq!(count(&report, "rule"), 0, "{report}");
        let check = run_dissect(&["--check"], &file);
        assert_eq!(check.status.code() == Some(1), report["icrc"]["wrong"] != 0);
        assert_page(&page);
    }
    assert!(wrong > 0);
}

/// Checks that a page contains its data and names nothing outside.
fn assert_page(page: &Path) {
    let text = std::fs::read_to_string(page).expect("the page");
    assert!(text.contains("SEND First PSN"));
    let (before, data) = text.split_once("const data = ").expect("data");
    let data = data.lines().next().expect("a line").trim_end_matches(';');
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["connections"].as_array().map(Vec::len), Some(1));
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!before.contains(outside), "{outside}");
    }
}

/// The kernel captures batches at the loopback interface before they are segmented.
#[test]
fn batches_in_a_capture_of_the_kernel_are_split() {
    if !require(&[PINGPONG, TSHARK, IP, Need::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let directory = Directory::new();
    let file = directory.path().join("lo.pcapng");
    let sniffer = Sniffer::start(&namespace, "lo", &file);
    Pingpong::over_loopback(namespace.runner())
        .size(100_000)
        .iterations(10)
        .run()
        .success();
    let report = faultless(&sniffer.stop());
    let number = |name: &str| report[name].as_u64().expect("a number");
    // Twice ten messages of 98 packets.
    assert!(number("packets") > 1960, "{report}");
    assert!(number("frames") < number("packets"), "{report}");
    assert_eq!(report["connections"][0]["mtu"], 1024, "{report}");
}

#[test]
fn connection_manager_pairs_the_directions() {
    if !require(&[RPING, IP, Need::NetworkNamespaces]) {
        return;
    }
    const PORT: u64 = 7174;
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let directory = Directory::new();
    let file = directory.path().join("client.pcapng");
    let runner = namespace.runner();
    let server = "rping -s -p 7174 -a 127.0.0.1 -C 5";
    let _server = Server::start(runner, server, TCP | PORT);
    let mut client = runner.verbs("rping");
    client
        .args(["-c", "-p", "7174", "-a", "127.0.0.1", "-C", "5"])
        .env("URXE_PCAP", &file);
    run("rping", client, LIMIT).success();
    let report = faultless(&file);
    let connections = report["connections"].as_array().expect("a list");
    let data = connections
        .iter()
        .find(|connection| connection["transport"] == "RC");
    assert_eq!(
        data.expect("a connection")["service"],
        "port 7174",
        "{report}"
    );
}
