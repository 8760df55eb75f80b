//! Whose peer is killed while nothing happens on their connection is told.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace::{Cable, Namespace};
use crate::common::place::{Directory, Place};
use crate::common::require::{IP, Need, require};
use crate::common::run::{LOOK, Running, run};

/// Debugging builds on a busy machine are slow.
const LIMIT: Duration = Duration::from_secs(90);

/// How many seconds a peer at another host may be silent in these tests.
const PATIENCE: &str = "2";

const PROGRAM: &str = "tests/programs/idle.c";

/// A shell's words: `$0` is the command `urxe`, then come the source and the program.
const COMPILE: &str = r#"eval "$($0 env)"
cc -D_GNU_SOURCE -Wall -Wextra -Werror -o "$2" "$1" $(pkg-config --cflags --libs librdmacm libibverbs)"#;

fn compile(directory: &Directory) -> String {
    let program = directory.path().join("idle");
    let urxe = Place::here().urxe();
    let mut shell = Place::here().command("sh");
    shell.args(["-ec", COMPILE]).arg(urxe.get_program());
    shell.arg(urxe_tests::workspace().join(PROGRAM));
    shell.arg(&program);
    run("cc", shell, LIMIT).success();
    program.to_str().expect("a plain path").to_owned()
}

/// Two ends of a connection, in the order in which they were started.
struct Ends([Running; 2]);

impl Ends {
    /// Starts a server and a client, and waits until they are connected.
    #[track_caller]
    fn connect(
        program: &str,
        server: &Place,
        client: &Place,
        address: &str,
        patience: &str,
    ) -> Self {
        Self::connect_with(program, server, client, address, [patience, patience])
    }

    /// The same with a patience for each, the server's first.
    #[track_caller]
    fn connect_with(
        program: &str,
        server: &Place,
        client: &Place,
        address: &str,
        patience: [&str; 2],
    ) -> Self {
        let start = |place: &Place, words: &[&str]| {
            let mut command = place.verbs(program);
            let is_client = words.len() > 1;
            let patience = patience[usize::from(is_client)];
            command.args(words).env("URXE_KEEPALIVE", patience);
            Running::start(format!("idle {words:?}"), command)
        };
        let mut ends = Ends([
            start(server, &[address]),
            start(client, &[address, "connect"]),
        ]);
        let deadline = Instant::now() + LIMIT;
        while !ends.0.iter_mut().all(|end| end.has_said("connected")) {
            // The server may not have listened yet.
            if !ends.0[1].is_running() {
                ends.0[1] = start(client, &[address, "connect"]);
            }
            assert!(ends.0[0].is_running() && Instant::now() < deadline);
            thread::sleep(LOOK);
        }
        ends
    }

    /// Kills one, and waits for the end of the other.
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
fn peer_of_a_process_of_this_host_that_is_killed_is_told_at_once() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let namespace = Namespace::new(&Place::here()).loopback_up();
    let place = namespace.place();
    for killed in 0..2 {
        // Not by asking: nobody is asked.
        Ends::connect(&program, place, place, "127.0.0.1", "0").kill(killed);
    }
}

#[test]
fn peer_of_a_process_of_another_host_that_is_killed_finds_out() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let cable = Cable::new(&Place::here(), 1500);
    let (a, b) = (cable.a.place(), cable.b.place());
    for killed in 0..2 {
        Ends::connect(&program, a, b, Cable::A, PATIENCE).kill(killed);
        Ends::connect(&program, a, b, Cable::A6, PATIENCE).kill(killed);
    }
}

#[test]
fn idle_connection_of_living_peers_lasts() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let cable = Cable::new(&Place::here(), 1500);
    let (a, b) = (cable.a.place(), cable.b.place());
    let mut ends = Ends::connect(&program, a, b, Cable::A, PATIENCE);
    // Twice as long as the silent are waited for.
    thread::sleep(Duration::from_secs(4));
    assert!(ends.0.iter_mut().all(Running::is_running));
    ends.kill(0);
}

#[test]
fn stopped_process_of_this_host_stays_a_peer() {
    if !needs() {
        return;
    }
    let directory = Directory::new();
    let program = compile(&directory);
    let namespace = Namespace::new(&Place::here()).loopback_up();
    let place = namespace.place();
    let mut ends = Ends::connect(&program, place, place, "127.0.0.1", PATIENCE);
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
    let cable = Cable::new(&Place::here(), 1500);
    let (a, b) = (cable.a.place(), cable.b.place());
    // The server does not give up the client that is stopped.
    let mut ends = Ends::connect_with(&program, a, b, Cable::A, ["0", PATIENCE]);
    ends.0[1].signal("STOP");
    thread::sleep(Duration::from_secs(4));
    ends.0[1].signal("CONT");
    // Long enough for the client to look at its silent peer.
    thread::sleep(Duration::from_secs(4));
    assert!(ends.0[1].is_running());
    ends.kill(0);
}
