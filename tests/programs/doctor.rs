//! `urxe doctor` on one host, and between two hosts.

use std::time::{Duration, Instant};

use crate::common::namespace::VethPair;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, Running, run};
use crate::common::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);
const MTU: u32 = 1500;

fn doctor(runner: &Runner, arguments: &[&str]) -> Finished {
    let mut command = runner.urxe();
    command.arg("doctor").args(arguments);
    run("urxe doctor", command, LIMIT)
}

/// Returns the verdict and the text of a check in the output of `--json`.
fn check(finished: &Finished, name: &str) -> (String, String) {
    let lines = finished.stdout.lines();
    let mut checks = lines.map(|line| {
        serde_json::from_str::<serde_json::Value>(line)
            .unwrap_or_else(|error| panic!("{line}: {error}"))
    });
    let check = checks.find(|check| check["check"] == name);
    let check = check.unwrap_or_else(|| panic!("no {name}: {finished}"));
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("found"))
}

#[test]
fn host_with_a_loopback_interface_is_enough() {
    let finished = doctor(&Runner::alone(), &["--json"]).success();
    assert_eq!(check(&finished, "library").0, "ok");
    assert_eq!(check(&finished, "port 4791").0, "ok");
    let (verdict, found) = check(&finished, "device");
    assert_eq!(verdict, "ok");
    assert!(found.contains("urxe_lo"), "{found}");
}

#[test]
fn owner_of_the_port_is_a_failure() {
    if !require(&[
        IP,
        Need::NetworkNamespaces,
        Need::Program("python3", "python3"),
    ]) {
        return;
    }
    let runner = Runner::alone();
    let mut owner = runner.command("python3");
    owner.args([
        "-uc",
        "import socket, time\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.bind(('127.0.0.1', 4791))\n\
         print('bound')\n\
         time.sleep(60)",
    ]);
    let owner = Running::start("owner", owner);
    wait_until(|| owner.has_printed("bound"));
    let finished = doctor(&runner, &["--json"]);
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    let (verdict, found) = check(&finished, "port 4791");
    assert_eq!(verdict, "failure");
    assert!(found.contains("127.0.0.1"), "{found}");
}

#[test]
fn path_mtu_to_a_listening_peer_is_measured() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), MTU);
    let peer = VethPair::B;
    let finished = doctor(cable.a.runner(), &["--json", peer]);
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    let (verdict, found) = check(&finished, "peer");
    assert_eq!(verdict, "failure");
    // Whether the peer is known to be reachable depends on an ICMP error, which its kernel may not
    // send.
    let is_silent = found.contains("does not answer at UDP port 4791");
    assert!(is_silent || found.contains("no program answers"), "{found}");

    let mut listener = cable.b.runner().urxe();
    listener.args(["doctor", "--listen"]);
    let listener = Running::start("urxe doctor --listen", listener);
    wait_until(|| listener.has_printed(peer));
    let finished = doctor(cable.a.runner(), &["--json", peer]).success();
    let (verdict, found) = check(&finished, "peer");
    assert_eq!(verdict, "ok");
    assert!(found.ends_with("path MTU 1024"), "{found}");
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "the program did not print the expected text"
        );
        std::thread::sleep(crate::common::run::POLL_INTERVAL);
    }
}
