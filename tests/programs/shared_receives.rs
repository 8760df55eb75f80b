//! Shared receive queues: `ibv_srq_pingpong`, and perftest's `--use-srq`.

use crate::common::perftest::Perftest;
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{PERFTEST, PINGPONG, require};
use crate::common::runner::Runner;

fn srq_pingpong() -> Option<Pingpong> {
    require(&[PINGPONG])
        .then(|| Pingpong::over_loopback(&Runner::alone()).program("ibv_srq_pingpong"))
}

fn perftest(program: &'static str) -> Option<Perftest> {
    let side = Side::new(&Runner::alone(), "urxe_lo");
    require(&[PERFTEST]).then(|| {
        Perftest::new(program, side.clone(), side, "127.0.0.1").options("--use-srq -n 1000")
    })
}

#[test]
fn sixteen_connections_share_receives() {
    let Some(pingpong) = srq_pingpong() else {
        return;
    };
    pingpong.run().success();
}

#[test]
fn sixteen_connections_share_receives_with_events() {
    let Some(pingpong) = srq_pingpong() else {
        return;
    };
    pingpong.options("-e").size(20_000).run().success();
}

#[test]
fn as_many_receives_as_connections() {
    let Some(pingpong) = srq_pingpong() else {
        return;
    };
    // The program's minimum: further messages get an RNR NAK and are retransmitted.
    pingpong.options("-r 16 -c").run().success();
}

#[test]
fn perftest_with_a_shared_queue() {
    let Some(bandwidth) = perftest("ib_send_bw") else {
        return;
    };
    let four = bandwidth.clone().options("-q 4").run();
    four.success(&[65_536], 4000);
    bandwidth.options("-e").run().success(&[65_536], 1000);
    let Some(latency) = perftest("ib_send_lat") else {
        return;
    };
    latency.run().success(&[2], 1000);
}

#[test]
fn datagrams_and_unreliable_connections_with_a_shared_queue() {
    let Some(latency) = perftest("ib_send_lat") else {
        return;
    };
    for transport in ["UC", "UD"] {
        let latency = latency.clone().options("-s 1024 -c").options(transport);
        latency.run().success(&[1024], 1000);
    }
}
