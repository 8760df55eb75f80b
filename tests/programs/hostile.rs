//! Attacks of another unprivileged user of the host, which must have no effect.
//!
//! A victim transfers and verifies while an attacker runs under another user, without capabilities,
//! in the same network namespace: at the same address, among the same abstract names. No byte is
//! wrong, no connection fails, nothing stalls, no descriptor leaks, and the attacker gets no data.
//!
//! The attacker is `tests/hostile/attacker.c`, which prints its counts; the victim is `victim.c` in
//! the same folder.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace::Namespace;
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, POLL_INTERVAL, Running, run};
use crate::common::runner::{Directory, Runner};
use crate::common::stat::{processes, stat};

/// Generous, since test machines may be slow and busy.
const LIMIT: Duration = Duration::from_secs(90);

/// The duration of each attack, in seconds.
const SECONDS: u32 = 5;

/// The longest time between two verified rounds, in milliseconds. A stall must be shorter than a
/// second; the rest allows for a machine on which the programs do not run. A descriptor that blocks
/// in close(2) does so for 60 s.
const LONGEST: u64 = 4000;

/// The descriptors that a program may open during the attack: up to 16 sockets for sending, and
/// those of new connections.
const MORE_DESCRIPTORS: usize = 24;

const ADDRESS: &str = "127.0.0.1";
const PORT: &str = "7471";

/// Shell commands: `$0` is the command `urxe`, `$1` a source file and `$2` a program.
const COMPILE_VERBS: &str = r#"eval "$($0 env)"
libraries="$(pkg-config --cflags --libs librdmacm libibverbs)"
cc -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o "$2" "$1" $libraries"#;
const COMPILE: &str = r#"cc -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o "$2" "$1""#;

/// The programs, and the network namespace in which they run.
struct Setup {
    directory: Directory,
    namespace: Namespace,
}

impl Setup {
    /// Returns `None` if the test is skipped.
    #[track_caller]
    fn new() -> Option<Setup> {
        let needs = [
            Need::Program("cc", "gcc"),
            Need::Program("pkg-config", "pkg-config"),
            Need::Program("setpriv", "util-linux"),
            IP,
            Need::Root,
            Need::NetworkNamespaces,
        ];
        if !require(&needs) {
            return None;
        }
        let directory = Directory::new();
        for (program, script) in [("victim", COMPILE_VERBS), ("attacker", COMPILE)] {
            let urxe = Runner::here().urxe();
            let mut shell = Runner::here().command("sh");
            let source = format!("tests/hostile/{program}.c");
            shell.args(["-ec", script]).arg(urxe.get_program());
            shell.arg(urxe_tests::workspace().join(source));
            shell.arg(directory.path().join(program));
            run("cc", shell, LIMIT).success();
        }
        let namespace = Namespace::new(&Runner::here()).loopback_up();
        Some(Setup {
            directory,
            namespace,
        })
    }

    fn program(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().expect("a plain path").to_owned()
    }

    /// Starts a victim of this kind with a runner.
    fn victim_in(&self, runner: &Runner, kind: &str, port: &str) -> Running {
        let mut command = runner.verbs(&self.program("victim"));
        command.args([kind, ADDRESS, port]);
        Running::start(format!("victim {kind}"), command)
    }

    fn victim(&self, kind: &str) -> Running {
        self.victim_in(self.namespace.runner(), kind, PORT)
    }

    /// Starts an attack, as another user without any rights.
    fn attack(&self, words: &[&str]) -> Running {
        let mut command = self.namespace.runner().command("setpriv");
        command
            .args(["--reuid=4711", "--regid=4711", "--clear-groups"])
            .args([
                "--inh-caps=-all",
                "--bounding-set=-all",
                "--no-new-privs",
                "--",
            ])
            .arg(self.program("attacker"))
            .args(words);
        Running::start(format!("attacker {words:?}"), command)
    }
}

/// Waits until a program has printed a text.
#[track_caller]
fn wait_for(program: &mut Running, text: &str) {
    let deadline = Instant::now() + LIMIT;
    while !program.has_printed(text) {
        assert!(program.is_running(), "it exits before it prints «{text}»");
        assert!(Instant::now() < deadline, "it does not print «{text}»");
        thread::sleep(POLL_INTERVAL);
    }
}

/// The number of open descriptors of a victim.
#[track_caller]
fn descriptors(victim: &Running) -> usize {
    let id = victim.id();
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    assert_eq!(name.trim(), "victim", "the program is not the process");
    fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count)
}

/// Returns the number that a program has printed after `words`.
#[track_caller]
fn number_after(text: &str, words: &str) -> u64 {
    let after = text.split(words).nth(1).unwrap_or_default();
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{words}: {text}"))
}

/// The counts of an attack.
struct Attack {
    done: u64,
    refused: u64,
}

impl Attack {
    #[track_caller]
    fn of(finished: &Finished) -> Attack {
        let text = &finished.stdout;
        assert!(!text.contains("leaked"), "{finished}");
        Attack {
            done: number_after(text, "done "),
            refused: number_after(text, "refused "),
        }
    }
}

/// A pair that transfers, and a process in the lowest slot, which forwards connection requests.
struct Victims {
    /// The lowest slot, the server, and the client.
    all: [Running; 3],
    descriptors: [usize; 3],
}

impl Victims {
    #[track_caller]
    fn start(setup: &Setup, client: &str) -> Victims {
        let mut lowest = setup.victim_in(setup.namespace.runner(), "serve", "7472");
        wait_for(&mut lowest, "listening");
        let mut server = setup.victim("serve");
        wait_for(&mut server, "listening");
        let mut client = setup.victim(client);
        wait_for(&mut client, "transferring");
        // Wait until the sockets that are opened at first use are open.
        thread::sleep(Duration::from_secs(1));
        let all = [lowest, server, client];
        Victims {
            descriptors: [0, 1, 2].map(|index| descriptors(&all[index])),
            all,
        }
    }

    /// Lets an attack run to its end beside the transfers.
    #[track_caller]
    fn suffer(&mut self, mut attack: Running) -> Attack {
        let deadline = Instant::now() + LIMIT;
        while attack.is_running() {
            assert!(Instant::now() < deadline, "the attack does not end");
            for (victim, before) in self.all.iter().zip(self.descriptors) {
                let count = descriptors(victim);
                assert!(
                    count <= before + MORE_DESCRIPTORS,
                    "{count} descriptors after {before}"
                );
            }
            thread::sleep(POLL_INTERVAL);
        }
        Attack::of(&attack.finish(LIMIT).success())
    }

    /// Ends the transfers. Returns how many rounds were verified.
    #[track_caller]
    fn end(self) -> u64 {
        let [mut lowest, mut server, client] = self.all;
        client.signal("TERM");
        let client = client.finish(LIMIT).success();
        let longest = number_after(&client.stdout, "longest ");
        assert!(longest <= LONGEST, "a stall of {longest} ms: {client}");
        assert!(lowest.is_running() && server.is_running(), "{client}");
        number_after(&client.stdout, "verified ")
    }
}

/// An attack on a pair that transfers.
#[track_caller]
fn attacked(words: &[&str]) -> Option<Attack> {
    let _turn = exclusive();
    let setup = Setup::new()?;
    let mut victims = Victims::start(&setup, "transfer");
    let attack = victims.suffer(setup.attack(words));
    assert!(victims.end() > 0);
    Some(attack)
}

fn seconds() -> String {
    SECONDS.to_string()
}

#[test]
fn descriptors_that_block_when_they_are_closed() {
    let Some(attack) = attacked(&["descriptors", &seconds()]) else {
        return;
    };
    assert!(attack.done + attack.refused > 0, "nothing was tried");
}

#[test]
fn connections_to_every_name() {
    let Some(attack) = attacked(&["connections", &seconds()]) else {
        return;
    };
    assert!(attack.done > 1000, "{} connections", attack.done);
}

#[test]
fn messages_to_every_name() {
    let Some(attack) = attacked(&["messages", &seconds()]) else {
        return;
    };
    assert!(attack.done + attack.refused > 1000);
}

#[test]
fn squatted_names_while_running() {
    let Some(attack) = attacked(&["names", &seconds(), "255", "0"]) else {
        return;
    };
    assert!(attack.done > 255, "{} names", attack.done);
    assert!(attack.refused > 0, "no name was anybody's");
}

#[test]
fn squatted_names_before_the_start() {
    let _turn = exclusive();
    let Some(setup) = Setup::new() else { return };
    let mut attack = setup.attack(&["names", &(2 * SECONDS).to_string(), "5", "0"]);
    wait_for(&mut attack, "taking");
    thread::sleep(Duration::from_millis(100));
    let mut victims = Victims::start(&setup, "transfer");
    let attack = victims.suffer(attack);
    assert!(attack.done >= 10, "{} names", attack.done);
    assert!(victims.end() > 0);
}

#[test]
fn forged_packets() {
    let Some(attack) = attacked(&["packets", &seconds(), ADDRESS]) else {
        return;
    };
    assert!(attack.done > 1000, "{} packets", attack.done);
}

#[test]
fn forged_requests_ahead_of_the_next_one() {
    let _turn = exclusive();
    let Some(setup) = Setup::new() else { return };
    let mut victims = Victims::start(&setup, "pause");
    wait_for(&mut victims.all[1], "paused ");
    let [_, server, client] = &victims.all;
    let said = server.printed();
    let qpn = number_after(&said, "paused ").to_string();
    let psn = number_after(&said, &format!("paused {qpn} ")).to_string();
    let attack = setup.attack(&["ahead", "0", ADDRESS, &qpn, &psn]);
    let attack = Attack::of(&attack.finish(LIMIT).success());
    assert_eq!(attack.done, 1000);
    client.signal("USR1");
    thread::sleep(Duration::from_secs(1));
    // The 50 rounds before the pause, and some after it.
    assert!(victims.end() > 100);
}

#[test]
fn the_port_of_another_user() {
    let Some(attack) = attacked(&["port", "0", ADDRESS]) else {
        return;
    };
    assert_eq!((attack.done, attack.refused), (0, 8));
}

/// In a user namespace in which it has no name, and every other user has none either.
#[test]
fn attack_in_a_pid_namespace_with_equal_process_ids() {
    let _turn = exclusive();
    if !require(&[Need::UserNamespaces]) {
        return;
    }
    let Some(setup) = Setup::new() else { return };
    let user = setup.namespace.runner().unprivileged();
    let nameless = user.through(["unshare", "--user", "--"]);
    let mut server = setup.victim_in(&nameless, "serve", PORT);
    wait_for(&mut server, "listening");
    let attack = setup.attack(&["messages", &seconds()]);
    Attack::of(&attack.finish(LIMIT).success());
    assert!(server.is_running());
}

/// A process in a third PID namespace gets 0 for the IDs of all of them.
#[test]
fn counters_of_processes_in_other_pid_namespaces() {
    let _turn = exclusive();
    let Some(setup) = Setup::new() else { return };
    let runner = setup.namespace.runner();
    let other = runner.through(["unshare", "--pid", "--fork", "--kill-child", "--"]);
    let mut servers = ["7473", "7474"].map(|port| setup.victim_in(&other, "serve", port));
    for server in &mut servers {
        wait_for(server, "listening");
    }
    // The query is from a third PID namespace, in which neither process has an ID.
    let survey = stat(&other, &[]);
    assert_eq!(processes(&survey).len(), 2, "{survey}");
    for process in processes(&survey) {
        assert_eq!(process["pid"], 0, "{survey}");
    }
}
