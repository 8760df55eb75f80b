//! `ibv_uc_pingpong` and `ibv_ud_pingpong`, over the loopback interface and between namespaces.

use crate::common::devices::DeviceInfo;
use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{DEVINFO, IP, Need, PINGPONG, require};
use crate::common::runner::Runner;

const UC: &str = "ibv_uc_pingpong";
const UD: &str = "ibv_ud_pingpong";

/// Returns a pair in a private namespace: unreliable services lose packets in transit through
/// another process that shares the port, if that is killed.
fn loopback(program: &'static str) -> Option<(Namespace, Pingpong)> {
    if !require(&[PINGPONG, DEVINFO, IP, Need::NetworkNamespaces]) {
        return None;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let pingpong = Pingpong::over_loopback(namespace.runner()).program(program);
    Some((namespace, pingpong))
}

/// Returns a pair with the server at `va` and the client at `vb`.
fn across(cable: &VethPair, program: &'static str) -> Pingpong {
    let server = Side::new(cable.a.runner(), "urxe_va");
    let client = Side::new(cable.b.runner(), "urxe_vb");
    Pingpong::new(server, client, VethPair::A).program(program)
}

fn cable(interface_mtu: u32) -> Option<VethPair> {
    require(&[PINGPONG, DEVINFO, IP, Need::NetworkNamespaces])
        .then(|| VethPair::new(&Runner::here(), interface_mtu))
}

#[test]
fn connections_polling_and_with_events() {
    let Some((_namespace, pingpong)) = loopback(UC) else {
        return;
    };
    pingpong.clone().options("-c").run().success();
    pingpong.options("-c -e").run().success();
}

#[test]
fn connections_with_each_path_mtu_and_size() {
    let Some((_namespace, pingpong)) = loopback(UC) else {
        return;
    };
    for (mtu, size) in [
        (256, 1),
        (512, 513),
        (1024, 30_001),
        (2048, 2048),
        (4096, 100_000),
    ] {
        let pingpong = pingpong.clone().options(&format!("-c -m {mtu}"));
        pingpong.size(size).iterations(300).run().success();
    }
}

#[test]
fn datagrams_polling_and_with_events() {
    let Some((_namespace, pingpong)) = loopback(UD) else {
        return;
    };
    let pingpong = pingpong.size(2048);
    pingpong.clone().options("-c").run().success();
    pingpong.options("-c -e").run().success();
}

#[test]
fn datagrams_of_each_size_up_to_the_mtu() {
    let Some((_namespace, pingpong)) = loopback(UD) else {
        return;
    };
    for size in [1, 2, 3, 4, 5, 255, 1023, 1024, 4095, 4096] {
        let pingpong = pingpong.clone().options("-c");
        pingpong.size(size).iterations(200).run().success();
    }
}

#[test]
fn over_ipv6_gids() {
    for program in [UC, UD] {
        let Some((namespace, pingpong)) = loopback(program) else {
            return;
        };
        let index = DeviceInfo::query(namespace.runner(), "urxe_lo").gid_index("::1");
        let ended = pingpong
            .gids(index, index)
            .options("-c")
            .size(2048)
            .run()
            .success();
        assert!(ended.server.stdout.contains("GID ::1"), "{}", ended.server);
    }
}

#[test]
fn between_namespaces() {
    for program in [UC, UD] {
        let Some(cable) = cable(1500) else { return };
        let pingpong = across(&cable, program).options("-c").size(1024);
        pingpong.run().success();
        pingpong.clone().options("-e").run().success();
        let server = DeviceInfo::query(cable.a.runner(), "urxe_va").gid_index(VethPair::A6);
        let client = DeviceInfo::query(cable.b.runner(), "urxe_vb").gid_index(VethPair::B6);
        let mut over_ipv6 = pingpong.gids(server, client);
        VethPair::A6.clone_into(&mut over_ipv6.host);
        let ended = over_ipv6.run().success();
        assert!(
            ended
                .server
                .stdout
                .contains(&format!("GID {}", VethPair::B6)),
            "{}",
            ended.server
        );
    }
}
