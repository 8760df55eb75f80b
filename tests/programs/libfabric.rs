//! libfabric's `verbs` provider with default settings: connections, and reliable datagrams over
//! them.

use std::time::Duration;

use crate::common::namespace::VethPair;
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, Running, run};
use crate::common::runner::Runner;
use crate::common::tcp;

const LIMIT: Duration = Duration::from_secs(60);

/// The TCP port at which `fi_pingpong` agrees on the transfer.
const PORT: u16 = 47_592;

/// Two hosts, if libfabric's programs are installed.
fn hosts() -> Option<VethPair> {
    let needs = [
        Need::Program("fi_pingpong", "libfabric-bin"),
        IP,
        Need::NetworkNamespaces,
    ];
    require(&needs).then(|| VethPair::new(&Runner::here(), 1500))
}

/// Transfers data between a server with one runner and a client with another, which connects to
/// `to`.
#[track_caller]
fn transfers(server: &Runner, client: &Runner, to: &str, provider: &str, endpoint: &str) {
    let start = |runner: &Runner, to: &[&str]| {
        let mut command = runner.verbs("fi_pingpong");
        command.args(["-p", provider, "-e", endpoint, "-I", "100", "-S", "all"]);
        command.args(["-c"]).args(to);
        Running::start(format!("fi_pingpong {provider} {endpoint} {to:?}"), command)
    };
    let server = tcp::wait_for(start(server, &[]), PORT, LIMIT);
    let client = start(client, &[to]).finish(LIMIT);
    let server = server.finish(match client.status.success() {
        true => LIMIT,
        false => Duration::from_secs(2),
    });
    let good = |side: &Finished| side.status.success() && !side.timed_out;
    assert!(good(&server) && good(&client), "{server}\n\n{client}");
}

#[test]
fn libfabric_finds_a_device_for_each_kind_of_endpoint() {
    let Some(cable) = hosts() else {
        return;
    };
    for (provider, endpoint) in [("verbs", "FI_EP_MSG"), ("verbs;ofi_rxm", "FI_EP_RDM")] {
        let mut command = cable.a.runner().verbs("fi_info");
        command.args(["-p", provider, "-t", endpoint]);
        let info = run("fi_info", command, LIMIT).success();
        assert!(info.stdout.contains("domain: urxe_va"), "{info}");
    }
}

#[test]
fn libfabric_transfers_between_hosts() {
    let Some(cable) = hosts() else {
        return;
    };
    let _exclusive = exclusive();
    let (server, client) = (cable.a.runner(), cable.b.runner());
    transfers(server, client, VethPair::A, "verbs", "msg");
    transfers(server, client, VethPair::A, "verbs;ofi_rxm", "rdm");
}

#[test]
fn libfabric_transfers_over_loopback_addresses() {
    let Some(cable) = hosts() else {
        return;
    };
    let _exclusive = exclusive();
    cable.a.ip("link set lo up");
    let here = cable.a.runner();
    transfers(here, here, "127.0.0.1", "verbs", "msg");
    transfers(here, here, "127.0.0.1", "verbs;ofi_rxm", "rdm");
}
