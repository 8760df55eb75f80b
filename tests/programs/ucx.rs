//! `ucx_perftest` by every verbs transport of UCX. UCX finds its devices in sysfs.

use std::time::Duration;

use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, Running};
use crate::common::runner::Runner;
use crate::common::tcp::{self, free_port};

const LIMIT: Duration = Duration::from_secs(60);

const NEEDS: [Need; 3] = [
    Need::Program("ucx_perftest", "ucx-utils"),
    IP,
    Need::NetworkNamespaces,
];

/// Two hosts, if UCX is installed. Both have a loopback interface, as hosts do.
fn hosts() -> Option<VethPair> {
    require(&NEEDS).then(|| {
        let cable = VethPair::new(&Runner::here(), 1500);
        cable.a.ip("link set lo up");
        cable.b.ip("link set lo up");
        cable
    })
}

/// One host with a loopback interface only.
fn alone() -> Option<Namespace> {
    require(&NEEDS).then(|| Namespace::new(&Runner::here()).loopback_up())
}

/// Runs `test`, with options after its name, over these transports of UCX: a server with one runner,
/// and a client with another, which connects to `host`.
#[track_caller]
fn passes(server: &Runner, client: &Runner, host: &str, transports: &str, test: &str) {
    let _turn = exclusive();
    let port = free_port();
    let start = |runner: &Runner, role: &str, host: Option<&str>| {
        let mut command = runner.urxe();
        command
            .args(["run", "--sysfs", "preload", "--", "ucx_perftest"])
            .args(host)
            .args(["-p", &port.to_string(), "-w", "10", "-t"])
            .args(test.split(' '))
            .env("UCX_TLS", transports);
        Running::start(format!("ucx_perftest {role} {transports} {test}"), command)
    };
    let server = tcp::wait_for(start(server, "server", None), port, LIMIT);
    let client = start(client, "client", Some(host)).finish(LIMIT);
    let server = server.finish(match client.status.success() {
        true => LIMIT,
        false => Duration::from_secs(2),
    });
    let good = |side: &Finished| {
        let complaint = ["ERROR", "WARN"].map(|word| side.stdout.contains(word));
        side.status.success() && !side.timed_out && complaint == [false; 2]
    };
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
    let Some(host) = alone() else {
        return;
    };
    let here = host.runner();
    for test in ["tag_lat -n 1000 -s 64", "tag_bw -n 1000 -s 65536"] {
        passes(here, here, "127.0.0.1", "ud_verbs", test);
    }
}

/// `rc_v` adds datagrams for wire-up, `ib` is every verbs transport. Large messages use all devices
/// that UCX takes for connected.
#[test]
fn ucx_transfers_between_hosts() {
    let Some(cable) = hosts() else {
        return;
    };
    let (server, client) = (cable.a.runner(), cable.b.runner());
    for transports in ["rc_v", "ud_v", "rc,ud,self", "ib"] {
        for test in ["tag_lat -n 1000 -s 64", "tag_bw -n 50 -s 1000000"] {
            passes(server, client, VethPair::A, transports, test);
        }
    }
}

#[test]
fn ucx_executes_every_operation_between_hosts() {
    let Some(cable) = hosts() else {
        return;
    };
    let (server, client) = (cable.a.runner(), cable.b.runner());
    for transports in ["rc_v", "ud_v"] {
        for test in [
            "tag_sync_lat -n 200 -s 8",
            "ucp_put_lat -n 200 -s 8",
            "ucp_put_bw -n 200 -s 65536",
            "ucp_get -n 200 -s 65536",
            "ucp_add -n 200 -s 8",
            "ucp_fadd -n 200 -s 8",
            "ucp_swap -n 200 -s 8",
            "ucp_cswap -n 200 -s 8",
            "stream_bw -n 200 -s 65536",
            "ucp_am_lat -n 200 -s 8",
            "ucp_am_bw -n 200 -s 65536",
        ] {
            passes(server, client, VethPair::A, transports, test);
        }
    }
}

/// UCX arms after its last poll, and sleeps without another one.
#[test]
fn ucx_sleeps_until_messages_arrive() {
    let Some(cable) = hosts() else {
        return;
    };
    let (server, client) = (cable.a.runner(), cable.b.runner());
    for transports in ["rc_v", "ud_v"] {
        let test = "tag_lat -n 2000 -s 64 -E sleep";
        passes(server, client, VethPair::A, transports, test);
    }
}

/// The default transports, which include shared memory for processes of one host.
#[test]
fn ucx_transfers_on_one_host_by_default() {
    let Some(host) = alone() else {
        return;
    };
    let here = host.runner();
    for transports in ["all", "rc_v"] {
        for test in ["tag_lat -n 1000 -s 64", "tag_bw -n 50 -s 1000000"] {
            passes(here, here, "127.0.0.1", transports, test);
        }
    }
}
