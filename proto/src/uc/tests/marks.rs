//! Marks, which keep a connection within a host from overrunning its receiver.

use super::*;
use std::time::Duration;

const EVERY: usize = 4 * MTU;
const PATIENCE: Duration = Duration::from_millis(100);

/// An end that sends marks, with more to send than may go.
fn marking() -> End {
    let mut end = End::new();
    end.qp.mark_every(EVERY as u32);
    // The headers count, so that each stretch is of four packets.
    end.post(1, SendOp::Send, 40 * MTU);
    end
}

fn opcodes(packets: &[Sent]) -> Vec<Opcode> {
    packets.iter().map(Sent::opcode).collect()
}

fn answer(end: &mut End, number: u32) {
    let header = Header::new(MarkSeen, Qpn::new(0x11), Psn::new(number));
    end.give(header, &[]);
}

#[test]
fn two_marks_are_unanswered_at_most_and_the_third_stretch_ends_without_one() {
    let mut end = marking();
    let packets = end.poll();
    let expected: Vec<_> = [UcSendFirst]
        .into_iter()
        .chain([UcSendMiddle; 3])
        .chain([Mark])
        .chain([UcSendMiddle; 4])
        .chain([Mark])
        .chain([UcSendMiddle; 4])
        .collect();
    assert_eq!(opcodes(&packets), expected);
    let marks = packets.iter().filter(|sent| sent.opcode() == Mark);
    let numbers: Vec<_> = marks.map(Sent::psn).collect();
    assert_eq!(numbers, [0, 1]);
    assert_eq!(end.poll(), []);
    assert_eq!(end.qp.deadline(), end.now + PATIENCE);
}

#[test]
fn an_answer_lets_what_follows_go_and_stands_for_those_before_it() {
    let mut end = marking();
    end.poll();
    answer(&mut end, 0);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    let packets = end.poll();
    assert_eq!(opcodes(&packets)[0], Mark);
    assert_eq!(packets.len(), 1 + 4);
    // The second answer was lost.
    answer(&mut end, 2);
    let marks = |packets: &[Sent]| packets.iter().filter(|sent| sent.opcode() == Mark).count();
    assert_eq!(marks(&end.poll()), 2);
}

#[test]
fn answers_to_what_was_not_asked_change_nothing() {
    let mut end = marking();
    end.poll();
    for number in [2, 3, 0x80_0000, 0x7f_ffff] {
        answer(&mut end, number);
        assert_eq!(end.poll(), [], "{number}");
    }
}

#[test]
fn a_peer_that_does_not_answer_slows_it_for_a_while_only() {
    let mut end = marking();
    end.post(2, SendOp::Send, 100 * MTU);
    let mut waited = 0;
    while end.qp.send_queue_room() < 16 {
        end.poll();
        let deadline = end.qp.deadline();
        if deadline != Time::NEVER {
            end.now = deadline;
            end.qp.handle_timeout(end.now);
            waited += 1;
        }
    }
    assert_eq!(waited, 10);
    assert_eq!(end.qp.counters().marks_unanswered, 10);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    // One that was only stopped is noticed.
    end.post(3, SendOp::Send, 40 * MTU);
    answer(&mut end, 1);
    assert!(end.poll().len() < 40);
}

#[test]
fn a_mark_is_answered_before_anything_else_goes_and_the_last_for_all() {
    let mut end = End::new();
    end.post(1, SendOp::Send, MTU);
    for number in [7, 8] {
        end.give(Header::new(Mark, Qpn::new(0x11), Psn::new(number)), &[]);
    }
    let packets = end.poll();
    assert_eq!(opcodes(&packets), [MarkSeen, UcSendOnly]);
    assert_eq!(packets[0].psn(), 8);
    assert_eq!(end.poll(), []);
    assert_eq!(end.qp.attributes().rq_psn, Psn::new(PEER_PSN));
}

#[test]
fn in_the_error_state_no_mark_is_answered() {
    let mut end = End::new();
    end.give(Header::new(Mark, Qpn::new(0x11), Psn::new(7)), &[]);
    end.qp.fail(end.now, &mut end.host);
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(end.poll(), []);
}

#[test]
fn nobody_waits_with_nothing_to_send() {
    let mut end = marking();
    end.poll();
    assert_ne!(end.qp.deadline(), Time::NEVER);
    end.to(QpState::Err);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    let mut end = End::new();
    end.qp.mark_every(MTU as u32);
    end.post(1, SendOp::Send, MTU);
    assert_eq!(opcodes(&end.poll()), [UcSendOnly], "no mark after the last");
}

#[test]
fn without_being_told_it_sends_none() {
    let mut end = End::new();
    end.post(1, SendOp::Send, 100 * MTU);
    assert_eq!(end.poll().len(), 100);
}
