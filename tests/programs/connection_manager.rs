//! Debian's unmodified programs of librdmacm: between processes of one host, and over a cable.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, PERFTEST, require};
use crate::common::run::{Finished, POLL_INTERVAL, Running, run};
use crate::common::runner::Runner;

pub const RPING: Need = Need::Program("rping", "rdmacm-utils");

/// Debug builds on a busy machine are slow.
pub const LIMIT: Duration = Duration::from_secs(90);

/// The upper bits of service IDs by port space, as in the names of listeners.
pub const TCP: u64 = 0x0106_0000;
const UDP: u64 = 0x0111_0000;
const IB: u64 = 0x013f_0000;

/// A listening server.
pub struct Server {
    runner: Runner,
    running: Running,
}

impl Server {
    /// Starts a program and waits until it listens for `service`.
    #[track_caller]
    pub fn start(runner: &Runner, command: &str, service: u64) -> Self {
        let mut server = Server {
            runner: runner.clone(),
            running: start(runner, command),
        };
        let deadline = Instant::now() + LIMIT;
        let name = format!("/{service:x}/");
        while !server.names().contains(&name) {
            assert!(
                server.running.is_running(),
                "{}",
                server.running.finish(LIMIT)
            );
            assert!(Instant::now() < deadline, "{command} does not listen");
            thread::sleep(POLL_INTERVAL);
        }
        server
    }

    /// Returns the names of listeners in its network.
    fn names(&self) -> String {
        let mut command = self.runner.command("cat");
        command.arg("/proc/net/unix");
        let names = run("cat", command, LIMIT).success().stdout;
        let listeners = names
            .lines()
            .filter(|line| line.contains("@urxe/cm/listen/"));
        listeners.collect::<Vec<_>>().join("\n")
    }

    /// Waits for its end.
    pub fn finish(self) -> Finished {
        self.running.finish(LIMIT)
    }
}

/// Starts a program with space-separated arguments.
pub fn start(runner: &Runner, command: &str) -> Running {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let mut verbs = runner.verbs(program);
    verbs.args(words);
    Running::start(command, verbs)
}

fn run_here(runner: &Runner, command: &str) -> Finished {
    start(runner, command).finish(LIMIT)
}

/// Returns a private network without other listeners.
fn alone() -> Option<Namespace> {
    require(&[RPING, IP, Need::NetworkNamespaces])
        .then(|| Namespace::new(&Runner::here()).loopback_up())
}

/// Runs a server and a client, which must succeed.
#[track_caller]
fn both_succeed(server: &str, service: u64, client: &str) -> Option<(Finished, Finished)> {
    let namespace = alone()?;
    let _exclusive = exclusive();
    let runner = namespace.runner();
    let server = Server::start(runner, server, service);
    let client = run_here(runner, client).success();
    Some((server.finish().success(), client))
}

#[test]
fn rping_transfers_the_expected_data() {
    let server = "rping -s -v -C 10";
    let client = "rping -c -a 127.0.0.1 -v -C 10";
    if let Some((server, client)) = both_succeed(server, TCP | 7174, client) {
        let (last, at_server) = (
            "rdma-ping-9: ",
            server.stdout.matches("server ping data").count(),
        );
        assert!(
            client.stdout.contains(last) && server.stdout.contains(last),
            "{client}"
        );
        assert_eq!(at_server, 10, "{server}");
    }
}

#[test]
fn rping_over_ipv6_and_with_the_largest_buffers() {
    let server = "rping -s -a ::1 -C 50 -S 65535 -p 7999";
    let client = "rping -c -a ::1 -C 50 -S 65535 -p 7999 -V";
    both_succeed(server, TCP | 7999, client);
}

#[test]
fn rping_serves_one_client_after_another() {
    let Some(namespace) = alone() else {
        return;
    };
    let _exclusive = exclusive();
    let runner = namespace.runner();
    // A persistent server does not end. It cannot handle two requests at once.
    let _server = Server::start(runner, "rping -s -P", TCP | 7174);
    for _ in 0..4 {
        run_here(runner, "rping -c -a 127.0.0.1 -C 20").success();
    }
}

#[test]
fn rping_between_hosts() {
    if !require(&[RPING, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let _exclusive = exclusive();
    for address in [VethPair::A, VethPair::A6] {
        let server = format!("rping -s -a {address} -C 20");
        let server = Server::start(cable.a.runner(), &server, TCP | 7174);
        let client = format!("rping -c -a {address} -C 20");
        run_here(cable.b.runner(), &client).success();
        server.finish().success();
    }
}

#[test]
fn port_has_one_listener_and_without_one_connecting_fails() {
    let Some(namespace) = alone() else {
        return;
    };
    let _exclusive = exclusive();
    let runner = namespace.runner();
    let refused = run_here(runner, "rping -c -a 127.0.0.1 -C 1");
    assert!(!refused.status.success() && !refused.timed_out, "{refused}");
    let _server = Server::start(runner, "rping -s -P", TCP | 7174);
    for other in ["rping -s", "rping -s -a 127.0.0.1"] {
        let second = run_here(runner, other);
        assert!(!second.status.success(), "{second}");
        // The kernel's error where one of the binds is to all addresses, or to loopback addresses.
        let error = "Cannot assign requested address";
        assert!(second.stderr.contains(error), "{second}");
    }
}

/// With this sysctl, sockets can be bound to any address.
#[test]
fn address_of_another_host_cannot_be_bound_with_ip_nonlocal_bind() {
    let Some(namespace) = alone() else {
        return;
    };
    let runner = namespace.runner();
    let mut permit = runner.command("sh");
    permit.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind"]);
    run("sh", permit, LIMIT).success();
    let refused = run_here(runner, "rping -s -a 192.0.2.1");
    let error = "rdma_bind_addr: Cannot assign requested address";
    assert!(refused.stderr.contains(error), "{refused}");
}

/// The kernel's source for a packet to a secondary address is the primary one.
#[test]
fn secondary_address_belongs_to_this_host() {
    let Some(namespace) = alone() else {
        return;
    };
    let runner = namespace.runner();
    let mut add = runner.command("sh");
    let script = "ip link add near type veth peer name far && ip link set near up &&
        ip address add 10.9.0.1/24 dev near && ip address add 10.9.0.2/24 dev near";
    add.args(["-ec", script]);
    run("ip", add, LIMIT).success();
    let mut server = runner.verbs("rping");
    server
        .args(["-s", "-a", "10.9.0.2"])
        .env("URXE_DEVICES", "lo");
    let refused = run("rping", server, LIMIT);
    let error = "rdma_bind_addr: No such device";
    assert!(refused.stderr.contains(error), "{refused}");
}

#[test]
fn end_of_a_client_ends_its_connection() {
    let Some(namespace) = alone() else {
        return;
    };
    let _exclusive = exclusive();
    let runner = namespace.runner();
    let server = Server::start(runner, "rping -s", TCP | 7174);
    let mut client = start(runner, "rping -c -a 127.0.0.1 -C 1000000000");
    thread::sleep(Duration::from_millis(500));
    assert!(client.is_running());
    client.signal("KILL");
    client.kill_group();
    let server = server.finish();
    assert!(!server.timed_out, "{server}");
}

#[test]
fn ucmatose_connects_repeatedly() {
    let client = "ucmatose -s 127.0.0.1 -c 20 -C 10 -S 1000";
    if let Some((server, _)) = both_succeed("ucmatose -c 20 -C 10 -S 1000", TCP | 7471, client) {
        assert!(
            server.stdout.contains("receiving data transfers"),
            "{server}"
        );
    }
}

#[test]
fn udaddy_finds_a_datagram_service() {
    both_succeed("udaddy", UDP | 7174, "udaddy -s 127.0.0.1");
}

#[test]
fn rdma_server_and_client_use_endpoints() {
    both_succeed("rdma_server", TCP | 7471, "rdma_client -s 127.0.0.1");
}

#[test]
fn rdma_xserver_shares_a_queue_among_connections() {
    for kind in ["r", "x"] {
        let space = if kind == "x" { IB } else { TCP };
        let server = format!("rdma_xserver -c {kind}");
        let client = format!("rdma_xclient -s 127.0.0.1 -c {kind}");
        both_succeed(&server, space | 7471, &client);
    }
}

#[test]
fn mckey_sends_to_a_group_and_receives_from_it() {
    if !require(&[RPING, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let _exclusive = exclusive();
    cable.a.ip("route add 224.0.0.0/4 dev va");
    cable.b.ip("route add 224.0.0.0/4 dev vb");
    for (group, a, b) in [
        ("239.1.2.3", VethPair::A, VethPair::B),
        ("ff05::77", VethPair::A6, VethPair::B6),
    ] {
        let mut receiver = start(cable.a.runner(), &format!("mckey -m {group} -b {a} -C 5"));
        // mckey reports its membership only at its end. Datagrams sent before are lost.
        let sender = format!("mckey -m {group} -b {b} -C 5 -s");
        let deadline = Instant::now() + LIMIT;
        while receiver.is_running() && Instant::now() < deadline {
            run_here(cable.b.runner(), &sender).success();
        }
        receiver.finish(LIMIT).success();
    }
}

#[test]
fn cmtime_connects_and_disconnects() {
    let Some(namespace) = alone() else {
        return;
    };
    let _exclusive = exclusive();
    let runner = namespace.runner();
    // The server does not end.
    let _server = Server::start(runner, "cmtime -b 127.0.0.1", TCP | 7471);
    let client = run_here(runner, "cmtime -s 127.0.0.1 -c 500").success();
    assert!(client.stdout.contains("disconnect"), "{client}");
}

#[test]
fn burst_of_connections_beyond_the_socket_buffer_is_established() {
    let Some(namespace) = alone() else {
        return;
    };
    let _exclusive = exclusive();
    // The buffer holds about 280 messages.
    let runner = namespace
        .runner()
        .through(["env", "URXE_SOCKET_BUFFER=212992"]);
    let _server = Server::start(&runner, "cmtime -b 127.0.0.1", TCP | 7471);
    let client = run_here(&runner, "cmtime -s 127.0.0.1 -c 2000").success();
    assert!(client.stdout.contains("disconnect"), "{client}");
}

#[test]
fn connections_are_established_at_200_ms_and_with_5_percent_loss() {
    let Some(namespace) = alone() else {
        return;
    };
    let runner = |seed: u32| {
        let faults = format!("URXE_FAULTS=delay=100ms,drop=5%,seed={seed}");
        namespace.runner().through(["env", &faults])
    };
    let _server = Server::start(&runner(1), "cmtime -b 127.0.0.1", TCP | 7471);
    // The program ends with an error if a connection fails.
    let client = run_here(&runner(2), "cmtime -s 127.0.0.1 -c 100").success();
    assert!(client.stdout.contains("disconnect"), "{client}");
}

#[test]
fn perftest_connects_by_the_connection_manager() {
    if !require(&[PERFTEST]) {
        return;
    }
    // These programs make a second connection, with a new listener, at the same time.
    for program in [
        "ib_write_bw",
        "ib_send_bw",
        "ib_write_lat",
        "ib_send_lat",
        "ib_read_lat",
        "ib_atomic_lat",
    ] {
        let server = format!("{program} -R -n 100");
        let client = format!("{program} -R -n 100 127.0.0.1");
        both_succeed(&server, TCP | 18515, &client);
    }
}
