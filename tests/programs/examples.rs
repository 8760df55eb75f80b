//! The C examples, built and run as documented.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::require::{Need, require};
use crate::common::run::{Finished, Running, run};
use crate::common::runner::Runner;
use crate::common::tcp::{self, free_port};

const LIMIT: Duration = Duration::from_secs(60);

const TOOLS: [Need; 3] = [
    Need::Program("cc", "gcc"),
    Need::Program("make", "make"),
    Need::Program("pkg-config", "pkg-config"),
];

/// Builds the C examples with `urxe env`. Returns `None` if the tools are missing.
fn c_examples() -> Option<&'static Path> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if !require(&TOOLS) {
        return None;
    }
    Some(BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples-c");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("cargo's own directory");
        let source = urxe_tests::workspace().join("examples/c");
        for entry in fs::read_dir(source).expect("the examples are there") {
            let entry = entry.expect("an entry");
            let name = entry.file_name();
            if name == "Makefile" || name.to_string_lossy().contains('.') {
                fs::copy(entry.path(), directory.join(name)).expect("cargo's own directory");
            }
        }
        let mut make = in_shell(&Runner::here(), "make CFLAGS='-O2 -Wall -Wextra -Werror'");
        make.current_dir(&directory);
        run("make", make, LIMIT).success();
        directory
    }))
}

/// Returns a shell command line after `eval "$(urxe env)"`.
fn in_shell(runner: &Runner, line: &str) -> Command {
    let mut shell = runner.command("sh");
    let urxe = Runner::here().urxe();
    shell
        .args(["-ec", &format!("eval \"$($0 env)\"; {line}")])
        .arg(urxe.get_program());
    shell
}

fn start(runner: &Runner, directory: &Path, line: &str) -> Running {
    Running::start(
        line,
        in_shell(runner, &format!("exec {}/{line}", directory.display())),
    )
}

fn alone(line: &str) -> Option<Finished> {
    let directory = c_examples()?;
    let runner = Runner::alone();
    Some(start(&runner, directory, line).finish(LIMIT).success())
}

/// Runs a pair that connects over TCP. Returns the output of server and client.
fn pair(directory: &Path, line: &str) -> (Finished, Finished) {
    let (runner, port) = (Runner::alone(), free_port());
    let server = start(&runner, directory, &format!("{line} -p {port}"));
    let server = tcp::wait_for(server, port, LIMIT);
    let client = start(&runner, directory, &format!("{line} -p {port} 127.0.0.1"));
    let client = client.finish(LIMIT).success();
    (server.finish(LIMIT).success(), client)
}

#[test]
fn exercise_1_devices_with_their_node_types() {
    let Some(finished) = alone("list_devices") else {
        return;
    };
    let line = finished
        .stdout
        .lines()
        .find(|line| line.starts_with("urxe_lo: "));
    assert!(
        line.is_some_and(|line| line.contains("channel adapter")),
        "{finished}"
    );
}

#[test]
fn exercise_2_gids_of_a_port() {
    let Some(finished) = alone("port_gids -d urxe_lo") else {
        return;
    };
    assert!(
        finished.stdout.contains("GID 0: ::ffff:127.0.0.1, RoCE v2"),
        "{finished}"
    );
}

#[test]
fn exercise_3_memory_regions() {
    let Some(finished) = alone("memory_regions -d urxe_lo") else {
        return;
    };
    assert_eq!(finished.stdout.lines().count(), 4, "{finished}");
}

#[test]
fn exercise_4_completion_queues() {
    let Some(finished) = alone("completion_queues -d urxe_lo") else {
        return;
    };
    assert!(
        finished.stdout.ends_with("armed, and no event\n"),
        "{finished}"
    );
}

#[test]
fn exercise_5_connection_with_every_operation() {
    let Some(directory) = c_examples() else {
        return;
    };
    let (server, client) = pair(directory, "connected -d urxe_lo");
    assert_eq!(server.stdout.matches(": ok").count(), 5, "{server}");
    assert_eq!(client.stdout.matches(": ok").count(), 3, "{client}");
    let (server, _) = pair(directory, "connected -u -d urxe_lo");
    assert_eq!(server.stdout.matches(": ok").count(), 4, "{server}");
}

#[test]
fn exercise_6_asynchronous_events() {
    let Some(finished) = alone("async_events -d urxe_lo") else {
        return;
    };
    assert!(
        finished.stdout.contains("communication established"),
        "{finished}"
    );
    assert!(finished.stdout.contains("send queue drained"), "{finished}");
}

#[test]
fn exercise_7_shared_receives() {
    let Some(finished) = alone("shared_receives -d urxe_lo") else {
        return;
    };
    assert!(
        finished.stdout.contains("4 messages over the first"),
        "{finished}"
    );
}

#[test]
fn exercise_8_datagrams() {
    let Some(directory) = c_examples() else {
        return;
    };
    let (server, client) = pair(directory, "datagram -d urxe_lo");
    assert!(server.stdout.contains("Who is there?"), "{server}");
    assert!(client.stdout.contains("A datagram."), "{client}");
}

#[test]
fn program_built_with_urxe_needs_the_usual_sonames() {
    let Some(directory) = c_examples() else {
        return;
    };
    if !require(&[Need::Program("readelf", "binutils")]) {
        return;
    }
    let mut command = Runner::here().command("readelf");
    command.arg("-d").arg(directory.join("datagram"));
    let finished = run("readelf", command, LIMIT).success();
    assert!(finished.stdout.contains("[libibverbs.so.1]"), "{finished}");
    assert!(!finished.stdout.contains("liburxe"), "{finished}");
}
