//! Duplicate requests (9.7.5.1.1).

use super::*;
use Opcode::*;
use WcStatus::Success;

#[test]
fn duplicate_send_is_acknowledged_and_not_delivered() {
    let mut end = Endpoint::new();
    end.receive(1, &[sge(LOCAL, 0, 1)]);
    end.receive(2, &[sge(LOCAL, 0, 1)]);
    end.deliver(request(RcSendOnly, 0), &[1]);
    assert_eq!(end.received(), [(1, Success)]);
    end.poll();
    end.deliver(request(RcSendOnly, 0), &[2]);
    let ack = end.poll_one();
    assert_eq!((ack.opcode(), ack.psn()), (RcAck, PEER_PSN));
    assert!(matches!(ack.syndrome(), Syndrome::Ack(_)));
    assert!(end.received().is_empty());
    assert_eq!(end.host.bytes(LOCAL, 0, 1), [1]);
    assert_eq!(end.qp.counters().duplicates, 1);
}

#[test]
fn duplicate_write_is_acknowledged_and_writes_nothing() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[2]);
    end.poll();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    // The ACK also covers the second request.
    assert_eq!(end.poll_one().psn(), PEER_PSN + 1);
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [2]);
}

#[test]
fn ack_for_duplicate_write_does_not_pass_a_later_read() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, 1), &[]);
    end.deliver(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    end.poll();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert_eq!(end.poll_one().psn(), PEER_PSN);
    end.deliver(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    assert_eq!(end.poll_one().psn(), PEER_PSN + 2);
}

#[test]
fn duplicate_read_is_executed_again() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 2), &[]);
    end.poll();
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[0xcc]);
    end.poll();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 2), &[]);
    let response = end.poll_one();
    assert_eq!(
        (response.opcode(), response.psn()),
        (RcReadResponseOnly, PEER_PSN)
    );
    assert_eq!(response.payload, [0xcc, pattern(REMOTE, 1)]);
}

#[test]
fn duplicate_read_may_request_the_tail() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    end.poll();
    end.deliver(rdma(RcReadRequest, 2, REMOTE, 2 * MTU, 2 * MTU), &[]);
    let responses = end.poll();
    assert_eq!(responses.len(), 2);
    assert_eq!(responses[0].opcode(), RcReadResponseFirst);
    assert_eq!(responses[0].psn(), PEER_PSN + 2);
    assert_eq!(responses[1].opcode(), RcReadResponseLast);
    assert_eq!(responses[1].payload, end.host.bytes(REMOTE, 3 * MTU, MTU));
}

#[test]
fn duplicate_read_of_another_range_is_dropped() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 100, 4 * MTU), &[]);
    end.poll();
    for (offset, key, at, len) in [
        // Another address, another key, more data, from the middle of a packet.
        (0, REMOTE, 101, 4 * MTU),
        (0, LOCAL, 100, 4 * MTU),
        (0, REMOTE, 100, 4 * MTU + 1),
        (1, REMOTE, 100, 4 * MTU),
        (1, REMOTE, 100 + MTU + 1, 3 * MTU - 1),
    ] {
        end.deliver(rdma(RcReadRequest, offset, key, at, len), &[]);
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_read_with_an_invalidated_key_is_dropped() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.poll();
    end.host.deregister(REMOTE);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_read_with_queued_responses_gets_no_others() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    assert_eq!(end.poll_room(1).0.len(), 1);
    end.deliver(rdma(RcReadRequest, 2, REMOTE, 2 * MTU, 2 * MTU), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [1, 2, 3]);
    // From the start again, after that was already sent.
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    assert_eq!(end.poll_room(2).0.len(), 2);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [0, 1, 2, 3]);
}

#[test]
fn duplicate_read_does_not_affect_a_write_in_progress() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.deliver(rdma(RcWriteFirst, 1, REMOTE, 0, 3 * MTU), &[1; MTU]);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.deliver(request(RcWriteMiddle, 2), &[2; MTU]);
    end.deliver(fetch_add(0, REMOTE, 0, 1), &[]);
    end.deliver(request(RcWriteLast, 3), &[3; MTU]);
    assert_eq!(end.qp.state(), QpState::Rts);
    assert_eq!(end.host.bytes(REMOTE, 0, MTU), [1; MTU]);
    assert_eq!(end.host.bytes(REMOTE, 2 * MTU, MTU), [3; MTU]);
    assert_eq!(end.poll().last().unwrap().psn(), PEER_PSN + 3);
}

#[test]
fn duplicate_send_or_write_does_not_affect_a_message_in_progress() {
    let mut end = Endpoint::new();
    end.receive(1, &[sge(LOCAL, 0, 1)]);
    end.receive(2, &[sge(LOCAL, 0, 2 * MTU)]);
    end.deliver(request(RcSendOnly, 0), &[1]);
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    end.deliver(request(RcSendFirst, 2), &[2; MTU]);
    end.deliver(request(RcSendOnly, 0), &[1]);
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    end.deliver(request(RcSendFirst, 2), &[2; MTU]);
    end.deliver(request(RcSendLast, 3), &[3; MTU]);
    assert_eq!(end.received(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, MTU), [2; MTU]);
    assert_eq!(end.host.bytes(LOCAL, MTU, MTU), [3; MTU]);
}

#[test]
fn duplicate_atomic_returns_the_saved_result() {
    let mut end = Endpoint::new();
    end.deliver(fetch_add(0, REMOTE, 0, 5), &[]);
    let first = end.poll_one();
    let memory = end.host.bytes(REMOTE, 0, 8);
    end.deliver(fetch_add(1, REMOTE, 0, 7), &[]);
    end.poll();
    end.deliver(fetch_add(0, REMOTE, 0, 5), &[]);
    let repeated = end.poll_one();
    assert_eq!(repeated.header.atomic_ack, first.header.atomic_ack);
    assert_eq!(repeated.psn(), PEER_PSN);
    let added = u64::from_ne_bytes(memory.try_into().unwrap()).wrapping_add(7);
    assert_eq!(end.host.bytes(REMOTE, 0, 8), added.to_ne_bytes());
}

#[test]
fn only_the_last_max_dest_rd_atomic_results_are_saved() {
    let mut end = Endpoint::with(|attr| attr.max_dest_rd_atomic = 2);
    for offset in 0..3 {
        end.deliver(fetch_add(offset, REMOTE, 0, 1), &[]);
        end.poll();
    }
    end.deliver(fetch_add(0, REMOTE, 0, 1), &[]);
    assert!(end.poll().is_empty());
    for offset in [1, 2] {
        end.deliver(fetch_add(offset, REMOTE, 0, 1), &[]);
        assert_eq!(end.poll_one().psn(), PEER_PSN + offset);
    }
}

#[test]
fn duplicates_do_not_count_towards_max_dest_rd_atomic() {
    let mut end = Endpoint::with(|attr| attr.max_dest_rd_atomic = 1);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.poll();
    // The network delivered the copy after the requester had received the response and continued.
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, 4), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [0, 1]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn response_to_a_duplicate_precedes_those_to_later_requests() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    end.deliver(fetch_add(1, REMOTE, 0, 1), &[]);
    end.poll();
    end.deliver(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    end.deliver(fetch_add(1, REMOTE, 0, 1), &[]);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4), &[]);
    let psns: Vec<u32> = end.poll().iter().map(|p| p.psn() - PEER_PSN).collect();
    assert_eq!(psns, [0, 1, 2]);
}

#[test]
fn duplicates_take_bounded_memory() {
    let mut end = Endpoint::with(|attr| attr.path_mtu = Mtu::B256);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, REGION), &[]);
    end.deliver(rdma(RcWriteOnly, 1024, REMOTE, 0, 1), &[1]);
    end.poll();
    for _ in 0..20 {
        for offset in 0..1024 {
            let at = offset as usize * MTU;
            end.deliver(rdma(RcReadRequest, offset, REMOTE, at, MTU), &[]);
            end.deliver(rdma(RcWriteOnly, 1024, REMOTE, 0, 1), &[1]);
            end.deliver(request(RcSendOnly, 1025), &[]);
        }
    }
    assert!(end.poll().len() <= 512);
}

#[test]
fn request_up_to_half_of_the_psn_space_behind_is_a_duplicate() {
    let mut end = Endpoint::new();
    end.receive(1, &[]);
    end.deliver(request(RcSendOnly, 1 << 23), &[]);
    assert_eq!(end.qp.counters().duplicates, 1);
    end.deliver(request(RcSendOnly, (1 << 23) - 1), &[]);
    assert_eq!(end.qp.counters().out_of_sequence, 1);
    assert!(end.host.receptions.is_empty());
}
