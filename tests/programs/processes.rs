//! Many processes on one address, and the effect of killing some of them.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::pingpong::{Pair, Pingpong, exclusive};
use crate::common::require::{IP, Need, PINGPONG, require};
use crate::common::run::{POLL_INTERVAL, Running};
use crate::common::runner::Runner;
use crate::common::stat::{processes, received, stat};

/// A number of messages that a pair never completes.
const ENDLESS: u32 = 1_000_000_000;
/// The time limit of 16 processes on a machine with as few as two processors.
const MANY_PROCESSES_LIMIT: Duration = Duration::from_secs(240);

fn loopback() -> Pingpong {
    Pingpong::over_loopback(&Runner::alone()).limit(MANY_PROCESSES_LIMIT)
}

/// Waits until both sides of a pair have used more CPU time than their start takes, so that they
/// exchange messages.
fn wait_until_busy(pair: &mut Pair) {
    let deadline = Instant::now() + MANY_PROCESSES_LIMIT;
    while !(is_busy(pair.server.id()) && is_busy(pair.client.id())) {
        assert!(pair.is_running(), "an endless pair has ended");
        assert!(
            Instant::now() < deadline,
            "a pair does not start exchanging messages"
        );
        thread::sleep(POLL_INTERVAL);
    }
}

fn is_busy(process: u32) -> bool {
    const TICKS: u64 = 10;
    processor_time(process)
        + children(process)
            .into_iter()
            .map(processor_time)
            .sum::<u64>()
        >= TICKS
}

/// Returns the CPU time of a process in clock ticks (10 ms).
fn processor_time(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name is in parentheses and may contain anything; fields 14 and 15 are the times.
    let Some((_, fields)) = stat.rsplit_once(") ") else {
        return 0;
    };
    let fields = fields.split(' ').skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

#[test]
fn eight_pairs_on_one_address() {
    if !require(&[PINGPONG]) {
        return;
    }
    let _exclusive = exclusive();
    let loopback = loopback();
    let polling = loopback.clone().options("-c").iterations(1000);
    let sleeping = loopback.options("-c -e").size(100_000).iterations(200);
    let pairs: Vec<Pair> = (0..4)
        .flat_map(|_| [polling.start(), sleeping.start()])
        .collect();
    for pair in pairs {
        pair.finish().success();
    }
}

/// Returns the number of messages that each process of these pairs has received.
fn received_by(pairs: &[Pair], runner: &Runner) -> Vec<u64> {
    let survey = stat(runner, &[]);
    let sides = pairs.iter().flat_map(|pair| [&pair.server, &pair.client]);
    let count = |side: &Running| {
        let candidates = [vec![side.id()], children(side.id())].concat();
        let is_it = |process: &&Value| {
            let pid = process["pid"].as_u64().unwrap_or(0);
            candidates
                .iter()
                .any(|candidate| u64::from(*candidate) == pid)
        };
        processes(&survey).iter().find(is_it).map_or(0, received)
    };
    sides.map(count).collect()
}

#[test]
fn killed_processes_do_not_disturb_others() {
    const MANY: u64 = 1000;
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let runner = Runner::alone();
    let pingpong = Pingpong::over_loopback(&runner).limit(MANY_PROCESSES_LIMIT);
    let endless = pingpong.clone().options("-c -e").iterations(ENDLESS);
    let long = endless.clone().size(20_000);

    // Kills the first, a middle and the last process, so that the sockets of the others move in the
    // kernel's table in every possible way.
    let mut first = endless.start();
    let mut survivors = vec![long.start(), long.start()];
    let mut middle = endless.start();
    survivors.extend([long.start(), long.start(), long.start()]);
    let mut last = endless.start();

    for pair in [&mut first, &mut middle, &mut last] {
        wait_until_busy(pair);
    }
    first.server.kill_group();
    middle.client.kill_group();
    last.client.kill_group();

    // New processes use the freed slots.
    for _ in 0..2 {
        let pair = pingpong.clone().options("-c -e").iterations(200).start();
        pair.finish().success();
    }

    let before = received_by(&survivors, &runner);
    let deadline = Instant::now() + MANY_PROCESSES_LIMIT;
    loop {
        let after = received_by(&survivors, &runner);
        let mut sides = before.iter().zip(&after);
        if sides.all(|(before, after)| *after > before + MANY) {
            break;
        }
        assert!(Instant::now() < deadline, "{before:?} {after:?}");
        thread::sleep(POLL_INTERVAL);
    }
    for pair in &mut survivors {
        assert!(pair.is_running(), "an endless pair has ended");
    }
    // The peers of killed processes fail by retries if they have something to send. The others
    // would wait forever, and end with this test.
}

#[test]
fn killed_processes_leave_nothing_behind() {
    if !require(&[PINGPONG]) {
        return;
    }
    let _exclusive = exclusive();
    let loopback = loopback();
    for _ in 0..5 {
        let mut doomed = loopback.clone().options("-c").iterations(ENDLESS).start();
        wait_until_busy(&mut doomed);
        doomed.server.kill_group();
        doomed.client.kill_group();
        loopback
            .clone()
            .options("-c")
            .iterations(200)
            .start()
            .finish()
            .success();
    }
}

#[test]
fn dead_peer_is_reported_as_retries_exceeded() {
    if !require(&[PINGPONG]) {
        return;
    }
    let _exclusive = exclusive();
    // If the server dies between its ACK and its own message, the client has nothing to retransmit
    // and waits forever, as with a NIC. That is unlikely to happen several times in a row.
    let loopback = loopback();
    for _ in 0..5 {
        let mut pair = loopback.clone().iterations(ENDLESS).start();
        wait_until_busy(&mut pair);
        pair.server.kill_group();
        let client = pair.client.finish(Duration::from_secs(15));
        if client.timed_out {
            continue;
        }
        assert_eq!(client.status.code(), Some(1), "{client}");
        assert!(
            client.stderr.contains("transport retry counter exceeded"),
            "{client}"
        );
        return;
    }
    panic!("no client detected the death of its server");
}
