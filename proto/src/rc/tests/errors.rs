//! Requests and work requests that violate a rule: NAK, status and event.

use super::*;
use crate::wire::Operation;
use Opcode::*;
use WcStatus::*;

/// Headers with payloads.
type Packets<'a> = Vec<(Header, &'a [u8])>;

/// Delivers `packets` to a new end and returns the last answer, and the end.
fn refused(packets: &[(Header, &[u8])]) -> (Syndrome, Endpoint) {
    refused_by(Endpoint::new(), packets)
}

fn refused_by(mut end: Endpoint, packets: &[(Header, &[u8])]) -> (Syndrome, Endpoint) {
    end.receive(70, &[sge(LOCAL, 0, 4 * MTU)]);
    end.receive(71, &[]);
    for (header, payload) in packets {
        end.deliver(*header, payload);
    }
    assert_eq!(end.qp.state(), QpState::Err, "{packets:?}");
    let answers = end.poll();
    let last = answers.last().expect("a NAK");
    let offset = packets.last().unwrap().0.bth.psn;
    assert_eq!(last.header.bth.psn, offset);
    (last.syndrome(), end)
}

const INVALID_REQUEST: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const REMOTE_ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);
const FULL: &[u8] = &[1; MTU];

#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    let write_first = rdma(RcWriteFirst, 0, REMOTE, 0, 4 * MTU);
    let cases: [(&str, Packets<'_>); 12] = [
        (
            "SEND Middle without First",
            vec![(request(RcSendMiddle, 0), FULL)],
        ),
        (
            "SEND Last without First",
            vec![(request(RcSendLast, 0), FULL)],
        ),
        (
            "SEND Last with Invalidate",
            vec![(request(RcSendLastInv, 0), FULL)],
        ),
        (
            "WRITE Middle without First",
            vec![(request(RcWriteMiddle, 0), FULL)],
        ),
        (
            "WRITE Last without First",
            vec![(request(RcWriteLast, 0), FULL)],
        ),
        (
            "First in a SEND",
            vec![
                (request(RcSendFirst, 0), FULL),
                (request(RcSendFirst, 1), FULL),
            ],
        ),
        (
            "Only in a SEND",
            vec![
                (request(RcSendFirst, 0), FULL),
                (request(RcSendOnly, 1), &[1]),
            ],
        ),
        (
            "WRITE Last in a SEND",
            vec![
                (request(RcSendFirst, 0), FULL),
                (request(RcWriteLast, 1), &[1]),
            ],
        ),
        (
            "WRITE First in a SEND",
            vec![
                (request(RcSendFirst, 0), FULL),
                (rdma(RcWriteFirst, 1, REMOTE, 0, 2 * MTU), FULL),
            ],
        ),
        (
            "SEND Middle in a WRITE",
            vec![(write_first, FULL), (request(RcSendMiddle, 1), FULL)],
        ),
        (
            "READ in a WRITE",
            vec![
                (write_first, FULL),
                (rdma(RcReadRequest, 1, REMOTE, 0, 1), &[]),
            ],
        ),
        (
            "atomic in a SEND",
            vec![
                (request(RcSendFirst, 0), FULL),
                (fetch_add(1, REMOTE, 0, 1), &[]),
            ],
        ),
    ];
    for (what, packets) in cases {
        let (syndrome, mut end) = refused(&packets);
        assert_eq!(syndrome, INVALID_REQUEST, "{what}");
        // The error is reported by a consumed receive, or else by an event.
        let taken = packets[0].0.bth.opcode == RcSendFirst;
        let status = if taken { RemInvReqErr } else { WrFlushErr };
        assert_eq!(end.received(), [(70, status), (71, WrFlushErr)], "{what}");
        let events = if taken {
            vec![]
        } else {
            vec![QpEvent::RequestError]
        };
        assert_eq!(end.events(), events, "{what}");
    }
}

#[test]
fn payloads_of_wrong_length_are_invalid_requests() {
    let first = (request(RcSendFirst, 0), FULL);
    let long = [1; MTU + 4];
    let cases: [(&str, Packets<'_>); 12] = [
        (
            "First shorter than the MTU",
            vec![(request(RcSendFirst, 0), &FULL[1..])],
        ),
        (
            "First longer than the MTU",
            vec![(request(RcSendFirst, 0), &long)],
        ),
        (
            "Middle shorter",
            vec![first, (request(RcSendMiddle, 1), &FULL[1..])],
        ),
        ("Last empty", vec![first, (request(RcSendLast, 1), &[])]),
        (
            "Last too long",
            vec![first, (request(RcSendLast, 1), &long)],
        ),
        ("Only too long", vec![(request(RcSendOnly, 0), &long)]),
        (
            "WRITE Only short",
            vec![(rdma(RcWriteOnly, 0, REMOTE, 0, 5), &[1; 4])],
        ),
        (
            "WRITE Only long",
            vec![(rdma(RcWriteOnly, 0, REMOTE, 0, 3), &[1; 4])],
        ),
        (
            "WRITE First alone",
            vec![(rdma(RcWriteFirst, 0, REMOTE, 0, MTU), FULL)],
        ),
        (
            "WRITE Middle is the end",
            vec![
                (rdma(RcWriteFirst, 0, REMOTE, 0, 2 * MTU), FULL),
                (request(RcWriteMiddle, 1), FULL),
            ],
        ),
        (
            "WRITE Last too early",
            vec![
                (rdma(RcWriteFirst, 0, REMOTE, 0, 3 * MTU), FULL),
                (request(RcWriteLast, 1), FULL),
            ],
        ),
        (
            "WRITE Last brings too much",
            vec![
                (rdma(RcWriteFirst, 0, REMOTE, 0, MTU + 1), FULL),
                (request(RcWriteLast, 1), &[1; 2]),
            ],
        ),
    ];
    for (what, packets) in cases {
        assert_eq!(refused(&packets).0, INVALID_REQUEST, "{what}");
    }
}

#[test]
fn rdma_of_more_than_2_gib_is_an_invalid_request() {
    let length = (1 << 31) + 1;
    for header in [
        rdma(RcReadRequest, 0, REMOTE, 0, length),
        rdma(RcWriteFirst, 0, REMOTE, 0, length),
    ] {
        let payload = if header.bth.opcode == RcReadRequest {
            &[]
        } else {
            FULL
        };
        assert_eq!(refused(&[(header, payload)]).0, INVALID_REQUEST);
    }
}

#[test]
fn misaligned_atomic_is_an_invalid_request() {
    for at in [1, 4, 7] {
        let (syndrome, mut end) = refused(&[(fetch_add(0, REMOTE, at, 1), &[])]);
        assert_eq!(syndrome, INVALID_REQUEST);
        assert_eq!(end.events(), [QpEvent::RequestError]);
        assert_eq!(end.host.bytes(REMOTE, at, 1), [pattern(REMOTE, at)]);
    }
}

#[test]
fn opcodes_of_other_transports_are_invalid_requests() {
    let reth = Reth::default();
    let write = request(RcAtomicWrite, 0).with_reth(reth);
    assert_eq!(refused(&[(write, &[1; 8])]).0, INVALID_REQUEST);
    let flush = request(RcFlush, 0)
        .with_reth(reth)
        .with_feth(crate::wire::Feth::default());
    assert_eq!(refused(&[(flush, &[])]).0, INVALID_REQUEST);
}

/// 9.9.3, «unsupported or reserved OpCode».
#[test]
fn reserved_opcodes_are_invalid_requests() {
    let reserved: Vec<Opcode> = (0..0x20)
        .filter_map(Opcode::from_u8)
        .filter(|opcode| opcode.info().operation == Operation::Reserved)
        .collect();
    assert_eq!(reserved.len(), 7);
    for opcode in reserved {
        for payload in [&[][..], FULL, &[1; 2 * MTU]] {
            let (answer, mut end) = refused(&[(request(opcode, 0), payload)]);
            assert_eq!(answer, INVALID_REQUEST, "{opcode}");
            assert!(end.events().contains(&QpEvent::RequestError));
        }
        // The same in the middle of a message.
        let message = [(request(RcSendFirst, 0), FULL), (request(opcode, 1), &[])];
        assert_eq!(refused(&message).0, INVALID_REQUEST);
    }
}

#[test]
fn reserved_opcodes_are_refused_in_psn_order() {
    let mut end = Endpoint::new();
    end.receive(1, &[sge(LOCAL, 0, 4)]);
    end.deliver(fetch_add(0, REMOTE, 0, 1), &[]);
    end.deliver(request(RcSendOnly, 1), &[1; 4]);
    end.poll();
    // A duplicate is dropped, whatever request had its PSN.
    for past in [0, 1] {
        end.deliver(request(RcReserved1f, past).with_ack_req(true), &[]);
        assert!(end.poll().is_empty());
    }
    // One behind a gap only reports the gap.
    end.deliver(request(RcReserved1f, 3), &[]);
    assert_eq!(
        end.poll_one().syndrome(),
        Syndrome::Nak(NakCode::PsnSequence)
    );
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn remote_memory_is_checked_for_key_permission_and_range() {
    let end_of_region = REGION - 3;
    for (key, at) in [
        (NO_KEY, 0),
        (READ_ONLY, 0),
        (LOCAL, 0),
        (REMOTE, end_of_region),
        (REMOTE, 1 << 30),
    ] {
        let cases: [(Header, &[u8]); 4] = [
            (rdma(RcWriteOnly, 0, key, at, 4), &[1; 4]),
            (rdma(RcWriteFirst, 0, key, at, 2 * MTU), FULL),
            (rdma(RcReadRequest, 0, key, at, 4), &[]),
            (fetch_add(0, key, at & !7, 1), &[]),
        ];
        for (header, payload) in cases {
            if header.bth.opcode == RcFetchAdd && at == end_of_region {
                continue;
            }
            let (syndrome, mut end) = refused(&[(header, payload)]);
            assert_eq!(syndrome, REMOTE_ACCESS, "{header:?}");
            assert_eq!(end.events(), [QpEvent::AccessError]);
            assert_eq!(end.received(), [(70, WrFlushErr), (71, WrFlushErr)]);
        }
    }
}

#[test]
fn address_range_that_wraps_is_out_of_range() {
    let mut header = rdma(RcReadRequest, 0, REMOTE, 0, 4);
    header.reth.as_mut().unwrap().addr = u64::MAX - 1;
    assert_eq!(refused(&[(header, &[])]).0, REMOTE_ACCESS);
}

#[test]
fn operation_that_the_queue_pair_does_not_permit_is_an_invalid_request() {
    let cases: [(Access, Header, &[u8]); 3] = [
        (
            Access::REMOTE_WRITE,
            rdma(RcWriteOnly, 0, REMOTE, 0, 1),
            &[1],
        ),
        (
            Access::REMOTE_READ,
            rdma(RcReadRequest, 0, REMOTE, 0, 1),
            &[],
        ),
        (Access::REMOTE_ATOMIC, fetch_add(0, REMOTE, 0, 1), &[]),
    ];
    for (right, header, payload) in cases {
        let end = Endpoint::with(|attr| attr.access = attr.access.difference(right));
        let (syndrome, mut end) = refused_by(end, &[(header, payload)]);
        assert_eq!(syndrome, INVALID_REQUEST);
        assert_eq!(end.events(), [QpEvent::RequestError]);
    }
}

#[test]
fn write_with_immediate_without_access_completes_its_receive_with_an_error() {
    let (syndrome, mut end) = refused(&[(rdma(RcWriteOnlyImm, 0, NO_KEY, 0, 1), &[1])]);
    assert_eq!(syndrome, REMOTE_ACCESS);
    assert_eq!(end.received(), [(70, LocAccessErr), (71, WrFlushErr)]);
    assert!(end.events().is_empty());
}

#[test]
fn key_invalidated_during_a_write_is_an_access_error() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteFirst, 0, REMOTE, 0, 2 * MTU), FULL);
    end.host.deregister(REMOTE);
    end.deliver(request(RcWriteLast, 1), FULL);
    assert_eq!(end.poll().last().unwrap().syndrome(), REMOTE_ACCESS);
    assert_eq!(end.events(), [QpEvent::AccessError]);
}

#[test]
fn key_invalidated_during_a_read_is_an_access_error() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 4 * MTU), &[]);
    end.deliver(rdma(RcWriteOnly, 4, REMOTE, 0, 1), &[1]);
    assert_eq!(end.poll_room(2).0.len(), 2);
    end.host.deregister(REMOTE);
    // A full sink does not lose the NAK.
    assert_eq!(end.poll_room(0), (vec![], true));
    let (packets, more) = end.poll_room(1);
    assert!(!more);
    assert_eq!(packets[0].syndrome(), REMOTE_ACCESS);
    assert_eq!(packets[0].psn(), PEER_PSN + 2);
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(end.events(), [QpEvent::AccessError]);
    assert!(end.poll().is_empty());
}

#[test]
fn invalidation_of_an_unknown_key_is_refused() {
    let header = request(RcSendOnlyInv, 0).with_ieth(RKey(NO_KEY));
    let (syndrome, mut end) = refused(&[(header, &[1])]);
    assert_eq!(syndrome, INVALID_REQUEST);
    assert_eq!(end.received(), [(70, RemInvReqErr), (71, WrFlushErr)]);
}

#[test]
fn too_small_receive_is_a_length_error_and_an_invalid_request_at_the_requester() {
    let (mut a, mut b) = pair(|_| ());
    b.receive(1, &[sge(LOCAL, 0, MTU), sge(LOCAL, 0, 9)]);
    b.receive(2, &[]);
    a.post_signaled(1, SendOp::Send, MTU + 10);
    a.post_signaled(2, SendOp::Send, 1);
    exchange(&mut a, &mut b);
    assert_eq!(b.received(), [(1, LocLenErr), (2, WrFlushErr)]);
    assert_eq!(a.done(), [(1, RemInvReqErr), (2, WrFlushErr)]);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
}

#[test]
fn receive_with_an_invalid_key_is_a_protection_error_and_an_operation_error_at_the_requester() {
    for bad in [
        sge(NO_KEY, 0, 8),
        sge(READ_ONLY, 0, 8),
        sge(LOCAL, REGION - 4, 8),
    ] {
        let (mut a, mut b) = pair(|_| ());
        b.receive(1, &[bad]);
        a.post_signaled(1, SendOp::Send, 8);
        exchange(&mut a, &mut b);
        assert_eq!(b.received(), [(1, LocProtErr)]);
        assert_eq!(a.done(), [(1, RemOpErr)]);
    }
}

#[test]
fn remote_access_error_raises_an_access_event_at_the_responder() {
    let (mut a, mut b) = pair(|_| ());
    a.post_signaled(1, write_to(0), 4);
    a.post_signaled(2, read_from(0), 4);
    a.post_signaled(3, write_to(REGION), 4);
    a.post_signaled(4, write_to(0), 4);
    exchange(&mut a, &mut b);
    // The requests before the bad one were executed and complete.
    assert_eq!(
        a.done(),
        [
            (1, Success),
            (2, Success),
            (3, RemAccessErr),
            (4, WrFlushErr)
        ]
    );
    assert_eq!(b.events(), [QpEvent::AccessError]);
}

#[test]
fn fatal_nak_is_repeated_on_a_lossy_path() {
    let bad = || rdma(RcWriteOnly, 1, REMOTE + 1, 0, 1);
    let naks = |end: &mut Endpoint| {
        end.deliver(bad(), &[1]);
        let answers = end.poll();
        assert!(answers.iter().all(|packet| packet.psn() == PEER_PSN + 1));
        assert!(answers.iter().all(|nak| nak.syndrome() == REMOTE_ACCESS));
        assert_eq!(end.qp.counters().fatal_naks_sent(), 1);
        assert_eq!(end.events(), [QpEvent::AccessError]);
        answers.len()
    };
    let good = |end: &mut Endpoint| {
        end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
        end.poll_one();
    };
    let mut end = Endpoint::new();
    good(&mut end);
    assert_eq!(naks(&mut end), 1);

    let mut end = Endpoint::new();
    good(&mut end);
    good(&mut end);
    assert_eq!(naks(&mut end), 3);
    // A later request finds the queue pair in error.
    end.deliver(bad(), &[1]);
    assert!(end.poll().is_empty());
}

#[test]
fn nak_for_a_read_that_lost_access_is_repeated_on_a_lossy_path() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.poll();
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, MTU), &[]);
    end.deliver(rdma(RcWriteOnly, 2, REMOTE, 0, 1), &[1]);
    end.host.deregister(REMOTE);
    let answers = end.poll();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|nak| nak.syndrome() == REMOTE_ACCESS));
}

#[test]
fn nak_codes_map_to_completion_statuses() {
    for (code, status) in [
        (NakCode::InvalidRequest, RemInvReqErr),
        (NakCode::RemoteAccess, RemAccessErr),
        (NakCode::RemoteOperational, RemOpErr),
        (NakCode::InvalidRd, RemInvRdReqErr),
        (NakCode::Reserved(17), BadRespErr),
    ] {
        let mut end = Endpoint::new();
        end.post_signaled(1, SendOp::Send, 1);
        end.post_signaled(2, SendOp::Send, 1);
        end.post_signaled(3, SendOp::Send, 1);
        end.poll();
        end.deliver(nak(1, code), &[]);
        assert_eq!(end.done(), [(1, Success), (2, status), (3, WrFlushErr)]);
        assert_eq!(end.qp.state(), QpState::Err);
    }
}

#[test]
fn local_error_completes_after_earlier_work_requests() {
    for bad in [sge(NO_KEY, 0, 1), sge(LOCAL, REGION, 1)] {
        let mut end = Endpoint::new();
        end.post_signaled(1, SendOp::Send, 1);
        end.post_signaled(2, read_from(0), 1);
        end.post(3, SendOp::Send, UNSIGNALED, &[bad]);
        end.post_signaled(4, SendOp::Send, 1);
        assert_eq!(end.poll().len(), 2);
        assert!(end.done().is_empty());
        end.deliver(ack(0), &[]);
        assert_eq!(end.done(), [(1, Success)]);
        end.deliver(answer(RcReadResponseOnly, 1, UNLIMITED), &[1]);
        assert_eq!(end.done(), [(2, Success), (3, LocProtErr), (4, WrFlushErr)]);
    }
}

#[test]
fn read_into_unwritable_memory_is_not_sent() {
    for op in [read_from(0), add(1)] {
        let mut end = Endpoint::new();
        end.post(1, op, SIGNALED, &[sge(READ_ONLY, 0, 8)]);
        assert!(end.poll().is_empty());
        assert_eq!(end.done(), [(1, LocProtErr)]);
    }
}

#[test]
fn key_invalidated_before_the_response_is_a_protection_error() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, read_from(0), 4);
    end.poll();
    end.host.deregister(LOCAL);
    end.deliver(answer(RcReadResponseOnly, 1, UNLIMITED), &[1; 4]);
    assert_eq!(end.done(), [(1, Success), (2, LocProtErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn response_of_the_wrong_length_is_a_bad_response() {
    for (len, payload) in [(4, 3), (4, 5), (MTU + 1, MTU - 1), (2 * MTU, 0)] {
        let mut end = Endpoint::new();
        end.post_signaled(1, read_from(0), len);
        end.poll();
        let header = answer(RcReadResponseOnly, 0, UNLIMITED);
        end.deliver(header, &vec![1; payload]);
        assert_eq!(end.done(), [(1, BadRespErr)], "{len} {payload}");
    }
}
