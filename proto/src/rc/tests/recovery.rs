//! Loss recovery: the out-of-order queue of the responder and selective repeat by the requester.

use super::*;
use Opcode::*;
use WcStatus::Success;

const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

fn psns(packets: &[Sent]) -> Vec<u32> {
    packets.iter().map(|p| p.psn() - OWN_PSN).collect()
}

/// Delivers a WRITE of one byte, with value and address equal to its number.
fn write(end: &mut Endpoint, offset: u32) {
    let header = rdma(RcWriteOnly, offset, REMOTE, offset as usize, 1);
    end.deliver(header, &[offset as u8]);
}

#[test]
fn requests_behind_a_gap_are_executed_when_it_closes_and_not_before() {
    let mut end = Endpoint::new();
    let before = end.host.bytes(REMOTE, 0, 3);
    write(&mut end, 2);
    write(&mut end, 1);
    let nak = end.poll_one();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN));
    assert_eq!(end.host.bytes(REMOTE, 0, 3), before);
    write(&mut end, 0);
    let ack = end.poll_one();
    assert!(matches!(ack.syndrome(), Syndrome::Ack(_)));
    assert_eq!(ack.psn(), PEER_PSN + 2);
    assert_eq!(end.host.bytes(REMOTE, 0, 3), [0, 1, 2]);
    assert_eq!(end.qp.counters().out_of_order_executed, 2);
}

#[test]
fn queued_write_is_executed_once() {
    let mut end = Endpoint::new();
    let done = |end: &Endpoint| end.qp.counters().writes_done;
    write(&mut end, 1);
    assert_eq!(done(&end), 0);
    write(&mut end, 0);
    assert_eq!(done(&end), 2);
    write(&mut end, 1);
    assert_eq!(done(&end), 2);
    end.deliver(rdma(RcWriteFirst, 2, REMOTE, 0, MTU + 1), &[2; MTU]);
    assert_eq!(done(&end), 2);
    end.deliver(request(RcWriteLast, 3), &[3]);
    assert_eq!(done(&end), 3);
}

#[test]
fn closed_gap_is_acknowledged_up_to_the_last_queued_request() {
    let mut end = Endpoint::new();
    let without_ack_req = rdma(RcWriteOnly, 1, REMOTE, 1, 1).with_ack_req(false);
    end.deliver(without_ack_req, &[1]);
    end.poll();
    write(&mut end, 0);
    assert_eq!(end.poll_one().psn(), PEER_PSN + 1);
}

#[test]
fn next_gap_is_reported_when_the_first_closes() {
    let mut end = Endpoint::new();
    for offset in [1, 2, 4, 5] {
        write(&mut end, offset);
    }
    assert_eq!(end.poll_one().psn(), PEER_PSN);
    write(&mut end, 0);
    // The NAK also acknowledges the requests before the gap.
    let nak = end.poll_one();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 3));
    write(&mut end, 3);
    assert_eq!(end.poll_one().psn(), PEER_PSN + 5);
}

#[test]
fn gap_that_closes_before_its_nak_is_sent_is_not_reported() {
    let mut end = Endpoint::new();
    write(&mut end, 1);
    write(&mut end, 0);
    let ack = end.poll_one();
    assert!(matches!(ack.syndrome(), Syndrome::Ack(_)));
    assert_eq!(ack.psn(), PEER_PSN + 1);
}

#[test]
fn request_queued_twice_is_executed_once() {
    let mut end = Endpoint::new();
    for wr_id in 0..3 {
        end.receive(wr_id, &[]);
    }
    for offset in [1, 1, 1, 0] {
        end.deliver(request(RcSendOnly, offset), &[]);
    }
    assert_eq!(end.received(), [(0, Success), (1, Success)]);
    // A late copy is an ordinary duplicate.
    end.deliver(request(RcSendOnly, 1), &[]);
    assert!(end.received().is_empty());
    assert_eq!(end.qp.counters().duplicates, 1);
}

#[test]
fn queued_read_is_executed_in_psn_order() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, 2), &[]);
    write(&mut end, 3);
    end.poll();
    write(&mut end, 0);
    let answers = end.poll();
    let sent: Vec<_> = answers.iter().map(|p| (p.opcode(), p.psn())).collect();
    let expected = [
        (RcAck, PEER_PSN),
        (RcReadResponseOnly, PEER_PSN + 1),
        (RcAck, PEER_PSN + 2),
    ];
    assert_eq!(sent, expected);
    assert_eq!(answers[1].payload, [0, pattern(REMOTE, 1)]);
    assert_eq!(answers[2].syndrome(), GAP);
}

#[test]
fn request_beyond_the_queue_limit_is_reported_missing() {
    // Room for one or two requests of a byte each.
    let mut end = Endpoint::with_out_of_order_queue(QpType::Rc, 450).connected(|_| ());
    for offset in 1..5 {
        write(&mut end, offset);
    }
    assert_eq!(end.poll_one().psn(), PEER_PSN);
    write(&mut end, 0);
    let executed = end.qp.counters().out_of_order_executed as u32;
    assert!((1..4).contains(&executed));
    let nak = end.poll_one();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 1 + executed));
}

#[test]
fn request_far_behind_a_gap_is_not_queued() {
    let mut end = Endpoint::new();
    write(&mut end, (1 << 14) + 1);
    end.poll();
    write(&mut end, 0);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
    // Its arrival still shows that a request is missing.
    assert_eq!(end.poll_one().syndrome(), GAP);
}

#[test]
fn request_with_an_implausible_psn_shows_no_gap() {
    let mut end = Endpoint::new();
    write(&mut end, (1 << 16) + 1);
    assert_eq!(end.poll_one().syndrome(), GAP);
    write(&mut end, 0);
    assert!(!matches!(end.poll_one().syndrome(), Syndrome::Nak(_)));
}

#[test]
fn no_request_is_queued_after_an_rnr_nak() {
    let mut end = Endpoint::new();
    end.deliver(request(RcSendOnly, 1), &[]);
    end.poll();
    end.deliver(request(RcSendOnly, 0), &[]);
    assert!(matches!(end.poll_one().syndrome(), Syndrome::RnrNak(_)));
    end.receive(1, &[]);
    end.receive(2, &[]);
    end.deliver(request(RcSendOnly, 0), &[]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.poll_one().psn(), PEER_PSN);
}

#[test]
fn invalid_queued_request_is_refused_in_psn_order() {
    let mut end = Endpoint::new();
    end.deliver(request(RcSendLast, 1), &[1]);
    assert_eq!(end.poll_one().syndrome(), GAP);
    assert_eq!(end.qp.state(), QpState::Rts);
    write(&mut end, 0);
    assert_eq!(end.qp.state(), QpState::Err);
    let answers = end.poll();
    let last = answers.last().unwrap();
    assert_eq!(last.syndrome(), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(last.psn(), PEER_PSN + 1);
}

impl Endpoint {
    /// Delivers a WRITE like [`write`]'s, from another UDP port than the peer's.
    fn forge(&mut self, offset: u32, value: u8) {
        let header = rdma(RcWriteOnly, offset, REMOTE, offset as usize, 1).with_payload_len(1);
        let packet = Packet {
            header,
            payload: &[value],
        };
        let from = Source {
            gid: peer_gid(),
            port: PEER_PORT + 1,
        };
        self.qp
            .handle_packet(self.now, from, &packet, &mut self.host);
    }
}

#[test]
fn request_from_another_udp_port_is_not_queued() {
    let mut end = Endpoint::new();
    write(&mut end, 0);
    end.forge(2, 99);
    write(&mut end, 1);
    assert_ne!(end.host.bytes(REMOTE, 2, 1), [99]);
    write(&mut end, 2);
    assert_eq!(end.host.bytes(REMOTE, 0, 3), [0, 1, 2]);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
    assert_eq!(end.qp.counters().duplicates, 0);
}

#[test]
fn first_request_in_order_determines_the_udp_port() {
    let mut end = Endpoint::new();
    end.forge(2, 99);
    write(&mut end, 1);
    write(&mut end, 0);
    assert_eq!(end.qp.counters().out_of_order_executed, 1);
    assert_ne!(end.host.bytes(REMOTE, 2, 1), [99]);
    // It was sent, so it is reported as missing.
    let answers = end.poll();
    let last = answers.last().unwrap();
    assert_eq!((last.syndrome(), last.psn()), (GAP, PEER_PSN + 2));
    write(&mut end, 2);
    assert_eq!(end.host.bytes(REMOTE, 0, 3), [0, 1, 2]);
}

#[test]
fn requests_from_a_new_udp_port_are_queued_after_one_in_order() {
    let mut end = Endpoint::new();
    write(&mut end, 0);
    end.forge(1, 1);
    end.forge(3, 3);
    end.forge(2, 2);
    assert_eq!(end.qp.counters().out_of_order_executed, 1);
    assert_eq!(end.host.bytes(REMOTE, 0, 4), [0, 1, 2, 3]);
}

#[test]
fn requests_behind_an_old_gap_are_dropped_and_reported_missing() {
    let mut end = Endpoint::new();
    write(&mut end, 0);
    write(&mut end, 2);
    end.poll();
    end.wait_for_deadline();
    assert_eq!(end.qp.deadline(), Time::NEVER);
    write(&mut end, 1);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
    let nak = end.poll_one();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 2));
    write(&mut end, 2);
    assert_eq!(end.host.bytes(REMOTE, 0, 3), [0, 1, 2]);
}

#[test]
fn each_queued_request_has_its_own_timeout() {
    let mut end = Endpoint::new();
    write(&mut end, 0);
    write(&mut end, 2);
    let first = end.qp.deadline();
    end.advance(ms(20));
    write(&mut end, 3);
    assert_eq!(end.qp.deadline(), first);
    end.wait_for_deadline();
    assert_eq!(end.qp.deadline(), first + ms(20));
    // The first request is retransmitted; the requests behind it are still queued.
    write(&mut end, 1);
    write(&mut end, 2);
    assert_eq!(end.qp.counters().out_of_order_executed, 1);
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn each_missing_request_that_arrives_keeps_those_behind_other_gaps() {
    let mut end = Endpoint::with(|attr| attr.timeout = 0);
    for offset in (0..=40).step_by(2) {
        write(&mut end, offset);
    }
    // Without a round trip and an ACK timeout, requests are queued for 1 s, and at most for 10 s.
    let executed = (1..40).step_by(2).filter(|&missing| {
        let before = end.qp.counters().out_of_order_executed;
        end.advance(ms(900));
        end.qp.handle_timeout(end.now, &mut end.host);
        write(&mut end, missing);
        end.qp.counters().out_of_order_executed > before
    });
    assert_eq!(executed.count(), 11);
}

#[test]
fn timeout_depends_on_the_round_trip_and_the_ack_timeout() {
    let kept_for = |end: &mut Endpoint, gap: u32| {
        write(end, gap + 1);
        let time = end.qp.deadline().since(end.now);
        write(end, gap);
        assert_eq!(end.qp.deadline(), Time::NEVER);
        time
    };
    // Neither a round trip nor an ACK timeout is known.
    let mut end = Endpoint::with(|attr| attr.timeout = 0);
    assert_eq!(kept_for(&mut end, 0), ms(1000));
    // A round trip was measured.
    for round_trip in [ms(40), ms(400)] {
        let mut end = Endpoint::with(|attr| attr.timeout = 0);
        end.post_signaled(1, SendOp::Send, 1);
        end.poll();
        end.advance(round_trip);
        end.deliver(ack(0), &[]);
        assert_eq!(kept_for(&mut end, 0), 8 * round_trip);
    }
    // The ACK timeout, four times the requested one as with NICs, is longer.
    let mut end = Endpoint::with(|attr| attr.timeout = 15);
    assert_eq!(kept_for(&mut end, 0), Duration::from_nanos(4096 << 15) * 8);
    // No request is kept for hours.
    let mut end = Endpoint::with(|attr| attr.timeout = 31);
    assert_eq!(kept_for(&mut end, 0), Duration::from_secs(10));
}

#[test]
fn queue_pair_in_rtr_drops_requests_behind_an_old_gap() {
    let mut end = Endpoint::reset();
    end.modify(QpState::Init, INIT, &attributes());
    end.modify(QpState::Rtr, RTR, &attributes());
    write(&mut end, 0);
    write(&mut end, 2);
    end.wait_for_deadline();
    write(&mut end, 1);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
}

#[test]
fn queue_pairs_stay_within_a_shared_budget() {
    let budget = Arc::new(OutOfOrderBudget::new(1000));
    let mut ends = [(); 8].map(|()| {
        let mut end = Endpoint::new();
        end.qp.share_out_of_order_budget(Arc::clone(&budget));
        end
    });
    for end in &mut ends {
        for offset in 1..4 {
            write(end, offset);
        }
    }
    let all = budget.used();
    assert!(all > 0 && all <= 1000, "{all}");
    let mut executed = 0;
    for end in &mut ends {
        write(end, 0);
        executed += end.qp.counters().out_of_order_executed;
    }
    assert!((1..24).contains(&executed), "{executed}");
    assert_eq!(budget.used(), 0);
    // The budget is returned however the queue ends.
    let ways: [fn(&mut Endpoint); 4] = [
        |end| end.enter(QpState::Err),
        |end| end.enter(QpState::Reset),
        |end| end.wait_for_deadline(),
        |end| end.qp = Endpoint::reset().qp,
    ];
    for (end, way) in ends.iter_mut().zip(ways) {
        write(end, 100);
        assert!(budget.used() > 0);
        way(end);
        assert_eq!(budget.used(), 0);
    }
}

/// Returns ends that share a budget of `bytes` bytes, and whose peers are `peers`.
fn sharing(bytes: usize, peers: &[u8]) -> Vec<Endpoint> {
    let budget = Arc::new(OutOfOrderBudget::new(bytes));
    let ends = peers.iter().map(|&peer| {
        let dgid = Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, peer).into());
        let mut end = Endpoint::with(|attr| attr.av.dgid = dgid);
        end.qp.share_out_of_order_budget(Arc::clone(&budget));
        end
    });
    ends.collect()
}

/// Delivers `count` requests behind a gap. Returns the number of those that were kept.
fn deliver_behind_gap(end: &mut Endpoint, count: u32) -> u32 {
    let dropped = |end: &Endpoint| end.qp.counters().out_of_order_dropped;
    let before = dropped(end);
    let from = source(end.qp.attributes().av.dgid);
    for offset in 1..=count {
        let header = rdma(RcWriteOnly, offset, REMOTE, 0, 1);
        let packet = Packet {
            header,
            payload: &[1],
        };
        end.qp.handle_packet(end.now, from, &packet, &mut end.host);
    }
    count - (dropped(end) - before) as u32
}

#[test]
fn one_peer_leaves_room_in_a_shared_budget_for_the_others() {
    const BYTES: usize = 100_000;
    const MANY: u32 = 2_000;
    let mut ends = sharing(BYTES, &[1, 1, 2, 3]);
    let [first, second, other, last] = &mut ends[..] else {
        unreachable!("there are four")
    };
    // All connections to a peer have one share, half of the budget.
    let alone = deliver_behind_gap(first, MANY);
    assert_eq!(deliver_behind_gap(second, 10), 0);
    assert!(alone > 0 && alone < MANY);
    assert_eq!(second.qp.counters().out_of_order_dropped, 10);
    // What is left is shared in the same way.
    let two = deliver_behind_gap(other, MANY);
    let three = deliver_behind_gap(last, MANY);
    assert!(two.abs_diff(alone / 2) <= 1, "{alone} {two}");
    assert!(three.abs_diff(two / 2) <= 1, "{two} {three}");
    // A share is free again when its queue is.
    first.wait_for_deadline();
    assert_eq!(deliver_behind_gap(second, 10), 10);
}

#[test]
fn requests_that_the_out_of_order_queue_has_no_room_for_are_counted() {
    let mut end = Endpoint::with_out_of_order_queue(QpType::Rc, 1000);
    end.modify(QpState::Init, INIT, &attributes());
    end.modify(QpState::Rtr, RTR, &attributes());
    for offset in 1..10 {
        write(&mut end, offset);
    }
    let dropped = end.qp.counters().out_of_order_dropped;
    write(&mut end, 0);
    assert_eq!(end.qp.counters().out_of_order_executed + dropped, 9);
    assert!(dropped > 0);
}

/// A requester with ten packets in flight.
fn sending() -> Endpoint {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 10 * MTU);
    assert_eq!(end.poll().len(), 10);
    end
}

#[test]
fn fast_retransmit_to_an_unknown_peer_sends_one_packet_and_pauses() {
    let mut end = sending();
    end.deliver(nak(3, NakCode::PsnSequence), &[]);
    let retransmitted = end.poll_one();
    assert_eq!(psns(std::slice::from_ref(&retransmitted)), [3]);
    assert!(retransmitted.header.bth.ack_req);
    end.post_signaled(2, SendOp::Send, 1);
    assert!(end.poll().is_empty(), "the peer's behaviour is unknown");
    end.deliver(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(psns(&end.poll()), [10]);
    assert_eq!(end.qp.counters().retransmitted, 1);
}

#[test]
fn peer_that_drops_packets_behind_a_gap_gets_go_back_n() {
    let mut end = sending();
    end.deliver(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [0]);
    end.deliver(ack(0), &[]);
    // A loss has reduced the window.
    assert_eq!(psns(&end.poll()), [1, 2, 3, 4, 5, 6, 7, 8]);
    end.deliver(ack(2), &[]);
    end.poll();
    end.advance(ms(1));
    end.deliver(nak(4, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [4, 5, 6, 7, 8, 9]);
}

#[test]
fn peer_that_keeps_packets_behind_a_gap_gets_new_packets_meanwhile() {
    let mut end = sending();
    end.deliver(nak(0, NakCode::PsnSequence), &[]);
    end.poll();
    end.deliver(ack(9), &[]);
    end.post_signaled(2, write_to(0), 4 * MTU);
    assert_eq!(psns(&end.poll()), [10, 11, 12, 13]);
    end.post_signaled(3, SendOp::Send, 1);
    end.deliver(nak(11, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [11, 14]);
    end.deliver(ack(14), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(end.qp.counters().retransmitted, 2);
}

#[test]
fn run_of_losses_is_retransmitted_in_doubling_steps() {
    let mut end = sending();
    let mut sizes = Vec::new();
    for psn in [0, 1, 3, 7] {
        end.deliver(nak(psn, NakCode::PsnSequence), &[]);
        sizes.push(end.poll().len());
    }
    assert_eq!(sizes, [1, 2, 4, 3]);
    end.deliver(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn packets_missing_behind_a_retransmission_are_sent_after_its_acknowledgement() {
    let mut end = sending();
    // The peer is known to keep requests behind a gap.
    end.deliver(nak(0, NakCode::PsnSequence), &[]);
    end.poll();
    end.deliver(ack(9), &[]);
    end.post_signaled(2, write_to(0), 6 * MTU);
    assert_eq!(psns(&end.poll()), [10, 11, 12, 13, 14, 15]);
    end.deliver(nak(11, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [11]);
    // 12 arrived; 13 and the following did not.
    end.deliver(nak(13, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [13]);
    end.deliver(ack(13), &[]);
    assert_eq!(psns(&end.poll()), [14, 15]);
}

#[test]
fn lost_retransmission_is_sent_again() {
    let mut end = sending();
    end.deliver(nak(3, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [3]);
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [3]);
    assert_eq!(end.qp.counters().probes, 1);
    end.wait_for_deadline();
    assert_eq!(end.qp.counters().timeouts, 1);
    assert_eq!(psns(&end.poll()), [3]);
    end.deliver(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn tail_loss_probe_is_one_packet() {
    let mut end = sending();
    end.deliver(ack(7), &[]);
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [8]);
    // The first acknowledgement after the loss.
    end.deliver(ack(8), &[]);
    assert_eq!(psns(&end.poll()), [9]);
    end.deliver(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn answer_to_a_probe_does_not_show_that_the_peer_keeps_requests() {
    let mut end = sending();
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [0]);
    // The first five packets had arrived before the probe; the others are lost.
    end.deliver(ack(4), &[]);
    end.deliver(nak(5, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [5]);
    end.post_signaled(3, SendOp::Send, 1);
    assert!(end.poll().is_empty(), "the peer's behaviour is unknown");
}

#[test]
fn drain_replaces_an_unsent_probe() {
    let mut end = Endpoint::new();
    for wr_id in [1, 2] {
        end.post(wr_id, write_to(0), SendFlags::empty(), &[sge(LOCAL, 0, 8)]);
    }
    let (packets, _) = end.poll_room(1);
    assert_eq!(packets.len(), 1);
    end.now = end.qp.deadline();
    end.qp.handle_timeout(end.now, &mut end.host);
    assert_eq!(end.qp.counters().probes, 1);
    end.enter(QpState::Sqd);
    assert_eq!(psns(&end.poll()), [0]);
}

#[test]
fn lost_packet_costs_one_retransmission_between_two_endpoints() {
    let (mut a, mut b) = pair(|_| ());
    a.post_signaled(1, write_to(0), 12 * MTU);
    let sent = a.poll();
    for packet in sent.iter().filter(|p| p.psn() != OWN_PSN + 4) {
        b.deliver_sent(packet);
    }
    exchange(&mut a, &mut b);
    assert_eq!(a.done(), [(1, Success)]);
    assert_eq!(a.qp.counters().retransmitted, 1);
    assert_eq!(b.qp.counters().duplicates, 0);
    assert_eq!(b.qp.counters().out_of_order_executed, 7);
    assert_eq!(
        b.host.bytes(REMOTE, 0, 12 * MTU),
        a.host.bytes(LOCAL, 0, 12 * MTU)
    );
}

/// A responder reports a gap when the one before it has closed.
#[test]
fn many_gaps_in_a_window_are_repaired_in_fewer_round_trips_than_gaps() {
    const PACKETS: u32 = 3000;
    let mut end = Endpoint::new();
    for wr_id in 0..3 {
        end.post_signaled(wr_id, write_to(0), PACKETS as usize / 3 * MTU);
    }
    // When the window is large, each third packet of a queue that overflows is lost.
    const LOSSY: std::ops::Range<usize> = 1500..1800;
    let mut arrived = vec![false; PACKETS as usize];
    let mut was_lost = arrived.clone();
    let mut expected = 0;
    let (mut round_trips, mut sent) = (0, 0);
    while expected < PACKETS {
        let packets = end.poll_for(ms(10));
        sent += packets.len();
        assert!(!packets.is_empty(), "round trip {round_trips}, {expected}");
        for psn in psns(&packets) {
            let psn = psn as usize;
            arrived[psn] |= psn % 3 != 1 || !LOSSY.contains(&psn) || was_lost[psn];
            was_lost[psn] = true;
        }
        let missing = arrived.iter().position(|arrived| !arrived);
        expected = missing.map_or(PACKETS, |psn| psn as u32);
        let is_gap = arrived[expected as usize..].iter().any(|arrived| *arrived);
        let answer = match is_gap {
            true => nak(expected, NakCode::PsnSequence),
            false => ack(expected - 1),
        };
        end.deliver(answer, &[]);
        round_trips += 1;
    }
    assert_eq!(end.done().len(), 3);
    assert!(round_trips < 60, "{round_trips}");
    assert!(sent < PACKETS as usize + 3 * LOSSY.len(), "{sent}");
}

/// Delivers a WRITE of one byte, from another UDP source port of the peer.
fn write_from(end: &mut Endpoint, offset: u32, port: u16) {
    let header = rdma(RcWriteOnly, offset, REMOTE, offset as usize, 1).with_payload_len(1);
    let packet = Packet {
        header,
        payload: &[offset as u8],
    };
    let from = Source {
        gid: peer_gid(),
        port,
    };
    end.qp.handle_packet(end.now, from, &packet, &mut end.host);
}

/// A network address translator may choose another port at any time.
#[test]
fn connection_continues_from_another_source_port() {
    const PORTS: [u16; 2] = [0xd000, 0xe000];
    let mut end = Endpoint::new();
    write(&mut end, 0);
    for offset in [1, 3, 2] {
        write_from(&mut end, offset, PORTS[0]);
    }
    assert_eq!(end.qp.counters().writes_done, 4);
    end.poll();
    // The request behind the gap came from the former port: it is not executed, and reported.
    write_from(&mut end, 5, PORTS[0]);
    assert_eq!(end.poll_one().syndrome(), GAP);
    write_from(&mut end, 4, PORTS[1]);
    assert_eq!(end.qp.counters().writes_done, 5);
    let nak = end.poll().pop().unwrap();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 5));
    write_from(&mut end, 5, PORTS[1]);
    assert_eq!(end.qp.counters().writes_done, 6);
    assert_eq!(end.host.bytes(REMOTE, 0, 6), [0, 1, 2, 3, 4, 5]);
}

/// A packet that is more than half of the PSN space late is taken for one that is ahead.
#[test]
fn request_older_than_half_of_the_psn_space_costs_one_nak() {
    const OLD: u32 = (1 << 23) - 5;
    let mut end = Endpoint::new();
    write(&mut end, 0);
    end.poll();
    for _ in 0..10 {
        write(&mut end, OLD);
    }
    let naks = end.poll();
    assert_eq!(naks.len(), 1);
    assert_eq!((naks[0].syndrome(), naks[0].psn()), (GAP, PEER_PSN + 1));
    for offset in 1..4 {
        write(&mut end, offset);
    }
    assert_eq!(end.qp.counters().writes_done, 4);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn answers_older_than_half_of_the_psn_space_change_nothing() {
    const OLD: u32 = (1 << 23) + 5;
    let mut end = sending();
    let invalid = nak(OLD, NakCode::InvalidRequest);
    for header in [ack(OLD), nak(OLD, NakCode::PsnSequence), invalid] {
        end.deliver(header, &[]);
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.counters().stale_responses, 3);
    assert_eq!(end.qp.state(), QpState::Rts);
    end.deliver(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}
