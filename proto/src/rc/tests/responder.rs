//! The responder's execution of requests, and its answers.

use super::*;
use Opcode::*;
use WcStatus::Success;

#[test]
fn message_fills_the_oldest_receive() {
    let mut end = Endpoint::new();
    end.receive(1, &[sge(LOCAL, 0, 200), sge(LOCAL, 1000, 400)]);
    end.deliver(request(RcSendFirst, 0), &[1; MTU]);
    assert!(end.host.receptions.is_empty());
    end.deliver(request(RcSendLastImm, 1), &[2; 10]);
    let (completion, solicited) = end.host.receptions[0];
    assert_eq!((completion.wr_id, completion.status), (1, Success));
    assert_eq!(
        (completion.opcode, completion.byte_len),
        (WcOpcode::Recv, 266)
    );
    assert_eq!(completion.extra, Extra::Imm(0xabcd_ef01));
    assert!(!solicited);
    assert_eq!(end.host.bytes(LOCAL, 0, 200), [1; 200]);
    assert_eq!(end.host.bytes(LOCAL, 1000, 56), [1; 56]);
    assert_eq!(end.host.bytes(LOCAL, 1056, 10), [2; 10]);
    assert_eq!(end.host.bytes(LOCAL, 1066, 1), [pattern(LOCAL, 1066)]);
}

#[test]
fn solicited_event_is_that_of_the_last_packet() {
    let mut end = Endpoint::new();
    end.receive(1, &[sge(LOCAL, 0, 600)]);
    end.receive(2, &[sge(LOCAL, 0, 600)]);
    end.deliver(request(RcSendFirst, 0).with_solicited(true), &[1; MTU]);
    end.deliver(request(RcSendLast, 1), &[1; 1]);
    end.deliver(request(RcSendFirst, 2), &[1; MTU]);
    end.deliver(request(RcSendLast, 3).with_solicited(true), &[1; 1]);
    let solicited: Vec<bool> = end.host.receptions.iter().map(|(_, s)| *s).collect();
    assert_eq!(solicited, [false, true]);
}

#[test]
fn write_with_immediate_consumes_a_receive_at_its_last_packet_and_leaves_it_empty() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteFirst, 0, REMOTE, 8, MTU + 4), &[7; MTU]);
    end.receive(1, &[sge(LOCAL, 0, 10)]);
    end.deliver(request(RcWriteLastImm, 1), &[8; 4]);
    let (completion, _) = end.host.receptions[0];
    assert_eq!(completion.opcode, WcOpcode::RecvWriteImm);
    assert_eq!(completion.byte_len as usize, MTU + 4);
    assert_eq!(completion.extra, Extra::Imm(0xabcd_ef01));
    assert_eq!(
        end.host.bytes(LOCAL, 0, 10),
        (0..10).map(|i| pattern(LOCAL, i)).collect::<Vec<_>>()
    );
    assert_eq!(end.host.bytes(REMOTE, 8 + MTU - 1, 5), [7, 8, 8, 8, 8]);
}

#[test]
fn send_with_invalidate_reports_the_key() {
    let mut end = Endpoint::new();
    end.receive(1, &[]);
    end.deliver(request(RcSendOnlyInv, 0), &[]);
    let (completion, _) = end.host.receptions[0];
    assert_eq!(completion.extra, Extra::Invalidated(RKey(REMOTE)));
}

#[test]
fn adjacent_acknowledgements_are_coalesced() {
    let mut end = Endpoint::new();
    for offset in 0..5 {
        end.deliver(rdma(RcWriteOnly, offset, REMOTE, 0, 1), &[1]);
    }
    let ack = end.poll_one();
    assert_eq!((ack.opcode(), ack.psn()), (RcAck, PEER_PSN + 4));
    assert_eq!(ack.msn(), 5);
}

#[test]
fn no_acknowledgement_is_sent_without_ack_req() {
    let mut end = Endpoint::new();
    for offset in 0..5 {
        let header = rdma(RcWriteOnly, offset, REMOTE, 0, 1).with_ack_req(false);
        end.deliver(header, &[1]);
    }
    assert!(end.poll().is_empty());
    end.deliver(rdma(RcWriteOnly, 5, REMOTE, 0, 1), &[1]);
    assert_eq!(end.poll_one().psn(), PEER_PSN + 5);
}

#[test]
fn msn_counts_each_message_once() {
    let mut end = Endpoint::new();
    end.receive(1, &[sge(LOCAL, 0, 1000)]);
    end.deliver(request(RcSendFirst, 0), &[1; MTU]);
    assert_eq!(end.poll_one().msn(), 0);
    end.deliver(request(RcSendMiddle, 1), &[1; MTU]);
    assert_eq!(end.poll_one().msn(), 0);
    end.deliver(request(RcSendLast, 2), &[1; 1]);
    assert_eq!(end.poll_one().msn(), 1);
    end.deliver(request(RcSendLast, 2), &[1; 1]);
    assert_eq!(end.poll_one().msn(), 1);
    end.deliver(rdma(RcReadRequest, 3, REMOTE, 0, 2 * MTU), &[]);
    assert!(end.poll().iter().all(|response| response.msn() == 2));
    end.deliver(fetch_add(5, REMOTE, 0, 1), &[]);
    assert_eq!(end.poll_one().msn(), 3);
    end.deliver(rdma(RcWriteOnly, 6, REMOTE, 0, 0), &[]);
    assert_eq!(end.poll_one().msn(), 4);
}

#[test]
fn msn_does_not_run_ahead_of_queued_responses() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, 1), &[]);
    end.deliver(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    let counts: Vec<u32> = end.poll().iter().map(Sent::msn).collect();
    assert_eq!(counts, [1, 2, 3]);
}

#[test]
fn responses_carry_credits_which_are_invalid_for_a_shared_queue() {
    let mut end = Endpoint::new();
    end.receive(1, &[]);
    end.receive(2, &[]);
    end.receive(3, &[]);
    end.deliver(request(RcSendOnly, 0), &[]);
    assert_eq!(
        end.poll_one().syndrome(),
        Syndrome::Ack(Credits::from_count(2))
    );
    end.host.shared = true;
    end.deliver(request(RcSendOnly, 1), &[]);
    assert_eq!(end.poll_one().syndrome(), UNLIMITED);
}

#[test]
fn read_responses_are_split_at_the_path_mtu() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 3, 2 * MTU + 1), &[]);
    let responses = end.poll();
    let opcodes: Vec<Opcode> = responses.iter().map(Sent::opcode).collect();
    assert_eq!(
        opcodes,
        [
            RcReadResponseFirst,
            RcReadResponseMiddle,
            RcReadResponseLast
        ]
    );
    let psns: Vec<u32> = responses.iter().map(Sent::psn).collect();
    assert_eq!(psns, [PEER_PSN, PEER_PSN + 1, PEER_PSN + 2]);
    let data: Vec<u8> = responses.iter().flat_map(|r| r.payload.clone()).collect();
    assert_eq!(data, end.host.bytes(REMOTE, 3, 2 * MTU + 1));
    // The responses have the READ's PSNs: the next request follows them.
    assert_eq!(end.qp.attributes().rq_psn, psn(PEER_PSN + 3));
    end.deliver(rdma(RcReadRequest, 3, NO_KEY, 3, 0), &[]);
    let nothing = end.poll_one();
    assert_eq!(
        (nothing.opcode(), nothing.payload.len()),
        (RcReadResponseOnly, 0)
    );
}

#[test]
fn atomics_return_the_original_value() {
    let mut end = Endpoint::new();
    let original = u64::from_ne_bytes(end.host.bytes(REMOTE, 8, 8).try_into().unwrap());
    end.deliver(fetch_add(0, REMOTE, 8, 5), &[]);
    let swap = |offset, compare| {
        request(RcCompareSwap, offset).with_atomic(AtomicEth {
            addr: base(REMOTE) + 8,
            rkey: RKey(REMOTE),
            swap_or_add: 77,
            compare,
        })
    };
    end.deliver(swap(1, original), &[]);
    end.deliver(swap(2, original.wrapping_add(5)), &[]);
    let results: Vec<_> = end.poll().iter().map(|r| r.header.atomic_ack).collect();
    let after = Some(original.wrapping_add(5));
    assert_eq!(results, [Some(original), after, after]);
    assert_eq!(end.host.bytes(REMOTE, 8, 8), 77_u64.to_ne_bytes());
}

#[test]
fn responses_are_sent_in_the_order_of_requests() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, 2 * MTU), &[]);
    end.deliver(fetch_add(3, REMOTE, 0, 1), &[]);
    end.deliver(rdma(RcWriteOnly, 4, REMOTE, 0, 1), &[1]);
    let mut psns = Vec::new();
    loop {
        // One packet at a time, so that the sink is full repeatedly.
        let (packets, more) = end.poll_room(1);
        psns.extend(packets.iter().map(|p| p.psn() - PEER_PSN));
        if !more {
            break;
        }
    }
    assert_eq!(psns, [0, 1, 2, 3, 4]);
}

#[test]
fn responses_and_requests_alternate_when_the_sink_is_full() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 3 * MTU), &[]);
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    let mut opcodes = Vec::new();
    loop {
        let (packets, more) = end.poll_room(1);
        opcodes.extend(packets.iter().map(Sent::opcode));
        if !more {
            break;
        }
    }
    assert_eq!(
        opcodes,
        [
            RcReadResponseFirst,
            RcSendFirst,
            RcReadResponseMiddle,
            RcSendLast,
            RcReadResponseLast
        ]
    );
}

#[test]
fn one_nak_per_gap() {
    // Without an out-of-order queue; `recovery` tests it.
    let mut end = Endpoint::with_out_of_order_queue(QpType::Rc, 0).connected(|_| ());
    end.receive(1, &[]);
    end.receive(2, &[]);
    end.receive(3, &[]);
    for offset in [1, 2, 3, 1, 2, 700] {
        end.deliver(request(RcSendOnly, offset), &[]);
    }
    let nak = end.poll_one();
    assert_eq!(nak.syndrome(), Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(nak.psn(), PEER_PSN);
    assert!(end.host.receptions.is_empty());
    end.deliver(request(RcSendOnly, 0), &[]);
    assert_eq!(
        end.poll_one().syndrome(),
        Syndrome::Ack(Credits::from_count(2))
    );
    end.deliver(request(RcSendOnly, 2), &[]);
    let nak = end.poll_one();
    assert_eq!(
        (nak.syndrome(), nak.psn()),
        (Syndrome::Nak(NakCode::PsnSequence), PEER_PSN + 1)
    );
}

#[test]
fn rnr_nak_carries_min_rnr_timer() {
    let mut end = Endpoint::with(|attr| attr.min_rnr_timer = 21);
    end.deliver(request(RcSendFirst, 0), &[1; MTU]);
    end.deliver(request(RcSendMiddle, 1), &[1; MTU]);
    end.deliver(request(RcSendLast, 2), &[1; 1]);
    // Its successors are dropped silently.
    let rnr = end.poll_one();
    assert_eq!(rnr.syndrome(), Syndrome::RnrNak(RnrTimer::new(21)));
    assert_eq!(rnr.psn(), PEER_PSN);
    // A retry causes another RNR NAK; until then a gap causes no NAK.
    end.deliver(request(RcSendFirst, 0), &[1; MTU]);
    assert_eq!(
        end.poll_one().syndrome(),
        Syndrome::RnrNak(RnrTimer::new(21))
    );
    end.receive(1, &[sge(LOCAL, 0, 1000)]);
    for (opcode, offset, len) in [
        (RcSendFirst, 0, MTU),
        (RcSendMiddle, 1, MTU),
        (RcSendLast, 2, 1),
    ] {
        end.deliver(request(opcode, offset), &vec![1; len]);
    }
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.poll_one().psn(), PEER_PSN + 2);
}

#[test]
fn write_with_immediate_without_receive_writes_nothing_of_its_last_packet() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnlyImm, 0, REMOTE, 0, 4), &[0xff; 4]);
    assert!(matches!(end.poll_one().syndrome(), Syndrome::RnrNak(_)));
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
    end.receive(1, &[]);
    end.deliver(rdma(RcWriteOnlyImm, 0, REMOTE, 0, 4), &[0xff; 4]);
    assert_eq!(end.host.bytes(REMOTE, 0, 4), [0xff; 4]);
    assert_eq!(end.received(), [(1, Success)]);
}

#[test]
fn expected_psn_wraps_within_a_message() {
    let mut end = Endpoint::with(|attr| attr.rq_psn = psn(0xff_ffff));
    end.receive(1, &[sge(LOCAL, 0, 1000)]);
    for (opcode, at, len) in [
        (RcSendFirst, 0xff_ffff, MTU),
        (RcSendMiddle, 0, MTU),
        (RcSendLast, 1, 1),
    ] {
        let mut header = request(opcode, 0);
        header.bth.psn = psn(at);
        end.deliver(header, &vec![1; len]);
    }
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.poll_one().psn(), 1);
}

#[test]
fn read_beyond_max_dest_rd_atomic_is_refused() {
    let mut end = Endpoint::with(|attr| attr.max_dest_rd_atomic = 2);
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 1), &[]);
    end.deliver(fetch_add(1, REMOTE, 0, 1), &[]);
    end.deliver(rdma(RcReadRequest, 2, REMOTE, 0, 1), &[]);
    let answers = end.poll();
    assert_eq!(answers.len(), 3);
    // Earlier requests are answered first.
    assert_eq!(answers[0].opcode(), RcReadResponseOnly);
    assert_eq!(answers[1].opcode(), RcAtomicAck);
    assert_eq!(
        answers[2].syndrome(),
        Syndrome::Nak(NakCode::InvalidRequest)
    );
    assert_eq!(answers[2].psn(), PEER_PSN + 2);
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(end.events(), [QpEvent::RequestError]);
}

#[test]
fn answered_reads_no_longer_count_towards_the_limit() {
    let mut end = Endpoint::with(|attr| attr.max_dest_rd_atomic = 1);
    for offset in 0..10 {
        end.deliver(rdma(RcReadRequest, offset, REMOTE, 0, 1), &[]);
        assert_eq!(end.poll_one().opcode(), RcReadResponseOnly);
    }
}

#[test]
fn all_operations_between_two_endpoints() {
    let (mut a, mut b) = pair(|_| ());
    let len = 100_000;
    b.receive(1, &[sge(LOCAL, 0, len)]);
    b.receive(2, &[]);
    a.post(1, SendOp::SendImm(3), SIGNALED, &[sge(READ_ONLY, 0, len)]);
    a.post(2, write_to(0), SIGNALED, &[sge(READ_ONLY, 50, len)]);
    a.post(3, read_from(9), SIGNALED, &[sge(LOCAL, 0, len)]);
    a.post(4, SendOp::SendInv(RKey(REMOTE)), SIGNALED, &[]);
    exchange(&mut a, &mut b);
    assert_eq!(
        a.done(),
        [(1, Success), (2, Success), (3, Success), (4, Success)]
    );
    assert_eq!(b.received(), [(1, Success), (2, Success)]);
    assert_eq!(b.host.bytes(LOCAL, 0, len), a.host.bytes(READ_ONLY, 0, len));
    assert_eq!(
        b.host.bytes(REMOTE, 0, len),
        a.host.bytes(READ_ONLY, 50, len)
    );
    assert_eq!(a.host.bytes(LOCAL, 0, len), b.host.bytes(REMOTE, 9, len));
    assert_eq!(a.qp.counters().retransmitted, 0);
}
