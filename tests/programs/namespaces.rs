//! `ibv_rc_pingpong` between network namespaces, as an unprivileged user, and in a user namespace.

use crate::common::devices::DeviceInfo;
use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{DEVINFO, IP, Need, PINGPONG, is_root, require};
use crate::common::runner::Runner;

/// Returns a pair with the server at `va` and the client at `vb`.
fn across(cable: &VethPair) -> Pingpong {
    let server = Side::new(cable.a.runner(), "urxe_va");
    let client = Side::new(cable.b.runner(), "urxe_vb");
    Pingpong::new(server, client, VethPair::A)
}

fn cable(interface_mtu: u32) -> Option<VethPair> {
    require(&[PINGPONG, IP, Need::NetworkNamespaces])
        .then(|| VethPair::new(&Runner::here(), interface_mtu))
}

fn over_ipv4(interface_mtu: u32, path_mtus: &[u32]) {
    let Some(cable) = cable(interface_mtu) else {
        return;
    };
    let pingpong = across(&cable);
    pingpong.run().success();
    pingpong.clone().options("-e -c").run().success();
    for mtu in path_mtus {
        let pingpong = pingpong.clone().options(&format!("-c -m {mtu}"));
        pingpong.clone().size(1).iterations(300).run().success();
        pingpong
            .clone()
            .size(1 << 20)
            .iterations(20)
            .run()
            .success();
    }
}

fn over_ipv6(interface_mtu: u32, path_mtu: u32) {
    let Some(cable) = cable(interface_mtu) else {
        return;
    };
    let server = DeviceInfo::query(cable.a.runner(), "urxe_va").gid_index(VethPair::A6);
    let client = DeviceInfo::query(cable.b.runner(), "urxe_vb").gid_index(VethPair::B6);
    let mut pingpong = across(&cable)
        .gids(server, client)
        .options(&format!("-c -m {path_mtu}"));
    // IPv6 only, including the TCP connection.
    VethPair::A6.clone_into(&mut pingpong.host);
    pingpong.clone().size(1).iterations(300).run().success();
    let ended = pingpong.size(1 << 20).iterations(20).run().success();
    assert!(
        ended
            .server
            .stdout
            .contains(&format!("GID {}", VethPair::B6)),
        "{}",
        ended.server
    );
}

#[test]
fn between_namespaces_at_mtu_1500() {
    over_ipv4(1500, &[256, 512, 1024]);
}

#[test]
fn between_namespaces_at_mtu_9000() {
    over_ipv4(9000, &[1024, 2048, 4096]);
}

#[test]
fn between_namespaces_over_ipv6_at_mtu_1500() {
    over_ipv6(1500, 1024);
}

#[test]
fn between_namespaces_over_ipv6_at_mtu_9000() {
    over_ipv6(9000, 4096);
}

#[test]
fn between_namespaces_over_link_local_addresses() {
    let Some(cable) = cable(1500) else { return };
    let link_local = |runner: &Runner, device: &str| {
        let gids = DeviceInfo::query(runner, device).gids();
        let found = gids
            .into_iter()
            .find(|(_, gid)| gid.is_unicast_link_local());
        found.expect("each interface has a link-local address").0
    };
    let server = link_local(cable.a.runner(), "urxe_va");
    let client = link_local(cable.b.runner(), "urxe_vb");
    across(&cable)
        .gids(server, client)
        .options("-c")
        .size(10_000)
        .run()
        .success();
}

#[test]
fn between_namespaces_where_the_kernel_segments_batches() {
    let Some(cable) = cable(1500) else { return };
    cable.disable_gso();
    across(&cable)
        .options("-c")
        .size(1 << 20)
        .iterations(20)
        .run()
        .success();
}

#[test]
fn two_interfaces_of_one_host() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    // Packets between a host's own addresses go through the loopback interface.
    let cable = VethPair::new(&Runner::here(), 1500);
    cable.a.ip("link set lo up");
    let side = Side::new(cable.a.runner(), "urxe_va");
    Pingpong::new(side.clone(), side, VethPair::A)
        .options("-c")
        .run()
        .success();
}

/// Runs the options that depend on the network: events, large messages, path MTUs.
#[track_caller]
fn runs_every_way(pingpong: &Pingpong) {
    pingpong.run().success();
    for options in ["-e", "-c", "-N", "-r 1", "-m 256", "-m 4096"] {
        let pingpong = pingpong.clone().options(options);
        pingpong.iterations(300).run().success();
    }
    let large = pingpong.clone().options("-c").size(8 << 20);
    large.iterations(4).run().success();
}

#[test]
fn as_a_user_without_privileges() {
    if !require(&[PINGPONG, DEVINFO])
        || (is_root() && !require(&[Need::Program("setpriv", "util-linux")]))
    {
        return;
    }
    let runner = Runner::alone().unprivileged();
    let pingpong = Pingpong::over_loopback(&runner);
    runs_every_way(&pingpong);
    let ipv6 = DeviceInfo::query(&runner, "urxe_lo").gid_index("::1");
    pingpong.gids(ipv6, ipv6).options("-c").run().success();
}

#[test]
fn two_users_on_one_address() {
    if !require(&[PINGPONG, Need::Program("setpriv", "util-linux"), Need::Root]) {
        return;
    }
    // The processes of one user share port 4791; those of another user get an error.
    let runner = Runner::alone();
    let first = Pingpong::over_loopback(&runner);
    let held = first.iterations(1_000_000_000);
    let _exclusive = crate::common::pingpong::exclusive();
    let mut pair = held.start();
    let side = Side::new(&runner.unprivileged(), "urxe_lo");
    let ended = Pingpong::new(side.clone(), side, "127.0.0.1")
        .start()
        .finish();
    for refused in [&ended.server, &ended.client] {
        assert!(!refused.status.success() && !refused.timed_out, "{refused}");
        assert!(refused.stderr.contains("4791"), "{refused}");
    }
    assert!(pair.is_running(), "{}", pair.finish().server);
}

#[test]
fn in_a_user_and_network_namespace() {
    if !require(&[PINGPONG, IP, Need::UserNamespaces]) {
        return;
    }
    let namespace = Namespace::new_with_user(&Runner::here()).loopback_up();
    let pingpong = Pingpong::over_loopback(namespace.runner());
    runs_every_way(&pingpong);
}

#[test]
fn between_namespaces_without_any_privilege() {
    if !require(&[PINGPONG, IP, Need::UserNamespaces]) {
        return;
    }
    let unprivileged = Runner::here().unprivileged();
    let a = Namespace::new_with_user(&unprivileged);
    let cable = VethPair::join(a, 1500);
    across(&cable)
        .options("-c")
        .size(1 << 20)
        .iterations(20)
        .run()
        .success();
}
