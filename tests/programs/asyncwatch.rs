//! `ibv_asyncwatch`: asynchronous events of an interface.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::namespace::VethPair;
use crate::common::require::{IP, Need, require};
use crate::common::run::{POLL_INTERVAL, Running};
use crate::common::runner::{Directory, Runner};

const ASYNCWATCH: Need = Need::Program("ibv_asyncwatch", "ibverbs-utils");
const STDBUF: Need = Need::Program("stdbuf", "coreutils");

/// The time that an event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn interface_changes_are_reported_as_asynchronous_events() {
    if !require(&[ASYNCWATCH, STDBUF, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let directory = Directory::new();
    let output = directory.path().join("output");
    let mut command = cable.a.runner().urxe();
    // Line-buffered, so that each event is visible at once.
    let script = "exec stdbuf -oL ibv_asyncwatch -d urxe_va > \"$0\"";
    command.args(["run", "--", "sh", "-c", script]).arg(&output);
    let mut watch = Running::start("ibv_asyncwatch", command);
    let events = || fs::read_to_string(&output).unwrap_or_default();
    let mut wait_for = |text: &str, count: usize| {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while events().matches(text).count() < count {
            assert!(
                watch.is_running() && Instant::now() < deadline,
                "{count} times {text:?} in\n{}",
                events()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    };
    wait_for("async event FD", 1);
    cable.a.ip("addr add 198.51.100.7/32 dev va");
    wait_for("IBV_EVENT_GID_CHANGE (18), port 1", 1);
    cable.a.ip("addr del 198.51.100.7/32 dev va");
    wait_for("IBV_EVENT_GID_CHANGE (18), port 1", 2);
    cable.a.ip("link set va down");
    wait_for("IBV_EVENT_PORT_ERR (10), port 1", 1);
    cable.a.ip("link set va up");
    wait_for("IBV_EVENT_PORT_ACTIVE (9), port 1", 1);
    cable.a.ip("link del va");
    wait_for("IBV_EVENT_PORT_ERR (10), port 1", 2);
    wait_for("IBV_EVENT_DEVICE_FATAL (8)", 1);
}
