//! perftest over the loopback interface, and multicast between namespaces.

use crate::common::devices::DeviceInfo;
use crate::common::namespace::{Namespace, VethPair};
use crate::common::perftest::Perftest;
use crate::common::pingpong::Side;
use crate::common::require::{DEVINFO, IP, Need, PERFTEST, require};
use crate::common::runner::Runner;

/// Returns a pair in a private namespace: unreliable services lose packets in transit through
/// another process that shares the port, if that is killed.
fn loopback(program: &'static str) -> Option<(Namespace, Perftest)> {
    if !require(&[PERFTEST, IP, Need::NetworkNamespaces]) {
        return None;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let side = Side::new(namespace.runner(), "urxe_lo");
    let perftest = Perftest::new(program, side.clone(), side, "127.0.0.1");
    Some((namespace, perftest))
}

/// UD has no flow control, so datagrams without room at the receiver are lost. The messages of
/// these tests fit into a socket buffer and the posted receives.
const ITERATIONS: u64 = 100;

fn passes(program: &'static str, options: &str, sizes: &[u64]) {
    let Some((_namespace, perftest)) = loopback(program) else {
        return;
    };
    let perftest = perftest.options(&format!("-n {ITERATIONS} {options}"));
    for size in sizes {
        perftest
            .clone()
            .options(&format!("-s {size}"))
            .run()
            .success(&[*size], ITERATIONS);
    }
}

#[test]
fn send_bandwidth_of_unreliable_connections() {
    passes("ib_send_bw", "-c UC", &[1, 4096]);
    passes("ib_send_bw", "-c UC -e", &[1024]);
}

#[test]
fn unreliable_connection_does_not_overrun_its_receiver() {
    const LONG: u64 = 4 << 20;
    if !require(&[PERFTEST, IP, Need::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    // The kernel's default, which it doubles.
    let side = Side::new(namespace.runner(), "urxe_lo").env("URXE_SOCKET_BUFFER", "212992");
    let perftest = Perftest::new("ib_send_bw", side.clone(), side, "127.0.0.1");
    for queue_pairs in [1, 8] {
        let options = format!("-n {ITERATIONS} -c UC -s {LONG} -q {queue_pairs}");
        let run = perftest.clone().options(&options).run();
        run.success(&[LONG], queue_pairs * ITERATIONS);
    }
}

#[test]
fn send_latency_of_unreliable_connections() {
    passes("ib_send_lat", "-c UC", &[1, 64, 65_536]);
    passes("ib_send_lat", "-c UC -e", &[64]);
}

#[test]
fn write_bandwidth_of_unreliable_connections() {
    passes("ib_write_bw", "-c UC", &[1, 65_536]);
}

#[test]
fn write_latency_of_unreliable_connections() {
    passes("ib_write_lat", "-c UC", &[1, 64, 4096]);
}

#[test]
fn send_bandwidth_of_datagrams() {
    passes("ib_send_bw", "-c UD", &[1, 1024, 2048]);
    passes("ib_send_bw", "-c UD -b", &[256]);
}

#[test]
fn send_bandwidth_of_many_datagram_queue_pairs() {
    let Some((_namespace, perftest)) = loopback("ib_send_bw") else {
        return;
    };
    let perftest = perftest.options(&format!("-n {ITERATIONS} -c UD -q 4 -s 256"));
    // The table has the sum of all queue pairs.
    perftest.run().success(&[256], 4 * ITERATIONS);
}

#[test]
fn send_latency_of_datagrams() {
    passes("ib_send_lat", "-c UD", &[1, 64, 4096]);
    passes("ib_send_lat", "-c UD -e", &[64]);
}

/// Formats a group for perftest: the GID byte by byte, in decimal.
fn group(address: &str) -> String {
    let gid = match address.parse().expect("an address") {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        std::net::IpAddr::V6(ip) => ip,
    };
    gid.octets().map(|byte| byte.to_string()).join(":")
}

#[test]
fn multicast_between_processes_of_a_host() {
    let group = group("239.47.91.10");
    let options = format!("-c UD -g -M {group}");
    passes("ib_send_bw", &options, &[1, 1024]);
    passes("ib_send_lat", &options, &[64]);
}

#[test]
fn multicast_between_hosts() {
    if !require(&[PERFTEST, DEVINFO, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let mut server = Side::new(cable.a.runner(), "urxe_va");
    let mut client = Side::new(cable.b.runner(), "urxe_vb");
    let run = |server: &Side, client: &Side, address: &str| {
        let perftest = Perftest::new("ib_send_bw", server.clone(), client.clone(), VethPair::A);
        let options = format!("-n {ITERATIONS} -s 512 -c UD -g -M {}", group(address));
        perftest.options(&options).run().success(&[512], ITERATIONS);
    };
    run(&server, &client, "239.47.91.11");
    server.gid_index = DeviceInfo::query(cable.a.runner(), "urxe_va").gid_index(VethPair::A6);
    client.gid_index = DeviceInfo::query(cable.b.runner(), "urxe_vb").gid_index(VethPair::B6);
    run(&server, &client, "ff0e::47:91");
}
