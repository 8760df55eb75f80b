//! What a newcomer meets first when something is wrong: it must end soon, and say what to do.

use std::time::Duration;

use crate::common::namespace::Namespace;
use crate::common::pingpong::{Pingpong, Side};
use crate::common::place::{Directory, Place};
use crate::common::require::{DEVINFO, IP, Need, PINGPONG, require};
use crate::common::run::{Running, run};

const LIMIT: Duration = Duration::from_secs(20);

/// Binds a UDP port for itself alone, says so in a file, and holds it.
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
        let namespace = Namespace::new(&Place::here()).loopback_up();
        let directory = Directory::new();
        let ready = directory.path().join("ready");
        let mut command = namespace.place().command("python3");
        command.args(["-c", PORT_HOLDER, address]).arg(&ready);
        let mut holder = Running::start("the holder of the port", command);
        while !ready.exists() {
            assert!(holder.is_running(), "{}", holder.finish(LIMIT));
            std::thread::sleep(crate::common::run::LOOK);
        }

        let ended = Pingpong::over_loopback(namespace.place()).run();
        for refused in [&ended.server, &ended.client] {
            assert_eq!(refused.status.code(), Some(1), "{refused}");
            // Which port of which address, and a way out.
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
    let side = Side::new(&Place::here(), "urxe_nonesuch");
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
    let namespace = Namespace::new_with_user(&Place::here());
    let devices = run("ibv_devices", namespace.place().verbs("ibv_devices"), LIMIT).success();
    assert!(!devices.stdout.contains("urxe_"), "{devices}");

    let refused = Pingpong::over_loopback(namespace.place()).run_server_alone();
    assert_eq!(refused.status.code(), Some(1), "{refused}");

    // Our own command names the interface that is down, and how to bring it up.
    let mut command = namespace.place().urxe();
    command.arg("devices");
    let devices = run("urxe devices", command, LIMIT);
    let said = [devices.stdout.as_str(), &devices.stderr].concat();
    assert!(
        said.contains("lo") && said.contains("ip link set"),
        "{devices}"
    );
}

#[test]
fn gid_index_missing() {
    if !require(&[PINGPONG]) {
        return;
    }
    let mut pingpong = Pingpong::over_loopback(&Place::alone());
    pingpong.server.gid_index = 999;
    let refused = pingpong.run_server_alone();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused.stderr.contains("can't read sgid of index 999"),
        "{refused}"
    );
}

#[test]
fn faults_that_cannot_be_understood() {
    if !require(&[PINGPONG]) {
        return;
    }
    let side = Side::new(&Place::alone(), "urxe_lo").env("URXE_FAULTS", "drop=lots");
    let refused = Pingpong::new(side.clone(), side, "127.0.0.1").run_server_alone();
    assert!(!refused.timed_out && !refused.status.success(), "{refused}");
    assert!(refused.stderr.contains("URXE_FAULTS"), "{refused}");
    assert!(refused.stderr.contains("lots"), "{refused}");
}

#[test]
fn capture_file_that_cannot_be_written() {
    if !require(&[PINGPONG]) {
        return;
    }
    let path = "/nonexistent-directory/capture.pcapng";
    let side = Side::new(&Place::alone(), "urxe_lo").env("URXE_PCAP", path);
    let refused = Pingpong::new(side.clone(), side, "127.0.0.1").run_server_alone();
    assert!(!refused.timed_out && !refused.status.success(), "{refused}");
    assert!(refused.stderr.contains(path), "{refused}");
}

#[test]
fn option_for_the_gid_forgotten() {
    if !require(&[PINGPONG]) {
        return;
    }
    // A negative index is what ibv_rc_pingpong goes by without the option.
    let pingpong = Pingpong::over_loopback(&Place::alone()).options("-g -1");
    let ended = pingpong.run();
    assert!(ended.server.stderr.contains("`-g 0`"), "{}", ended.server);
}
