//! Counters agree with the traffic. There is one test, since all queue pairs of the process count
//! for the same device.

mod common;

use common::{ALL, Buffer, TEST_TIMEOUT, pair};
use std::time::{Duration, Instant};
use urxe_driver::path;
use urxe_driver::stat::{self, Counts, QueuePairReport, Report};
use urxe_proto::ids::RKey;
use urxe_proto::mtu::Mtu;
use urxe_proto::work::{SendOp, WcStatus};

/// BTH and ICRC, in bytes.
const OVERHEAD: u64 = 12 + 4;
/// The AETH of an acknowledgement, in bytes.
const AETH: u64 = 4;
const PACKETS: u64 = 5;
const MTU: u64 = 1024;

fn hw(report: &Report) -> &Counts {
    &report.devices["urxe_lo"].hw
}

fn port(report: &Report) -> &Counts {
    &report.devices["urxe_lo"].port
}

fn diagnostic(report: &Report) -> &Counts {
    &report.devices["urxe_lo"].diagnostic
}

/// Returns the counters when no packet is in flight. A busy machine causes retransmissions.
fn quiet_report() -> Report {
    let start = Instant::now();
    loop {
        let report = stat::report();
        let port = port(&report);
        if port["port_rcv_packets"] == port["port_xmit_packets"] {
            return report;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{report:?}");
        path::get().drive();
    }
}

#[test]
fn counters_match_the_packets_on_the_wire() {
    let (a, b) = pair(|attr| attr.path_mtu = Mtu::B1024);
    let from = Buffer::new(&a.pd, (PACKETS * MTU) as usize, ALL);
    let to = Buffer::new(&b.pd, (PACKETS * MTU) as usize, ALL);
    let len = (PACKETS * MTU) as u32;

    b.qp.post_receive(1, &[to.sge(0, len)]).unwrap();
    a.post(2, SendOp::Send, &[from.sge(0, len)]);
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!(a.completion().status, WcStatus::Success);

    let report = quiet_report();
    let (hw_, port_) = (hw(&report), port(&report));
    assert_eq!((hw_["rdma_sends"], hw_["rdma_recvs"]), (1, 1));
    let sent = hw_["sent_pkts"];
    // At least one acknowledgement, and retransmissions if any.
    assert!(sent > PACKETS, "{report:?}");
    assert_eq!(port_["port_xmit_packets"], sent);
    assert_eq!(port_["port_rcv_packets"], sent);
    let again = report.devices["urxe_lo"].transport["retransmitted"];
    let acks = sent - PACKETS - again;
    let bytes = (PACKETS + again) * (MTU + OVERHEAD) + acks * (AETH + OVERHEAD);
    assert_eq!(port_["port_xmit_data"], bytes / 4);
    assert_eq!(port_["port_rcv_data"], bytes / 4);
    assert_eq!(report.process["bytes_out"], bytes);

    // The peer refuses a WRITE with an invalid R_Key. Its NAK and the error completion are counted.
    let (addr, rkey) = (to.mr.addr(), RKey(to.mr.rkey().0 ^ 0xff));
    a.post(3, SendOp::Write { addr, rkey }, &[from.sge(0, 8)]);
    a.post(4, SendOp::Send, &[from.sge(0, 8)]);
    b.qp.post_receive(5, &[to.sge(0, 8)]).unwrap();
    assert_eq!(a.completion().status, WcStatus::RemAccessErr);
    assert_eq!(a.completion().status, WcStatus::WrFlushErr);
    assert_eq!(b.completion().status, WcStatus::WrFlushErr);
    let mut report = stat::report();
    let counts = diagnostic(&report);
    assert_eq!((counts["rq_num_rae"], counts["sq_num_rae"]), (1, 1));
    assert_eq!((counts["sq_num_wrfe"], counts["rq_num_wrfe"]), (1, 1));

    // Each queue pair is reported with its peer and its own traffic.
    let [from_a, from_b] = [&a, &b].map(|end| {
        let mut reports = report.queue_pairs.iter();
        let own = reports.find(|qp| qp.qpn == end.qp.qpn().get());
        own.expect("it is reported").clone()
    });
    let peer = |qp: &QueuePairReport| qp.peer.map(|(_, qpn)| qpn);
    assert_eq!(peer(&from_a), Some(from_b.qpn));
    assert_eq!(peer(&from_b), Some(from_a.qpn));
    assert!(from_b.received_bytes <= from_a.sent_bytes);
    assert!(from_a.sent_bytes > PACKETS * MTU);
    assert!(from_a.window > Some(0));
    assert_eq!(report.queue_pairs_omitted, 0);

    // The device keeps the counts of queue pairs that were destroyed.
    drop((a, b));
    let mut after = stat::report();
    let counted = after.clone();
    for device in after
        .devices
        .values_mut()
        .chain(report.devices.values_mut())
    {
        device.resources.clear();
    }
    assert_eq!(after.devices, report.devices);

    // A process also answers its own query. An error of the query itself is returned, not counted
    // as silence.
    let survey = stat::survey(Duration::from_secs(20)).unwrap();
    let own = survey
        .processes
        .iter()
        .find(|p| p.pid == std::process::id());
    assert_eq!(own.expect("it answers").report.devices, counted.devices);
}
