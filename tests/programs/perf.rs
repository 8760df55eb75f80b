//! `urxe ping` and `urxe perf` between two hosts.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::namespace::VethPair;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, POLL_INTERVAL, Running, run};
use crate::common::runner::Runner;

const LIMIT: Duration = Duration::from_secs(90);
const MTU: u32 = 1500;

/// Two hosts, of which one listens.
struct Hosts {
    cable: VethPair,
    _listener: Running,
}

impl Hosts {
    fn new() -> Option<Self> {
        if !require(&[IP, Need::NetworkNamespaces]) {
            return None;
        }
        let cable = VethPair::new(&Runner::here(), MTU);
        let mut listener = cable.b.runner().urxe();
        listener.args(["perf", "--listen"]);
        let listener = Running::start("urxe perf --listen", listener);
        let deadline = Instant::now() + LIMIT;
        while !listener.has_printed("listening at port") {
            assert!(Instant::now() < deadline, "{}", listener.finish(LIMIT));
            std::thread::sleep(POLL_INTERVAL);
        }
        Some(Self {
            cable,
            _listener: listener,
        })
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let mut command = self.cable.a.runner().urxe();
        command.args(arguments);
        run("urxe", command, LIMIT)
    }

    /// Runs with `--json` and returns the report.
    #[track_caller]
    fn report(&self, arguments: &[&str]) -> Value {
        let finished = self.run(&[arguments, &["--json"]].concat()).success();
        serde_json::from_str(&finished.stdout).expect("one line of JSON")
    }
}

#[test]
fn every_operation_is_measured() {
    let Some(hosts) = Hosts::new() else { return };
    for operation in ["write", "read", "send", "atomic"] {
        let size = if operation == "atomic" { 8 } else { 3000 };
        let report = hosts.report(&[
            "perf",
            VethPair::B,
            "--op",
            operation,
            "--size",
            "3000",
            "--qps",
            "3",
            "--duration",
            "0.3",
        ]);
        let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{report}"));
        assert_eq!(number("size"), f64::from(size), "{report}");
        // Each of the outstanding operations completes at least once.
        assert!(number("operations") >= 48.0, "{report}");
        assert_eq!(number("bytes"), number("operations") * number("size"));
        assert!(number("cpu_seconds") > 0.0, "{report}");
        let latency = |name: &str| report["latency_us"][name].as_f64().expect("a number");
        assert!(latency("min") > 0.0, "{report}");
        assert!(latency("p50") <= latency("p99") && latency("p99") <= latency("max"));
    }
}

#[test]
fn histogram_and_rates_are_printed() {
    let Some(hosts) = Hosts::new() else { return };
    let finished = hosts
        .run(&["perf", VethPair::B, "--duration", "0.2", "--depth", "1"])
        .success();
    for part in [
        "write of 65536 bytes",
        "throughput",
        "GB/s",
        "s/GB",
        "p99.9",
        "█",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {finished}");
    }
}

#[test]
fn pings_are_echoed() {
    let Some(hosts) = Hosts::new() else { return };
    let arguments = ["ping", VethPair::B, "--count", "4", "--interval", "0"];
    let finished = hosts.run(&arguments).success();
    let echoes = finished.stdout.matches("64 bytes from").count();
    assert_eq!(echoes, 4, "{finished}");
    let large = [&arguments[..], &["--size", "100000"]].concat();
    let report = hosts.report(&large);
    assert_eq!(report["operations"], 4, "{report}");
    assert_eq!(report["size"], 100_000, "{report}");
}

#[test]
fn retransmissions_are_counted() {
    let Some(hosts) = Hosts::new() else { return };
    let mut command = hosts.cable.a.runner().urxe();
    command
        .args(["perf", VethPair::B, "--duration", "1", "--json"])
        .env("URXE_FAULTS", "drop=2%,seed=5");
    let finished = run("urxe perf", command, LIMIT).success();
    let report: Value = serde_json::from_str(&finished.stdout).expect("one line of JSON");
    assert!(report["retransmitted"].as_u64() > Some(0), "{report}");
}

#[test]
fn absent_listener_is_explained() {
    let Some(hosts) = Hosts::new() else { return };
    let finished = hosts.run(&["ping", VethPair::B, "--port", "7"]);
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    for part in ["cannot connect to", "urxe perf --listen", "urxe doctor"] {
        assert!(finished.stderr.contains(part), "{part}: {finished}");
    }
}
