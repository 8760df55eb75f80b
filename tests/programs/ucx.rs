//! `ucx_perftest` over datagrams and connections. UCX finds its devices in sysfs.

use std::time::Duration;

use crate::common::namespace::Namespace;
use crate::common::pingpong::exclusive;
use crate::common::place::Place;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, Running};
use crate::common::tcp::{self, free_port};

const LIMIT: Duration = Duration::from_secs(60);

/// A server and a client over the loopback interface, which transfer messages of `size` bytes by
/// this transport of UCX.
fn passes(transport: &str, test: &str, size: u32) {
    if !require(&[
        Need::Program("ucx_perftest", "ucx-utils"),
        IP,
        Need::NetworkNamespaces,
    ]) {
        return;
    }
    let namespace = Namespace::new(&Place::here()).loopback_up();
    let _turn = exclusive();
    let port = free_port();
    let start = |role: &str, host: Option<&str>| {
        let mut command = namespace.place().urxe();
        command
            .args(["run", "--sysfs", "preload", "--", "ucx_perftest"])
            .args(host)
            .args(["-t", test, "-n", "1000", "-w", "10"])
            .args(["-s", &size.to_string(), "-p", &port.to_string()])
            .env("UCX_TLS", transport)
            .env("UCX_NET_DEVICES", "urxe_lo:1");
        Running::start(format!("ucx_perftest {role} {transport} {test}"), command)
    };
    let server = tcp::wait_for(start("server", None), port, LIMIT);
    let client = start("client", Some("127.0.0.1")).finish(LIMIT);
    let server = server.finish(match client.status.success() {
        true => LIMIT,
        false => Duration::from_secs(2),
    });
    let good = |side: &Finished| side.status.success() && !side.timed_out;
    let finished = client.stdout.lines().any(|line| line.starts_with("Final:"));
    assert!(
        good(&server) && good(&client) && finished,
        "{server}\n\n{client}"
    );
}

/// UCX before 1.19 distinguishes IPv4 from IPv6 by the service level of the receive completion, and
/// drops datagrams whose header it takes for the other one.
#[test]
fn ucx_transfers_over_datagrams() {
    passes("ud_verbs", "tag_lat", 64);
    passes("ud_verbs", "tag_bw", 65_536);
}

#[test]
fn ucx_transfers_over_connections() {
    // With datagrams for wire-up.
    passes("rc_v", "tag_lat", 64);
}
