//! Extended reliable connections (annex A14): each role in a queue pair of its own, and a shared
//! receive queue named by every request.

use super::*;
use crate::ids::Srqn;
use crate::queue::RecvQueue;
use crate::wire::Xrceth;

const OURS: Srqn = Srqn::new(0x77);
/// A queue of the same XRC domain whose protection domain has no memory.
const BARE: Srqn = Srqn::new(0x78);
const UNKNOWN: Srqn = Srqn::new(0x79);

const TGT_RTS: AttrMask = AttrMask::TIMEOUT.union(AttrMask::SQ_PSN);
const INI_RTR: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);

fn ini() -> Endpoint {
    let mut end = Endpoint::of(QpType::XrcIni);
    end.modify(QpState::Init, INIT, &attributes());
    end.modify(QpState::Rtr, INI_RTR, &attributes());
    end.modify(QpState::Rts, RTS, &attributes());
    end
}

fn tgt() -> Endpoint {
    let mut end = Endpoint::of(QpType::XrcTgt);
    end.host.shared = true;
    end.host.domain = vec![
        (OURS, RecvQueue::new(4, 4).unwrap()),
        (BARE, RecvQueue::new(4, 4).unwrap()),
    ];
    end.host.without_memory = Some(BARE);
    end.modify(QpState::Init, INIT, &attributes());
    end.modify(QpState::Rtr, RTR, &attributes());
    end.modify(QpState::Rts, TGT_RTS, &attributes());
    end
}

fn send_wr(op: SendOp, sges: &[Sge], dest: Option<Destination>) -> SendWr<'_> {
    SendWr {
        wr_id: 1,
        op,
        flags: SIGNALED,
        payload: Payload::Sges(sges),
        dest,
    }
}

fn for_srq(header: Header, srqn: Srqn) -> Header {
    header.with_xrceth(Xrceth { srqn })
}

fn post_receive(end: &mut Endpoint, queue: usize, wr_id: u64, len: usize) {
    let (_, queue) = &mut end.host.domain[queue];
    queue.post(wr_id, &[sge(LOCAL, 0, len)]).unwrap();
}

#[test]
fn every_packet_of_a_request_names_the_shared_queue() {
    let mut end = ini();
    let sges = [sge(LOCAL, 0, 3 * MTU)];
    let word = [sge(LOCAL, 0, 8)];
    let ops = [
        (SendOp::Send, &sges),
        (write_to(0), &sges),
        (read_from(0), &sges),
        (add(1), &word),
    ];
    for (op, sges) in ops {
        let wr = send_wr(op, sges, Some(Destination::Shared(OURS)));
        end.qp.post_send(&wr, end.now, &mut end.host).unwrap();
    }
    let packets = end.poll();
    assert_eq!(packets.len(), 3 + 3 + 1 + 1);
    for packet in packets {
        assert_eq!(packet.header.srq(), Some(OURS));
        assert_eq!(packet.opcode().info().transport, Transport::Xrc);
    }
}

#[test]
fn request_without_a_shared_queue_is_not_posted() {
    let mut end = ini();
    let wr = send_wr(SendOp::Send, &[], None);
    let posted = end.qp.post_send(&wr, end.now, &mut end.host);
    assert_eq!(posted, Err(PostError::Destination));
}

#[test]
fn message_consumes_a_receive_of_the_shared_queue_that_it_names() {
    let mut end = tgt();
    post_receive(&mut end, 0, 8, 2 * MTU);
    let first = request(Opcode::XrcSendFirst, 0);
    let last = request(Opcode::XrcSendLast, 1);
    end.deliver(for_srq(first, OURS), &[1; MTU]);
    end.deliver(for_srq(last, OURS), &[2; 10]);
    assert_eq!(end.received(), [(8, WcStatus::Success)]);
    assert_eq!(end.host.sources, [Some(OURS)]);
    assert_eq!(end.host.bytes(LOCAL, MTU, 10), [2; 10]);
    let ack = end.poll_one();
    assert_eq!(ack.opcode(), Opcode::XrcAck);
    assert_eq!(ack.syndrome(), UNLIMITED, "a shared queue has no credits");
}

#[test]
fn empty_shared_queue_is_receiver_not_ready() {
    let mut end = tgt();
    end.deliver(for_srq(request(Opcode::XrcSendOnly, 0), OURS), &[1]);
    assert!(matches!(end.poll_one().syndrome(), Syndrome::RnrNak(_)));
    post_receive(&mut end, 0, 3, 1);
    end.deliver(for_srq(request(Opcode::XrcSendOnly, 0), OURS), &[1]);
    assert_eq!(end.received(), [(3, WcStatus::Success)]);
}

#[test]
fn shared_queue_of_another_domain_is_an_invalid_request() {
    for header in [
        request(Opcode::XrcSendOnly, 0),
        rdma(Opcode::XrcReadRequest, 0, REMOTE, 0, 0),
        rdma(Opcode::XrcWriteOnly, 0, REMOTE, 0, 0),
    ] {
        let mut end = tgt();
        end.deliver(for_srq(header, UNKNOWN), &[]);
        let answer = end.poll_one();
        assert_eq!(answer.syndrome(), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(end.qp.state(), QpState::Err);
        let events = end.events();
        assert_eq!(events, [QpEvent::RequestError, QpEvent::LastWqeReached]);
    }
}

#[test]
fn memory_is_that_of_the_shared_queues_protection_domain() {
    let atomic = || {
        request(Opcode::XrcFetchAdd, 0).with_atomic(AtomicEth {
            addr: base(REMOTE),
            rkey: RKey(REMOTE),
            swap_or_add: 1,
            compare: 0,
        })
    };
    let requests = || {
        [
            (rdma(Opcode::XrcWriteOnly, 0, REMOTE, 0, 4), &[9; 4][..]),
            (rdma(Opcode::XrcReadRequest, 0, REMOTE, 0, 4), &[]),
            (atomic(), &[]),
        ]
    };
    for (header, payload) in requests() {
        let mut end = tgt();
        end.deliver(for_srq(header, BARE), payload);
        let answer = end.poll_one();
        assert_eq!(answer.syndrome(), Syndrome::Nak(NakCode::RemoteAccess));
    }
    for (header, payload) in requests() {
        let mut end = tgt();
        end.deliver(for_srq(header, OURS), payload);
        assert_eq!(end.poll_one().syndrome(), UNLIMITED);
    }
    let mut end = tgt();
    post_receive(&mut end, 1, 4, 1);
    end.deliver(for_srq(request(Opcode::XrcSendOnly, 0), BARE), &[1]);
    assert_eq!(end.received(), [(4, WcStatus::LocProtErr)]);
    assert_eq!(end.host.sources, [Some(BARE)]);
}

#[test]
fn repeated_read_is_answered_only_for_the_same_shared_queue() {
    let mut end = tgt();
    let read = rdma(Opcode::XrcReadRequest, 0, REMOTE, 0, 4);
    end.deliver(for_srq(read, OURS), &[]);
    assert_eq!(end.poll_one().opcode(), Opcode::XrcReadResponseOnly);
    end.deliver(for_srq(read, BARE), &[]);
    assert!(end.poll().is_empty());
    end.deliver(for_srq(read, OURS), &[]);
    assert_eq!(end.poll_one().opcode(), Opcode::XrcReadResponseOnly);
}

#[test]
fn initiator_and_target_accept_only_packets_of_their_role() {
    let mut end = ini();
    end.deliver(for_srq(request(Opcode::XrcSendOnly, 0), OURS), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.counters().malformed, 1);

    let mut end = tgt();
    end.deliver(answer(Opcode::XrcAck, 0, UNLIMITED), &[]);
    assert_eq!(end.qp.counters().malformed, 1);
    let wr = send_wr(SendOp::Send, &[], Some(Destination::Shared(OURS)));
    let posted = end.qp.post_send(&wr, end.now, &mut end.host);
    assert_eq!(posted, Err(PostError::Operation));
}

#[test]
fn packets_of_rc_are_dropped() {
    let mut end = tgt();
    end.deliver(request(Opcode::RcSendOnly, 0), &[]);
    assert!(end.poll().is_empty());
    let mut end = Endpoint::new();
    end.receive(1, &[]);
    end.deliver(for_srq(request(Opcode::XrcSendOnly, 0), OURS), &[]);
    assert!(end.poll().is_empty() && end.received().is_empty());
}

#[test]
fn receive_of_a_message_in_progress_is_flushed_and_the_others_stay() {
    let mut end = tgt();
    post_receive(&mut end, 0, 1, 2 * MTU);
    post_receive(&mut end, 0, 2, 2 * MTU);
    let first = request(Opcode::XrcSendFirst, 0);
    end.deliver(for_srq(first, OURS), &[1; MTU]);
    end.enter(QpState::Err);
    assert_eq!(end.received(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(end.host.sources, [Some(OURS)]);
    assert_eq!(end.events(), [QpEvent::LastWqeReached]);
    assert_eq!(end.host.domain[0].1.len(), 1);
}
