//! Many processes on one address, and what a sudden death among them does to the others.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::pingpong::{Pair, Pingpong, turn};
use crate::common::place::Place;
use crate::common::require::{IP, Need, PINGPONG, require};
use crate::common::run::{LOOK, Running};
use crate::common::stat::{processes, received, stat};

/// So many messages that the pair never ends by itself.
const ENDLESS: u32 = 1_000_000_000;
/// 16 processes on a machine that may have no more than two processors.
const CROWD_LIMIT: Duration = Duration::from_secs(240);

fn loopback() -> Pingpong {
    Pingpong::over_loopback(&Place::alone()).limit(CROWD_LIMIT)
}

/// Waits until both sides of a pair have used so much processor time that they must have been
/// exchanging messages, the start of a process taking far less.
fn wait_until_busy(pair: &mut Pair) {
    let deadline = Instant::now() + CROWD_LIMIT;
    while !(is_busy(pair.server.id()) && is_busy(pair.client.id())) {
        assert!(
            pair.is_running(),
            "a pair that never ends by itself has ended"
        );
        assert!(Instant::now() < deadline, "a pair does not get going");
        thread::sleep(LOOK);
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

/// The processor time that a process used, in ticks of the kernel's clock (10 ms).
fn processor_time(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything; the 14th and 15th field are the times.
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
    let _turn = turn();
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

/// How many messages each process of these pairs has received.
fn received_by(pairs: &[Pair], place: &Place) -> Vec<u64> {
    let survey = stat(place, &[]);
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
fn the_killed_disturb_no_one_else() {
    const MANY: u64 = 1000;
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _turn = turn();
    let place = Place::alone();
    let pingpong = Pingpong::over_loopback(&place).limit(CROWD_LIMIT);
    let endless = pingpong.clone().options("-c -e").iterations(ENDLESS);
    let long = endless.clone().size(20_000);

    // The first to come, one from among the others, and the last: the sockets of the survivors
    // move about in the kernel's table in each way that there is.
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

    // New ones start, in the slots of the dead.
    for _ in 0..2 {
        let pair = pingpong.clone().options("-c -e").iterations(200).start();
        pair.finish().success();
    }

    let before = received_by(&survivors, &place);
    let deadline = Instant::now() + CROWD_LIMIT;
    loop {
        let after = received_by(&survivors, &place);
        let mut sides = before.iter().zip(&after);
        if sides.all(|(before, after)| *after > before + MANY) {
            break;
        }
        assert!(Instant::now() < deadline, "{before:?} {after:?}");
        thread::sleep(LOOK);
    }
    for pair in &mut survivors {
        assert!(
            pair.is_running(),
            "a pair that never ends by itself has ended"
        );
    }
    // The dead ones' peers learn of it by their retries, where they have something to send; the
    // others would wait forever, and end with this test.
}

#[test]
fn nothing_remains_of_processes_that_were_killed() {
    if !require(&[PINGPONG]) {
        return;
    }
    let _turn = turn();
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
fn a_peer_that_died_is_reported_as_retries_exceeded() {
    if !require(&[PINGPONG]) {
        return;
    }
    let _turn = turn();
    // Dead between its acknowledgement and its own message, the server leaves the client nothing
    // to retry: the client then waits for a message that never comes, as it would over a NIC.
    // That takes bad luck; not several times in a row.
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
    panic!("the clients never learnt that their servers died");
}
