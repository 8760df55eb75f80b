//! Properties that `urxe run` preserves.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::place::Place;
use crate::common::run::{POLL_INTERVAL, Running, run};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn exit_status_is_passed_on() {
    for status in [0, 1, 7, 255] {
        let mut command = Place::here().verbs("sh");
        command.args(["-c", &format!("exit {status}")]);
        let finished = run("sh", command, LIMIT);
        assert_eq!(finished.status.code(), Some(status), "{finished}");
    }
}

#[test]
fn arguments_and_output_are_passed_on() {
    let mut command = Place::here().verbs("printf");
    command.args(["%s|", "-x", "--", "two words", ""]);
    let finished = run("printf", command, LIMIT).success();
    assert_eq!(finished.stdout, "-x|--|two words||");
}

#[test]
fn signal_reaches_the_program() {
    for (signal, status) in [("TERM", 42), ("INT", 43), ("USR1", 44), ("HUP", 45)] {
        let directory = crate::common::place::Directory::new();
        let ready = directory.path().join("ready");
        let script = format!(
            "trap 'exit {status}' {signal}; : > {}; while :; do sleep 0.05; done",
            ready.display()
        );
        // A background job may inherit an ignored SIGINT, which a shell cannot trap.
        let mut command = Place::here().verbs("env");
        command.args(["--default-signal", "sh", "-c", &script]);
        let mut running = Running::start("sh", command);
        let deadline = Instant::now() + LIMIT;
        while !ready.exists() && running.is_running() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        running.signal(signal);
        let finished = running.finish(LIMIT);
        assert_eq!(finished.status.code(), Some(status), "{signal}: {finished}");
    }
}

#[test]
fn death_by_a_signal_is_passed_on() {
    let mut command = Place::here().verbs("sh");
    command.args(["-c", "kill -s TERM $$"]);
    let finished = run("sh", command, LIMIT);
    let signal = std::os::unix::process::ExitStatusExt::signal(&finished.status);
    // As the signal itself, or in the form of shells.
    const SIGTERM: i32 = 15;
    assert!(
        signal == Some(SIGTERM) || finished.status.code() == Some(128 + SIGTERM),
        "{finished}"
    );
}

#[test]
fn missing_program_is_named() {
    let finished = run(
        "urxe run",
        Place::here().verbs("no-such-program-xyz"),
        LIMIT,
    );
    // The status of shells and `env` for a missing program.
    assert_eq!(finished.status.code(), Some(127), "{finished}");
    assert!(
        finished.stderr.contains("no-such-program-xyz"),
        "{finished}"
    );
}

#[test]
fn both_libraries_resolve_to_urxe() {
    let mut command = Place::here().verbs("sh");
    command.args([
        "-c",
        "IFS=:; for d in $LD_LIBRARY_PATH; do readlink -f $d/libibverbs.so.1 \
                         $d/librdmacm.so.1; done",
    ]);
    let finished = run("sh", command, LIMIT).success();
    let resolved: Vec<_> = finished.stdout.lines().take(2).collect();
    assert_eq!(resolved.len(), 2, "{finished}");
    assert!(
        resolved.iter().all(|path| path.ends_with("/liburxe.so")),
        "{finished}"
    );
}

#[test]
fn the_build_tree_needs_no_installation() {
    let mut command = std::process::Command::new(urxe_tests::built("urxe"));
    command
        .env_remove("LD_LIBRARY_PATH")
        .args(["run", "--", "true"]);
    run("urxe run", command, LIMIT).success();
}
