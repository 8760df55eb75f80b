//! Errors that new users meet: programs must end soon, with a message that names the remedy.

use std::time::Duration;

use crate::common::namespace::Namespace;
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{DEVINFO, IP, Need, PINGPONG, require};
use crate::common::run::{Running, run};
use crate::common::runner::{Directory, Runner};

const LIMIT: Duration = Duration::from_secs(60);

/// Binds a UDP port exclusively, and reports that in a file.
const PORT_HOLDER: &str = "
import socket, sys, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((sys.argv[1], 4791))
open(sys.argv[2], 'w').close()
time.sleep(600)
";

#[test]
fn port_4791_taken_by_another_program() {
    let python = Need::Program("python3", "python3");
    if !require(&[PINGPONG, IP, python, Need::NetworkNamespaces]) {
        return;
    }
    for address in ["127.0.0.1", "0.0.0.0"] {
        let namespace = Namespace::new(&Runner::here()).loopback_up();
        let directory = Directory::new();
        let ready = directory.path().join("ready");
        let mut command = namespace.runner().command("python3");
        command.args(["-c", PORT_HOLDER, address]).arg(&ready);
        let mut holder = Running::start("the holder of the port", command);
        while !ready.exists() {
            assert!(holder.is_running(), "{}", holder.finish(LIMIT));
            std::thread::sleep(crate::common::run::POLL_INTERVAL);
        }

        let ended = Pingpong::over_loopback(namespace.runner()).run();
        for refused in [&ended.server, &ended.client] {
            assert_eq!(refused.status.code(), Some(1), "{refused}");
            // The message must name port, address and a remedy.
            for word in ["4791", "127.0.0.1", "unshare -rn"] {
                assert!(refused.stderr.contains(word), "no {word} in: {refused}");
            }
        }
    }
}

#[test]
fn unknown_device() {
    if !require(&[PINGPONG]) {
        return;
    }
    let side = Side::new(&Runner::here(), "urxe_nonesuch");
    let refused = Pingpong::new(side.clone(), side, "127.0.0.1").run_server_alone();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused.stderr.contains("urxe_nonesuch not found"),
        "{refused}"
    );
}

#[test]
fn no_interface_is_up() {
    if !require(&[DEVINFO, PINGPONG, IP, Need::UserNamespaces]) {
        return;
    }
    let namespace = Namespace::new_with_user(&Runner::here());
    let devices = run(
        "ibv_devices",
        namespace.runner().verbs("ibv_devices"),
        LIMIT,
    )
    .success();
    assert!(!devices.stdout.contains("urxe_"), "{devices}");

    let refused = Pingpong::over_loopback(namespace.runner()).run_server_alone();
    assert_eq!(refused.status.code(), Some(1), "{refused}");

    // `urxe devices` names the interface that is down, and the remedy.
    let mut command = namespace.runner().urxe();
    command.arg("devices");
    let devices = run("urxe devices", command, LIMIT);
    let printed = [devices.stdout.as_str(), &devices.stderr].concat();
    assert!(
        printed.contains("lo") && printed.contains("ip link set"),
        "{devices}"
    );
}

#[test]
fn gid_index_missing() {
    if !require(&[PINGPONG]) {
        return;
    }
    let mut pingpong = Pingpong::over_loopback(&Runner::alone());
    pingpong.server.gid_index = 999;
    let refused = pingpong.run_server_alone();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused.stderr.contains("can't read sgid of index 999"),
        "{refused}"
    );
}

#[test]
fn invalid_faults_are_reported() {
    if !require(&[PINGPONG]) {
        return;
    }
    let side = Side::new(&Runner::alone(), "urxe_lo").env("URXE_FAULTS", "drop=lots");
    let refused = Pingpong::new(side.clone(), side, "127.0.0.1").run_server_alone();
    assert!(!refused.timed_out && !refused.status.success(), "{refused}");
    assert!(refused.stderr.contains("URXE_FAULTS"), "{refused}");
    assert!(refused.stderr.contains("lots"), "{refused}");
}

#[test]
fn unwritable_capture_file_is_reported() {
    if !require(&[PINGPONG]) {
        return;
    }
    let path = "/nonexistent-directory/capture.pcapng";
    let side = Side::new(&Runner::alone(), "urxe_lo").env("URXE_PCAP", path);
    let refused = Pingpong::new(side.clone(), side, "127.0.0.1").run_server_alone();
    assert!(!refused.timed_out && !refused.status.success(), "{refused}");
    assert!(refused.stderr.contains(path), "{refused}");
}

#[test]
fn missing_gid_option_is_reported() {
    if !require(&[PINGPONG]) {
        return;
    }
    // Without the option, ibv_rc_pingpong uses a negative index.
    let pingpong = Pingpong::over_loopback(&Runner::alone()).options("-g -1");
    let ended = pingpong.run();
    assert!(
        ended.server.stderr.contains("`ibv_rc_pingpong -g 0`"),
        "{}",
        ended.server
    );
}
