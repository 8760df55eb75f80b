//! Processing of incoming packets.

use super::*;
use crate::ids::PKey;

#[test]
fn send_fills_a_receive_and_reports_its_immediate_data() {
    let mut end = Endpoint::new();
    end.receive(1, MTU + 5);
    end.deliver(packet(UcSendFirst, 0), &[1; MTU]);
    assert_eq!(end.received(), []);
    let mut last = packet(UcSendLastImm, 1);
    last.bth.solicited = true;
    end.deliver(last, &[2; 5]);
    let (completion, solicited) = end.host.receptions[0];
    assert!(solicited);
    assert_eq!(
        (completion.opcode, completion.byte_len),
        (WcOpcode::Recv, MTU as u32 + 5)
    );
    assert_eq!(completion.extra, Extra::Imm(0xabcd_ef01));
    assert_eq!(end.host.bytes(LOCAL, MTU - 1, 3), [1, 2, 2]);
    assert_eq!(end.poll(), [], "no response is sent");
}

#[test]
fn write_consumes_a_receive_only_for_immediate_data() {
    let mut end = Endpoint::new();
    end.receive(1, 0);
    end.deliver(rdma(UcWriteFirst, 0, REMOTE, 16, MTU + 1), &[3; MTU]);
    end.deliver(packet(UcWriteLast, 1), &[4]);
    assert_eq!(end.host.bytes(REMOTE, 16 + MTU - 1, 2), [3, 4]);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.counters().writes_done, 1);
    end.deliver(rdma(UcWriteOnlyImm, 2, REMOTE, 0, 2), &[5; 2]);
    assert_eq!(
        end.qp.counters().writes_done,
        1,
        "the receive completion reports it"
    );
    let (completion, _) = end.host.receptions[0];
    assert_eq!(
        (completion.opcode, completion.byte_len),
        (WcOpcode::RecvWriteImm, 2)
    );
    assert_eq!(end.received(), [(1, Success)]);
}

/// 9.8.2.2.
#[test]
fn message_with_a_gap_is_dropped_and_the_next_uses_its_receive() {
    let mut end = Endpoint::new();
    end.receive(1, 4 * MTU);
    end.receive(2, 4 * MTU);
    end.deliver(packet(UcSendFirst, 0), &[1; MTU]);
    end.deliver(packet(UcSendMiddle, 2), &[1; MTU]);
    end.deliver(packet(UcSendLast, 3), &[1; MTU]);
    assert_eq!(end.received(), []);
    end.deliver(packet(UcSendOnly, 4), &[9; 4]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, 4), [9; 4]);
    let counters = *end.qp.counters();
    assert_eq!(
        (counters.incomplete_messages, counters.out_of_sequence),
        (1, 1)
    );
    assert_eq!(end.qp.attributes().rq_psn, Psn::new(PEER_PSN + 5));
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn message_without_its_first_packet_is_dropped() {
    let mut end = Endpoint::new();
    end.receive(1, 4 * MTU);
    end.deliver(packet(UcSendMiddle, 1), &[1; MTU]);
    end.deliver(packet(UcSendLast, 2), &[1; MTU]);
    end.deliver(rdma(UcWriteFirst, 3, REMOTE, 0, 2 * MTU), &[1; MTU]);
    end.deliver(packet(UcSendLast, 5), &[1; 3]);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.counters().incomplete_messages, 2);
    // A message may start at any PSN.
    end.deliver(packet(UcSendFirst, 1000), &[2; MTU]);
    end.deliver(packet(UcSendLast, 1001), &[3; 1]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.host.bytes(LOCAL, MTU - 1, 2), [2, 3]);
}

#[test]
fn unexpected_opcode_ends_the_message_and_may_start_another() {
    let mut end = Endpoint::new();
    end.receive(1, 4 * MTU);
    end.deliver(packet(UcSendFirst, 0), &[1; MTU]);
    // In sequence, but the first packet of another message.
    end.deliver(packet(UcSendFirst, 1), &[2; MTU]);
    end.deliver(packet(UcSendLast, 2), &[2; 1]);
    assert_eq!(end.host.receptions[0].0.byte_len, MTU as u32 + 1);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.qp.counters().incomplete_messages, 1);
    end.receive(2, 4 * MTU);
    end.deliver(packet(UcSendFirst, 3), &[1; MTU]);
    end.deliver(packet(UcWriteLast, 4), &[1; 1]);
    assert_eq!(end.qp.counters().incomplete_messages, 2);
    end.deliver(packet(UcSendLast, 5), &[1; 1]);
    assert_eq!(end.received(), []);
}

#[test]
fn message_without_a_receive_is_dropped_as_a_whole() {
    let mut end = Endpoint::new();
    end.deliver(packet(UcSendFirst, 0), &[1; MTU]);
    end.receive(1, 4 * MTU);
    end.deliver(packet(UcSendLast, 1), &[1; 1]);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.counters().no_receive, 1);
    assert_eq!(end.qp.counters().incomplete_messages, 0);
    end.deliver(packet(UcSendOnly, 2), &[2; 1]);
    assert_eq!(end.received(), [(1, Success)]);
}

/// 9.9.3, classes D and E.
#[test]
fn too_small_receive_is_kept_or_completes_with_an_error_if_shared() {
    for shared in [false, true] {
        let mut end = Endpoint::new();
        end.host.shared = shared;
        end.receive(1, MTU);
        end.deliver(packet(UcSendFirst, 0), &[1; MTU]);
        end.deliver(packet(UcSendLast, 1), &[1; 1]);
        let expected = if shared { vec![(1, LocLenErr)] } else { vec![] };
        assert_eq!(end.received(), expected);
        assert_eq!(end.qp.counters().receive_too_small, 1);
        assert_eq!(end.qp.state(), QpState::Rts);
        end.receive(2, MTU);
        end.deliver(packet(UcSendOnly, 2), &[1; 8]);
        let next = if shared { 2 } else { 1 };
        assert_eq!(end.received(), [(next, Success)]);
    }
}

#[test]
fn write_without_access_to_the_memory_is_dropped_silently() {
    let region = crate::testing::REGION;
    let cases = [
        (NO_KEY, 0, Access::REMOTE_WRITE),
        (READ_ONLY, 0, Access::REMOTE_WRITE),
        (REMOTE, region - 1, Access::REMOTE_WRITE),
        (REMOTE, 0, Access::empty()),
    ];
    for (key, at, access) in cases {
        let mut end = Endpoint::with(QpAttr {
            access,
            ..attributes()
        });
        end.receive(1, 8);
        end.deliver(rdma(UcWriteOnlyImm, 0, key, at, 2), &[0xee; 2]);
        assert_eq!(end.qp.counters().access_violations, 1);
        assert_eq!(end.host.receives.len(), 1);
        assert_eq!(end.received(), []);
        assert_eq!(end.host.events, []);
        assert_eq!(end.qp.state(), QpState::Rts);
        assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
        end.deliver(packet(UcSendOnly, 1), &[1]);
        assert_eq!(
            end.received(),
            [(1, Success)],
            "the receive was not consumed"
        );
    }
}

#[test]
fn write_of_another_length_than_announced_is_dropped() {
    for (announced, payload) in [(3, 2), (1, 2)] {
        let mut end = Endpoint::new();
        let header = rdma(UcWriteOnly, 0, REMOTE, 0, announced);
        end.deliver(header, &[0xee; 2][..payload]);
        assert_eq!(end.qp.counters().malformed, 1);
        assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
    }
    let mut end = Endpoint::new();
    end.receive(1, 4 * MTU);
    end.deliver(packet(UcSendFirst, 0), &[1; MTU - 1]);
    end.deliver(packet(UcSendLast, 1), &[1; 1]);
    assert_eq!(end.qp.counters().malformed, 1);
    assert_eq!(end.received(), []);
}

/// 9.9.3, class A.
#[test]
fn receive_in_deregistered_memory_moves_the_queue_pair_to_error() {
    let mut end = Endpoint::new();
    end.receive(1, 8);
    end.receive(2, 8);
    end.host.deregister(LOCAL);
    end.deliver(packet(UcSendOnly, 0), &[1; 4]);
    assert_eq!(end.received(), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
    end.receive(3, 8);
    assert_eq!(end.received(), [(3, WrFlushErr)]);
}

#[test]
fn error_state_flushes_in_order_including_the_held_receive() {
    let mut end = Endpoint::new();
    end.receive(1, MTU);
    end.receive(2, MTU);
    end.deliver(packet(UcSendFirst, 0), &[1; MTU]);
    end.post(7, SendOp::Send, 2 * MTU);
    assert_eq!(end.poll_room(1).0.len(), 1);
    end.enter(QpState::Err);
    assert_eq!(end.done(), [(7, WrFlushErr)]);
    assert_eq!(end.received(), [(1, WrFlushErr), (2, WrFlushErr)]);
    end.enter(QpState::Reset);
    assert_eq!(end.qp.attributes(), QpAttr::default());
    assert_eq!(end.received(), []);
}

#[test]
fn device_failure_flushes_and_is_reported() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, 1);
    end.qp.fail(end.now, &mut end.host);
    assert_eq!(end.done(), [(1, WrFlushErr)]);
    assert_eq!(end.host.events, [QpEvent::Fatal]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn packets_of_another_source_partition_or_service_are_dropped_and_counted() {
    let mut end = Endpoint::new();
    end.receive(1, 8);
    let header = packet(UcSendOnly, 0);
    let foreign = Packet {
        header,
        payload: &[],
    };
    let other = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 10));
    end.qp
        .handle_packet(end.now, other, &foreign, &mut end.host);
    assert_eq!(end.qp.counters().wrong_source, 1);
    let mut partition = header;
    partition.bth.pkey = PKey(0x8001);
    end.deliver(partition, &[]);
    assert_eq!(end.qp.counters().bad_pkey, 1);
    end.deliver(packet(RcSendOnly, 0), &[]);
    assert_eq!(end.qp.counters().malformed, 1);
    assert_eq!(end.qp.counters().received_packets, 0);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.attributes().rq_psn, Psn::new(PEER_PSN));
}

#[test]
fn first_packet_in_rtr_is_reported_once() {
    let mut end = Endpoint::reset();
    end.modify(QpState::Init, INIT, &attributes());
    end.receive(1, 8);
    end.receive(2, 8);
    end.deliver(packet(UcSendOnly, 0), &[]);
    assert_eq!(end.qp.counters().dropped_in_state, 1);
    end.modify(QpState::Rtr, RTR, &attributes());
    end.deliver(packet(UcSendOnly, 0), &[]);
    end.deliver(packet(UcSendOnly, 1), &[]);
    assert_eq!(end.received(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.events, [QpEvent::CommunicationEstablished]);
    let posted = end.try_post(1, SendOp::Send, &[]);
    assert_eq!(posted, Err(PostError::State));
}
