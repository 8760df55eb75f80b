//! ECN marks in IP headers and congestion notification packets, over real sockets.

mod common;

use common::{ALL, Buffer, pair};
use std::time::{Duration, Instant};
use urxe_driver::{path, stat};
use urxe_proto::ids::RKey;
use urxe_proto::work::{SendOp, WcStatus};

/// CE: the traffic class of a packet that met congestion (RFC 3168).
const CE: u8 = 0b11;

#[test]
fn a_ce_mark_causes_a_cnp_that_reduces_the_rate() {
    // An application may set the whole traffic class, so its packets can carry CE from the start.
    let (a, b) = pair(|attr| attr.av.traffic_class = CE);
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    let (addr, rkey) = (to.mr.addr(), RKey(to.mr.rkey().0));
    a.post(1, SendOp::Write { addr, rkey }, &[from.sge(0, 64)]);
    assert_eq!(a.completion().status, WcStatus::Success);
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.qp.counters().cnps_received == 0 {
        assert!(Instant::now() < deadline, "{:?}", b.qp.counters());
        path::get().drive();
    }
    assert!(b.qp.counters().ecn_marked > 0 && b.qp.counters().cnps_sent > 0);
    let report = stat::report();
    let counts = &report.devices["urxe_lo"].diagnostic;
    for name in [
        "np_ecn_marked_roce_packets",
        "np_cnp_sent",
        "rp_cnp_handled",
    ] {
        assert!(counts[name] > 0, "{name}");
    }
}

#[test]
fn an_uncongested_path_has_no_ce_marks() {
    let (a, b) = pair(|_| ());
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    let (addr, rkey) = (to.mr.addr(), RKey(to.mr.rkey().0));
    a.post(1, SendOp::Write { addr, rkey }, &[from.sge(0, 64)]);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(
        b.qp.counters().received_packets,
        1 + b.qp.counters().duplicates
    );
    assert_eq!(b.qp.counters().ecn_marked, 0);
}
