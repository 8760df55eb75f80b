//! `urxe top` while programs run.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::namespace::Namespace;
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, PINGPONG, require};
use crate::common::run::{Finished, POLL_INTERVAL, run};
use crate::common::runner::Runner;
use crate::stat::endless;

const LIMIT: Duration = Duration::from_secs(60);

fn top(runner: &Runner, arguments: &[&str]) -> Finished {
    let mut command = runner.urxe();
    command
        .args(["top", "--count", "1", "--interval", "0.2"])
        .args(arguments);
    run("urxe top", command, LIMIT).success()
}

fn rows(runner: &Runner, arguments: &[&str]) -> Vec<Value> {
    let finished = top(runner, &[arguments, &["--json"]].concat());
    let report: Value = serde_json::from_str(&finished.stdout).expect("one line of JSON");
    report["rows"].as_array().expect("a list").clone()
}

#[test]
fn queue_pairs_are_shown_with_peers_and_rates() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    let _pair = endless(runner);
    let deadline = Instant::now() + LIMIT;
    let found = loop {
        let found = rows(runner, &[]);
        let busy = |row: &&Value| row["sent_bytes_per_second"].as_f64() > Some(0.0);
        if found.iter().filter(busy).count() == 2 {
            break found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        std::thread::sleep(POLL_INTERVAL);
    };
    let [a, b] = [&found[0]["queue_pair"], &found[1]["queue_pair"]];
    // Each is the peer of the other.
    assert_eq!(a["peer"], serde_json::json!(["127.0.0.1", b["qpn"]]));
    assert_eq!(b["peer"], serde_json::json!(["127.0.0.1", a["qpn"]]));
    for (row, qp) in found.iter().zip([a, b]) {
        assert_eq!(row["program"], "ibv_rc_pingpong");
        assert_eq!(
            (&qp["service"], &qp["state"]),
            (&"RC".into(), &"RTS".into())
        );
        assert!(qp["window"].as_u64() > Some(0), "{qp}");
    }

    let qpn = format!("{:#x} RC RTS", a["qpn"].as_u64().expect("a number"));
    let filtered = rows(runner, &["--filter", &qpn]);
    assert_eq!(filtered.len(), 1, "{filtered:?}");
    let table = top(runner, &["--sort", "pid"]).stdout;
    assert!(table.starts_with("PID") && table.contains(&qpn), "{table}");
}

#[test]
fn no_running_process_is_an_empty_table() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    assert!(rows(namespace.runner(), &[]).is_empty());
}
