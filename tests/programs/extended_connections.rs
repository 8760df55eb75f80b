//! XRC programs: `ibv_xsrq_pingpong`, and perftest with `-c XRC`.

use std::time::Duration;

use crate::common::perftest::Perftest;
use crate::common::pingpong::{Side, exclusive};
use crate::common::require::{Need, PERFTEST, require};
use crate::common::run::Running;
use crate::common::runner::Runner;
use crate::common::tcp::{self, free_port};

const XSRQ: Need = Need::Program("ibv_xsrq_pingpong", "ibverbs-utils");
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs a server and a client, each with a queue pair for either direction. With several clients
/// the server would send each client's messages through another's queue pair, for which processes
/// must share an XRC domain.
#[track_caller]
fn exchange(options: &str) {
    if !require(&[XSRQ]) {
        return;
    }
    let _exclusive = exclusive();
    let runner = Runner::alone();
    let port = free_port();
    let start = |role: &str, host: Option<&str>| {
        let mut command = runner.verbs("ibv_xsrq_pingpong");
        command
            .args(["-d", "urxe_lo", "-g", "0", "-p", &port.to_string()])
            .args(options.split_whitespace())
            .args(host);
        Running::start(format!("ibv_xsrq_pingpong {role}"), command)
    };
    let server = tcp::wait_for(start("server", None), port, TIME_LIMIT);
    let client = start("client", Some("127.0.0.1"));
    for side in [client, server] {
        let side = side.finish(TIME_LIMIT).success();
        assert!(side.stdout.contains("success"), "{side}");
    }
}

#[test]
fn messages_to_xrc_srqs_by_number() {
    exchange("-n 500");
}

#[test]
fn messages_of_many_packets() {
    exchange("-n 50 -s 100000 -m 512");
}

#[test]
fn both_sides_wait_for_completion_events() {
    exchange("-n 100 -e");
}

fn perftest(program: &'static str) -> Perftest {
    let side = Side::new(&Runner::alone(), "urxe_lo");
    Perftest::new(program, side.clone(), side, "127.0.0.1").options("-c XRC -n 1000")
}

#[test]
fn each_operation_of_perftest() {
    if !require(&[PERFTEST]) {
        return;
    }
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
        perftest(program)
            .options("-s 3000")
            .run()
            .success(&[3000], 1000);
    }
    perftest("ib_atomic_lat").run().success(&[8], 1000);
    perftest("ib_send_bw")
        .options("-q 4")
        .run()
        .success(&[65_536], 4000);
    perftest("ib_write_bw").run().success(&[65_536], 1000);
}
