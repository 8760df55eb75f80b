//! Detection of a dead peer on an idle connection.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace::{Namespace, VethPair};
use crate::common::require::{IP, Need, require};
use crate::common::run::{POLL_INTERVAL, Running, run};
use crate::common::runner::{Directory, Runner};
use crate::common::stat::{processes, stat};
use crate::connection_manager::{RPING, Server, TCP};

/// Debug builds on a busy machine are slow.
const LIMIT: Duration = Duration::from_secs(90);

/// The keep-alive time for peers on other hosts in these tests, in seconds.
const KEEPALIVE: &str = "2";

const PROGRAM: &str = "tests/programs/idle.c";

/// A shell script: `$0` is the command `urxe`, `$1` the source, `$2` the program.
const COMPILE: &str = r#"eval "$($0 env)"
cc -D_GNU_SOURCE -Wall -Wextra -Werror -o "$2" "$1" $(pkg-config --cflags --libs librdmacm libibverbs)"#;

fn compile(directory: &Directory) -> String {
    let program = directory.path().join("idle");
    let urxe = Runner::here().urxe();
    let mut shell = Runner::here().command("sh");
    shell.args(["-ec", COMPILE]).arg(urxe.get_program());
    shell.arg(urxe_tests::workspace().join(PROGRAM));
    shell.arg(&program);
    run("cc", shell, LIMIT).success();
    program.to_str().expect("a plain path").to_owned()
}

/// The two ends of a connection, in the order of their start.
struct Ends([Running; 2]);

impl Ends {
    /// Starts a server and a client, and waits until they are connected.
    #[track_caller]
    fn connect(
        program: &str,
        server: &Runner,
        client: &Runner,
        address: &str,
        keepalive: &str,
    ) -> Self {
        Self::connect_with(program, server, client, address, [keepalive, keepalive])
    }

    /// The same with a keep-alive timeout for each end, the server's first.
    #[track_caller]
    fn connect_with(
        program: &str,
        server: &Runner,
        client: &Runner,
        address: &str,
        keepalive: [&str; 2],
    ) -> Self {
        let start = |runner: &Runner, words: &[&str]| {
            let mut command = runner.verbs(program);
            let is_client = words.len() > 1;
            let keepalive = keepalive[usize::from(is_client)];
            command.args(words).env("URXE_KEEPALIVE", keepalive);
            Running::start(format!("idle {words:?}"), command)
        };
        let mut ends = Ends([
            start(server, &[address]),
            start(client, &[address, "connect"]),
        ]);
        let deadline = Instant::now() + LIMIT;
        while !ends.0.iter_mut().all(|end| end.has_printed("connected")) {
            // The client fails if the server does not listen yet.
            if !ends.0[1].is_running() {
                ends.0[1] = start(client, &[address, "connect"]);
            }
            assert!(ends.0[0].is_running() && Instant::now() < deadline);
            thread::sleep(POLL_INTERVAL);
        }
        ends
    }

    /// Kills one end, and waits for the end of the other.
    #[track_caller]
    fn kill(self, killed: usize) {
        let Ends([server, client]) = self;
        let (killed, left) = match killed {
            0 => (server, client),
            _ => (client, server),
        };
        killed.signal("KILL");
        let left = left.finish(LIMIT).success();
        assert!(
            left.stdout.contains("ended, Work Request Flushed Error"),
            "{left}"
        );
    }
}

fn needs() -> bool {
    require(&[
        Need::Program("cc", "gcc"),
        Need::Program("pkg-config", "pkg-config"),
        IP,
        Need::NetworkNamespaces,
    ])
}

#[test]
fn dead_peer_on_the_same_host_is_reported_at_once() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    for killed in 0..2 {
        // Without keep-alive probes, which 0 disables.
        Ends::connect(&program, runner, runner, "127.0.0.1", "0").kill(killed);
    }
}

#[test]
fn dead_peer_on_another_host_is_detected_by_keep_alive() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let cable = VethPair::new(&Runner::here(), 1500);
    let (a, b) = (cable.a.runner(), cable.b.runner());
    for killed in 0..2 {
        Ends::connect(&program, a, b, VethPair::A, KEEPALIVE).kill(killed);
        Ends::connect(&program, a, b, VethPair::A6, KEEPALIVE).kill(killed);
    }
}

#[test]
fn idle_connection_of_live_peers_persists() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let cable = VethPair::new(&Runner::here(), 1500);
    let (a, b) = (cable.a.runner(), cable.b.runner());
    let mut ends = Ends::connect(&program, a, b, VethPair::A, KEEPALIVE);
    // Twice the keep-alive time.
    thread::sleep(Duration::from_secs(4));
    assert!(ends.0.iter_mut().all(Running::is_running));
    ends.kill(0);
}

#[test]
fn stopped_process_on_the_same_host_remains_a_peer() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    let mut ends = Ends::connect(&program, runner, runner, "127.0.0.1", KEEPALIVE);
    ends.0[0].signal("STOP");
    thread::sleep(Duration::from_secs(4));
    assert!(ends.0[1].is_running());
    ends.0[0].signal("CONT");
    ends.kill(0);
}

#[test]
fn process_that_was_stopped_keeps_its_connections_to_other_hosts() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let cable = VethPair::new(&Runner::here(), 1500);
    let (a, b) = (cable.a.runner(), cable.b.runner());
    // The server does not give up the client that is stopped.
    let mut ends = Ends::connect_with(&program, a, b, VethPair::A, ["0", KEEPALIVE]);
    ends.0[1].signal("STOP");
    thread::sleep(Duration::from_secs(4));
    ends.0[1].signal("CONT");
    // Longer than the interval of the client's liveness checks.
    thread::sleep(Duration::from_secs(4));
    assert!(ends.0[1].is_running());
    ends.kill(0);
}

#[test]
fn burst_of_requests_is_forwarded_by_a_process_that_waits_for_an_event() {
    if !needs() || !require(&[RPING]) {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    // These started first, so one of them receives the requests for all processes.
    let ends = Ends::connect(&program, runner, runner, "127.0.0.1", "0");
    let _server = Server::start(runner, "cmtime -b 127.0.0.1", TCP | 7471);
    // More than the queue between two processes holds.
    let mut client = runner.verbs("cmtime");
    client.args(["-s", "127.0.0.1", "-c", "1000"]);
    run("cmtime", client, LIMIT).success();
    let survey = stat(runner, &[]);
    let count = |name| -> u64 {
        let idle = processes(&survey)
            .iter()
            .filter(|process| process["program"] == "idle");
        idle.filter_map(|process| process["process"][name].as_u64())
            .sum()
    };
    assert!(count("forwarded_out") >= 1000, "{survey}");
    assert_eq!(count("forward_overruns"), 0, "{survey}");
    ends.kill(0);
}
