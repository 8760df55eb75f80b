//! `urxe stat` while programs run.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::namespace::Namespace;
use crate::common::pingpong::{Pair, Pingpong, exclusive};
use crate::common::require::{IP, Need, PINGPONG, require};
use crate::common::run::{POLL_INTERVAL, run};
use crate::common::runner::Runner;
use crate::common::stat::{processes, received, stat};

const LIMIT: Duration = Duration::from_secs(60);
/// A number of messages that a pair never completes.
const ENDLESS: u32 = 1_000_000_000;

/// Starts an endless pair in a private namespace, and waits until it exchanges messages.
pub fn endless(runner: &Runner) -> Pair {
    let mut pair = Pingpong::over_loopback(runner)
        .options("-e")
        .iterations(ENDLESS)
        .start();
    let deadline = Instant::now() + LIMIT;
    loop {
        let survey = stat(runner, &[]);
        let busy = |process: &&Value| received(process) > 0;
        if processes(&survey).iter().filter(busy).count() == 2 {
            return pair;
        }
        assert!(pair.is_running() && Instant::now() < deadline, "{survey}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[test]
fn counters_of_running_programs_grow() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    let pair = endless(runner);
    let before = stat(runner, &["urxe_lo"]);
    let deadline = Instant::now() + LIMIT;
    loop {
        let after = stat(runner, &["urxe_lo"]);
        let grown = processes(&before)
            .iter()
            .zip(processes(&after))
            .all(|(before, after)| received(before) < received(after));
        if grown {
            break;
        }
        assert!(Instant::now() < deadline, "{before}\n{after}");
        std::thread::sleep(POLL_INTERVAL);
    }
    for process in processes(&before) {
        assert_eq!(process["program"], "ibv_rc_pingpong");
    }
    assert!(processes(&stat(runner, &["urxe_none"])).is_empty());
    drop(pair);
}

#[test]
fn zero_counters_are_shown_with_all() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let _pair = endless(namespace.runner());
    let all = stat(namespace.runner(), &["--all"]);
    let few = stat(namespace.runner(), &[]);
    let zero = |survey: &Value| {
        processes(survey)[0]["devices"]["urxe_lo"]["diagnostic"]["num_cqovf"].clone()
    };
    assert_eq!((zero(&all), zero(&few)), (Value::from(0), Value::Null));
}

#[test]
fn stopped_process_does_not_hold_up_the_others() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let pair = endless(namespace.runner());
    pair.server.signal("STOP");
    let deadline = Instant::now() + LIMIT;
    // The signal is delivered asynchronously.
    loop {
        let survey = stat(namespace.runner(), &[]);
        if survey["silent"] == 1 {
            assert_eq!(processes(&survey).len(), 1, "{survey}");
            break;
        }
        assert!(Instant::now() < deadline, "{survey}");
    }
}

#[test]
fn counters_of_other_users_are_not_shown() {
    if !require(&[PINGPONG, IP, Need::Root, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let _pair = endless(namespace.runner());
    let other = namespace.runner().unprivileged();
    let mut command = other.urxe();
    command.args(["stat", "--json"]);
    let text = run("urxe stat", command, LIMIT).success().stdout;
    let survey: Value = serde_json::from_str(&text).expect("JSON");
    assert!(processes(&survey).is_empty(), "{survey}");
    assert_eq!(survey["silent"], 2, "{survey}");
}

#[test]
fn no_running_process_is_reported() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let mut command = namespace.runner().urxe();
    command.arg("stat");
    let finished = run("urxe stat", command, LIMIT).success();
    assert!(finished.stdout.is_empty(), "{finished}");
    assert!(finished.stderr.contains("no urxe process"), "{finished}");
}
