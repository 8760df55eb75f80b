//! Eight hosts on a bridge, each of which exchanges data with every other one at the same time.

use std::time::Duration;

use crate::common::namespace::Cluster;
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, PERFTEST, require};
use crate::common::run::Running;
use crate::common::runner::Runner;
use crate::common::tcp;

const HOSTS: usize = 8;
const LIMIT: Duration = Duration::from_secs(90);
/// The TCP port of a host's server for its first peer.
const PORT: u16 = 18_600;

/// Starts `ib_send_bw`, which sends in both directions.
fn start(runner: &Runner, port: u16, host: Option<&str>) -> Running {
    let mut command = runner.verbs("ib_send_bw");
    // The device, and the GID of its IPv4 address, are the default.
    command
        .args(["-b", "-F", "-n", "64", "-s", "16384", "-x", "0"])
        .args(["-p", &port.to_string()])
        .args(host);
    Running::start(format!("ib_send_bw {port} {host:?}"), command)
}

#[test]
fn every_host_of_a_cluster_exchanges_data_with_every_other() {
    if !require(&[PERFTEST, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cluster = Cluster::new(&Runner::here(), HOSTS);
    let _exclusive = exclusive();
    let pairs: Vec<(usize, usize)> = (0..HOSTS)
        .flat_map(|server| (server + 1..HOSTS).map(move |client| (server, client)))
        .collect();
    let port = |client: usize| PORT + u16::try_from(client).expect("few");
    let servers: Vec<Running> = pairs
        .iter()
        .map(|(server, client)| {
            let runner = cluster.hosts[*server].runner();
            tcp::wait_for(start(runner, port(*client), None), port(*client), LIMIT)
        })
        .collect();
    let clients: Vec<Running> = pairs
        .iter()
        .map(|(server, client)| {
            let to = Cluster::address(*server);
            start(cluster.hosts[*client].runner(), port(*client), Some(&to))
        })
        .collect();
    for side in clients.into_iter().chain(servers) {
        let finished = side.finish(LIMIT).success();
        // The row of the result: size and iterations.
        let mut rows = finished.stdout.lines().map(str::split_whitespace);
        let is_result = |row: std::str::SplitWhitespace<'_>| row.take(2).eq(["16384", "64"]);
        assert!(rows.any(is_result), "{finished}");
    }
}
