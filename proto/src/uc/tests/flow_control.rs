//! Flow-control probes, which keep a connection between same-host peers from overrunning the
//! receiver.

use super::*;
use std::time::Duration;

const EVERY: usize = 4 * MTU;
const ECHO_TIMEOUT: Duration = Duration::from_millis(100);

/// A queue pair with probes enabled and more data queued than it may send.
fn end_with_probes() -> Endpoint {
    let mut end = Endpoint::new();
    end.qp.set_probe_interval(EVERY as u32);
    // Header bytes count too, so that there are four packets between two probes.
    end.post(1, SendOp::Send, 40 * MTU);
    end
}

fn opcodes(packets: &[Sent]) -> Vec<Opcode> {
    packets.iter().map(Sent::opcode).collect()
}

fn echo(end: &mut Endpoint, number: u32) {
    let header = Header::new(FlowProbeEcho, Qpn::new(0x11), Psn::new(number));
    end.deliver(header, &[]);
}

#[test]
fn requester_stops_with_two_outstanding_probes_when_the_third_is_due() {
    let mut end = end_with_probes();
    let packets = end.poll();
    let expected: Vec<_> = [UcSendFirst]
        .into_iter()
        .chain([UcSendMiddle; 3])
        .chain([FlowProbe])
        .chain([UcSendMiddle; 4])
        .chain([FlowProbe])
        .chain([UcSendMiddle; 4])
        .collect();
    assert_eq!(opcodes(&packets), expected);
    let probes = packets.iter().filter(|sent| sent.opcode() == FlowProbe);
    let numbers: Vec<_> = probes.map(Sent::psn).collect();
    assert_eq!(numbers, [0, 1]);
    assert_eq!(end.poll(), []);
    assert_eq!(end.qp.deadline(), end.now + ECHO_TIMEOUT);
}

#[test]
fn echo_unblocks_the_requester_and_covers_earlier_probes() {
    let mut end = end_with_probes();
    end.poll();
    echo(&mut end, 0);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    let packets = end.poll();
    assert_eq!(opcodes(&packets)[0], FlowProbe);
    assert_eq!(packets.len(), 1 + 4);
    // The second echo was lost.
    echo(&mut end, 2);
    let probes = |packets: &[Sent]| {
        packets
            .iter()
            .filter(|sent| sent.opcode() == FlowProbe)
            .count()
    };
    assert_eq!(probes(&end.poll()), 2);
}

#[test]
fn echo_of_no_outstanding_probe_is_ignored() {
    let mut end = end_with_probes();
    end.poll();
    for number in [2, 3, 0x80_0000, 0x7f_ffff] {
        echo(&mut end, number);
        assert_eq!(end.poll(), [], "{number}");
    }
}

#[test]
fn probes_stop_after_ten_consecutive_timeouts() {
    let mut end = end_with_probes();
    end.post(2, SendOp::Send, 100 * MTU);
    let mut timeouts = 0;
    while end.qp.send_queue_room() < 16 {
        end.poll();
        let deadline = end.qp.deadline();
        if deadline != Time::NEVER {
            end.now = deadline;
            end.qp.handle_timeout(end.now);
            timeouts += 1;
        }
    }
    assert_eq!(timeouts, 10);
    assert_eq!(end.qp.counters().flow_probes_unanswered, 10);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    // A late echo enables probes again.
    end.post(3, SendOp::Send, 40 * MTU);
    echo(&mut end, 1);
    assert!(end.poll().len() < 40);
}

#[test]
fn echo_is_sent_before_data_and_only_for_the_last_probe() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, MTU);
    for number in [7, 8] {
        end.deliver(
            Header::new(FlowProbe, Qpn::new(0x11), Psn::new(number)),
            &[],
        );
    }
    let packets = end.poll();
    assert_eq!(opcodes(&packets), [FlowProbeEcho, UcSendOnly]);
    assert_eq!(packets[0].psn(), 8);
    assert_eq!(end.poll(), []);
    assert_eq!(end.qp.attributes().rq_psn, Psn::new(PEER_PSN));
}

#[test]
fn no_echo_is_sent_in_the_error_state() {
    let mut end = Endpoint::new();
    end.deliver(Header::new(FlowProbe, Qpn::new(0x11), Psn::new(7)), &[]);
    end.qp.fail(end.now, &mut end.host);
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(end.poll(), []);
}

#[test]
fn no_deadline_without_data_to_send() {
    let mut end = end_with_probes();
    end.poll();
    assert_ne!(end.qp.deadline(), Time::NEVER);
    end.enter(QpState::Err);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    let mut end = Endpoint::new();
    end.qp.set_probe_interval(MTU as u32);
    end.post(1, SendOp::Send, MTU);
    assert_eq!(
        opcodes(&end.poll()),
        [UcSendOnly],
        "no probe after the last packet"
    );
}

#[test]
fn probes_are_disabled_by_default() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, 100 * MTU);
    assert_eq!(end.poll().len(), 100);
}
