//! Duplicate requests (9.7.5.1.1).

use super::*;
use Opcode::*;
use WcStatus::Success;

#[test]
fn duplicate_send_is_acknowledged_again_not_delivered_again() {
    let mut end = End::new();
    end.receive(1, &[sge(LOCAL, 0, 1)]);
    end.receive(2, &[sge(LOCAL, 0, 1)]);
    end.give(request(RcSendOnly, 0), &[1]);
    assert_eq!(end.received(), [(1, Success)]);
    end.poll();
    end.give(request(RcSendOnly, 0), &[2]);
    let ack = end.only();
    assert_eq!((ack.opcode(), ack.psn()), (RcAck, PEER_PSN));
    assert!(matches!(ack.syndrome(), Syndrome::Ack(_)));
    assert!(end.received().is_empty());
    assert_eq!(end.host.bytes(LOCAL, 0, 1), [1]);
    assert_eq!(end.qp.counters().duplicates, 1);
}

#[test]
fn duplicate_write_is_acknowledged_again_and_writes_nothing() {
    let mut end = End::new();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.give(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[2]);
    end.poll();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    // The ACK also covers the second request.
    assert_eq!(end.only().psn(), PEER_PSN + 1);
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [2]);
}

#[test]
fn ack_for_duplicate_write_does_not_pass_a_later_read() {
    let mut end = End::new();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.give(rdma(RcReadRequest, 1, REMOTE, 0, 1), &[]);
    end.give(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    end.poll();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert_eq!(end.only().psn(), PEER_PSN);
    end.give(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    assert_eq!(end.only().psn(), PEER_PSN + 2);
}

#[test]
fn duplicate_read_is_executed_again() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 2), &[]);
    end.poll();
    end.give(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[0xcc]);
    end.poll();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 2), &[]);
    let response = end.only();
    assert_eq!(
        (response.opcode(), response.psn()),
        (RcReadResponseOnly, PEER_PSN)
    );
    assert_eq!(response.payload, [0xcc, pattern(REMOTE, 1)]);
}

#[test]
fn duplicate_read_may_ask_for_the_tail() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    end.poll();
    end.give(rdma(RcReadRequest, 2, REMOTE, 2 * MTU, 2 * MTU), &[]);
    let responses = end.poll();
    assert_eq!(responses.len(), 2);
    assert_eq!(responses[0].opcode(), RcReadResponseFirst);
    assert_eq!(responses[0].psn(), PEER_PSN + 2);
    assert_eq!(responses[1].opcode(), RcReadResponseLast);
    assert_eq!(responses[1].payload, end.host.bytes(REMOTE, 3 * MTU, MTU));
}

#[test]
fn duplicate_read_of_something_else_is_dropped() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 100, 4 * MTU), &[]);
    end.poll();
    for (offset, key, at, len) in [
        // Another address, another key, more data, from the middle of a packet.
        (0, REMOTE, 101, 4 * MTU),
        (0, LOCAL, 100, 4 * MTU),
        (0, REMOTE, 100, 4 * MTU + 1),
        (1, REMOTE, 100, 4 * MTU),
        (1, REMOTE, 100 + MTU + 1, 3 * MTU - 1),
    ] {
        end.give(rdma(RcReadRequest, offset, key, at, len), &[]);
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_read_whose_key_is_gone_is_dropped() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.poll();
    end.host.deregister(REMOTE);
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_read_that_is_being_answered_is_not_answered_twice() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    assert_eq!(end.poll_room(1).0.len(), 1);
    end.give(rdma(RcReadRequest, 2, REMOTE, 2 * MTU, 2 * MTU), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [1, 2, 3]);
    // From the start again, after that was already sent.
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    assert_eq!(end.poll_room(2).0.len(), 2);
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [0, 1, 2, 3]);
}

#[test]
fn duplicate_read_in_the_middle_of_a_write_does_not_disturb_it() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.give(rdma(RcWriteFirst, 1, REMOTE, 0, 3 * MTU), &[1; MTU]);
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.give(request(RcWriteMiddle, 2), &[2; MTU]);
    end.give(fetch_add(0, REMOTE, 0, 1), &[]);
    end.give(request(RcWriteLast, 3), &[3; MTU]);
    assert_eq!(end.qp.state(), QpState::Rts);
    assert_eq!(end.host.bytes(REMOTE, 0, MTU), [1; MTU]);
    assert_eq!(end.host.bytes(REMOTE, 2 * MTU, MTU), [3; MTU]);
    assert_eq!(end.poll().last().unwrap().psn(), PEER_PSN + 3);
}

#[test]
fn duplicate_send_or_write_in_the_middle_of_another_does_not_disturb_it() {
    let mut end = End::new();
    end.receive(1, &[sge(LOCAL, 0, 1)]);
    end.receive(2, &[sge(LOCAL, 0, 2 * MTU)]);
    end.give(request(RcSendOnly, 0), &[1]);
    end.give(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    end.give(request(RcSendFirst, 2), &[2; MTU]);
    end.give(request(RcSendOnly, 0), &[1]);
    end.give(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    end.give(request(RcSendFirst, 2), &[2; MTU]);
    end.give(request(RcSendLast, 3), &[3; MTU]);
    assert_eq!(end.received(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, MTU), [2; MTU]);
    assert_eq!(end.host.bytes(LOCAL, MTU, MTU), [3; MTU]);
}

#[test]
fn duplicate_atomic_answers_the_saved_result() {
    let mut end = End::new();
    end.give(fetch_add(0, REMOTE, 0, 5), &[]);
    let first = end.only();
    let memory = end.host.bytes(REMOTE, 0, 8);
    end.give(fetch_add(1, REMOTE, 0, 7), &[]);
    end.poll();
    end.give(fetch_add(0, REMOTE, 0, 5), &[]);
    let again = end.only();
    assert_eq!(again.header.atomic_ack, first.header.atomic_ack);
    assert_eq!(again.psn(), PEER_PSN);
    let added = u64::from_ne_bytes(memory.try_into().unwrap()).wrapping_add(7);
    assert_eq!(end.host.bytes(REMOTE, 0, 8), added.to_ne_bytes());
}

#[test]
fn results_are_saved_of_the_last_max_dest_rd_atomic_only() {
    let mut end = End::with(|attr| attr.max_dest_rd_atomic = 2);
    for offset in 0..3 {
        end.give(fetch_add(offset, REMOTE, 0, 1), &[]);
        end.poll();
    }
    end.give(fetch_add(0, REMOTE, 0, 1), &[]);
    assert!(end.poll().is_empty());
    for offset in [1, 2] {
        end.give(fetch_add(offset, REMOTE, 0, 1), &[]);
        assert_eq!(end.only().psn(), PEER_PSN + offset);
    }
}

#[test]
fn duplicates_do_not_use_up_the_resources_of_new_requests() {
    let mut end = End::with(|attr| attr.max_dest_rd_atomic = 1);
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.poll();
    // The network delivered the copy after the requester had received its answer and gone on.
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.give(rdma(RcReadRequest, 1, REMOTE, 0, 4), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [0, 1]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn duplicates_are_answered_before_what_followed_them() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.give(fetch_add(1, REMOTE, 0, 1), &[]);
    end.poll();
    end.give(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    end.give(fetch_add(1, REMOTE, 0, 1), &[]);
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [0, 1, 2]);
}

#[test]
fn a_flood_of_duplicates_takes_no_more_memory_than_is_due() {
    let mut end = End::with(|attr| attr.path_mtu = Mtu::B256);
    end.give(rdma(RcReadRequest, 0, REMOTE, 0, REGION), &[]);
    end.give(rdma(RcWriteOnly, 1024, REMOTE, 0, 1), &[1]);
    end.poll();
    for _ in 0..20 {
        for offset in 0..1024 {
            let at = offset as usize * MTU;
            end.give(rdma(RcReadRequest, offset, REMOTE, at, MTU), &[]);
            end.give(rdma(RcWriteOnly, 1024, REMOTE, 0, 1), &[1]);
            end.give(request(RcSendOnly, 1025), &[]);
        }
    }
    assert!(end.poll().len() <= 512);
}

#[test]
fn a_request_half_of_all_psns_behind_is_a_duplicate_and_ahead_a_gap() {
    let mut end = End::new();
    end.receive(1, &[]);
    end.give(request(RcSendOnly, 1 << 23), &[]);
    assert_eq!(end.qp.counters().duplicates, 1);
    end.give(request(RcSendOnly, (1 << 23) - 1), &[]);
    assert_eq!(end.qp.counters().out_of_sequence, 1);
    assert!(end.host.receptions.is_empty());
}
