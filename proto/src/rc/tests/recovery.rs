//! Loss recovery: the out-of-order queue of the responder and selective repeat by the requester.

use super::*;
use Opcode::*;
use WcStatus::Success;

const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

fn psns(packets: &[Sent]) -> Vec<u32> {
    packets.iter().map(|p| p.psn() - OWN_PSN).collect()
}

/// Delivers a WRITE of one byte, with value and address equal to its number.
fn write(end: &mut End, offset: u32) {
    let header = rdma(RcWriteOnly, offset, REMOTE, offset as usize, 1);
    end.give(header, &[offset as u8]);
}

#[test]
fn what_came_after_a_hole_is_carried_out_when_it_closes_and_not_before() {
    let mut end = End::new();
    let before = end.host.bytes(REMOTE, 0, 3);
    write(&mut end, 2);
    write(&mut end, 1);
    let nak = end.only();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN));
    assert_eq!(end.host.bytes(REMOTE, 0, 3), before);
    write(&mut end, 0);
    let ack = end.only();
    assert!(matches!(ack.syndrome(), Syndrome::Ack(_)));
    assert_eq!(ack.psn(), PEER_PSN + 2);
    assert_eq!(end.host.bytes(REMOTE, 0, 3), [0, 1, 2]);
    assert_eq!(end.qp.counters().out_of_order_executed, 2);
}

#[test]
fn a_write_is_done_when_it_is_carried_out_and_once() {
    let mut end = End::new();
    let done = |end: &End| end.qp.counters().writes_done;
    write(&mut end, 1);
    assert_eq!(done(&end), 0);
    write(&mut end, 0);
    assert_eq!(done(&end), 2);
    write(&mut end, 1);
    assert_eq!(done(&end), 2);
    end.give(rdma(RcWriteFirst, 2, REMOTE, 0, MTU + 1), &[2; MTU]);
    assert_eq!(done(&end), 2);
    end.give(request(RcWriteLast, 3), &[3]);
    assert_eq!(done(&end), 3);
}

#[test]
fn it_is_acknowledged_though_only_what_was_missing_asked_for_that() {
    let mut end = End::new();
    let silent = rdma(RcWriteOnly, 1, REMOTE, 1, 1).with_ack_req(false);
    end.give(silent, &[1]);
    end.poll();
    write(&mut end, 0);
    assert_eq!(end.only().psn(), PEER_PSN + 1);
}

#[test]
fn the_next_hole_is_reported_when_the_first_closes() {
    let mut end = End::new();
    for offset in [1, 2, 4, 5] {
        write(&mut end, offset);
    }
    assert_eq!(end.only().psn(), PEER_PSN);
    write(&mut end, 0);
    // The NAK also acknowledges the requests before the gap.
    let nak = end.only();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 3));
    write(&mut end, 3);
    assert_eq!(end.only().psn(), PEER_PSN + 5);
}

#[test]
fn a_hole_that_closes_before_its_report_is_out_is_not_reported() {
    let mut end = End::new();
    write(&mut end, 1);
    write(&mut end, 0);
    let ack = end.only();
    assert!(matches!(ack.syndrome(), Syndrome::Ack(_)));
    assert_eq!(ack.psn(), PEER_PSN + 1);
}

#[test]
fn what_is_kept_twice_is_carried_out_once() {
    let mut end = End::new();
    for wr_id in 0..3 {
        end.receive(wr_id, &[]);
    }
    for offset in [1, 1, 1, 0] {
        end.give(request(RcSendOnly, offset), &[]);
    }
    assert_eq!(end.received(), [(0, Success), (1, Success)]);
    // A late copy is an ordinary duplicate.
    end.give(request(RcSendOnly, 1), &[]);
    assert!(end.received().is_empty());
    assert_eq!(end.qp.counters().duplicates, 1);
}

#[test]
fn a_kept_read_is_answered_in_its_turn() {
    let mut end = End::new();
    end.give(rdma(RcReadRequest, 1, REMOTE, 0, 2), &[]);
    write(&mut end, 3);
    end.poll();
    write(&mut end, 0);
    let answers = end.poll();
    let seen: Vec<_> = answers.iter().map(|p| (p.opcode(), p.psn())).collect();
    let expected = [
        (RcAck, PEER_PSN),
        (RcReadResponseOnly, PEER_PSN + 1),
        (RcAck, PEER_PSN + 2),
    ];
    assert_eq!(seen, expected);
    assert_eq!(answers[1].payload, [0, pattern(REMOTE, 1)]);
    assert_eq!(answers[2].syndrome(), GAP);
}

#[test]
fn what_finds_no_room_is_reported_missing() {
    // Room for one or two requests of a byte each.
    let mut end = End::holding(QpType::Rc, 450).connected(|_| ());
    for offset in 1..5 {
        write(&mut end, offset);
    }
    assert_eq!(end.only().psn(), PEER_PSN);
    write(&mut end, 0);
    let kept = end.qp.counters().out_of_order_executed as u32;
    assert!((1..4).contains(&kept));
    let nak = end.only();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 1 + kept));
}

#[test]
fn what_comes_far_after_a_hole_is_not_kept() {
    let mut end = End::new();
    write(&mut end, 1025);
    end.poll();
    write(&mut end, 0);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
    // Its arrival still shows that a request is missing.
    assert_eq!(end.only().syndrome(), GAP);
}

#[test]
fn what_comes_from_further_than_any_requester_is_ahead_tells_nothing() {
    let mut end = End::new();
    write(&mut end, 4097);
    assert_eq!(end.only().syndrome(), GAP);
    write(&mut end, 0);
    assert!(!matches!(end.only().syndrome(), Syndrome::Nak(_)));
}

#[test]
fn nothing_is_kept_behind_a_request_that_finds_no_receive() {
    let mut end = End::new();
    end.give(request(RcSendOnly, 1), &[]);
    end.poll();
    end.give(request(RcSendOnly, 0), &[]);
    assert!(matches!(end.only().syndrome(), Syndrome::RnrNak(_)));
    end.receive(1, &[]);
    end.receive(2, &[]);
    end.give(request(RcSendOnly, 0), &[]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.only().psn(), PEER_PSN);
}

#[test]
fn a_kept_request_that_makes_no_sense_ends_the_connection_in_its_turn() {
    let mut end = End::new();
    end.give(request(RcSendLast, 1), &[1]);
    assert_eq!(end.only().syndrome(), GAP);
    assert_eq!(end.qp.state(), QpState::Rts);
    write(&mut end, 0);
    assert_eq!(end.qp.state(), QpState::Err);
    let answers = end.poll();
    let last = answers.last().unwrap();
    assert_eq!(last.syndrome(), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(last.psn(), PEER_PSN + 1);
}

impl End {
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
fn a_request_from_another_udp_port_is_not_kept() {
    let mut end = End::new();
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
fn before_anything_came_in_order_the_request_that_closes_the_gap_names_the_port() {
    let mut end = End::new();
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
fn a_peer_that_changes_its_udp_port_is_kept_again_after_the_next_request_in_order() {
    let mut end = End::new();
    write(&mut end, 0);
    end.forge(1, 1);
    end.forge(3, 3);
    end.forge(2, 2);
    assert_eq!(end.qp.counters().out_of_order_executed, 1);
    assert_eq!(end.host.bytes(REMOTE, 0, 4), [0, 1, 2, 3]);
}

#[test]
fn what_is_not_filled_in_time_is_dropped_and_reported_missing() {
    let mut end = End::new();
    write(&mut end, 0);
    write(&mut end, 2);
    end.poll();
    end.wait_for_deadline();
    assert_eq!(end.qp.deadline(), Time::NEVER);
    write(&mut end, 1);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
    let nak = end.only();
    assert_eq!((nak.syndrome(), nak.psn()), (GAP, PEER_PSN + 2));
    write(&mut end, 2);
    assert_eq!(end.host.bytes(REMOTE, 0, 3), [0, 1, 2]);
}

#[test]
fn each_request_is_kept_for_a_time_of_its_own() {
    let mut end = End::new();
    write(&mut end, 0);
    write(&mut end, 2);
    let first = end.qp.deadline();
    end.pass(ms(20));
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
fn the_time_is_in_units_of_the_round_trip_and_of_the_ack_timeout() {
    let kept_for = |end: &mut End, gap: u32| {
        write(end, gap + 1);
        let time = end.qp.deadline().since(end.now);
        write(end, gap);
        assert_eq!(end.qp.deadline(), Time::NEVER);
        time
    };
    // Neither a round trip nor an ACK timeout is known.
    let mut end = End::with(|attr| attr.timeout = 0);
    assert_eq!(kept_for(&mut end, 0), ms(1000));
    // A round trip was measured.
    for round_trip in [ms(40), ms(400)] {
        let mut end = End::with(|attr| attr.timeout = 0);
        end.ask(1, SendOp::Send, 1);
        end.poll();
        end.pass(round_trip);
        end.give(ack(0), &[]);
        assert_eq!(kept_for(&mut end, 0), 8 * round_trip);
    }
    // The ACK timeout, four times the requested one as with NICs, is longer.
    let mut end = End::with(|attr| attr.timeout = 16);
    assert_eq!(kept_for(&mut end, 0), Duration::from_nanos(4096 << 16) * 8);
    // No request is kept for hours.
    let mut end = End::with(|attr| attr.timeout = 31);
    assert_eq!(kept_for(&mut end, 0), Duration::from_secs(10));
}

#[test]
fn a_queue_pair_that_only_receives_drops_what_is_not_filled_in_time() {
    let mut end = End::reset();
    end.go(QpState::Init, INIT, &attributes());
    end.go(QpState::Rtr, RTR, &attributes());
    write(&mut end, 0);
    write(&mut end, 2);
    end.wait_for_deadline();
    write(&mut end, 1);
    assert_eq!(end.qp.counters().out_of_order_executed, 0);
}

#[test]
fn queue_pairs_that_share_a_budget_keep_no_more_than_it_has() {
    let budget = Arc::new(OutOfOrderBudget::new(1000));
    let mut ends = [(); 8].map(|()| {
        let mut end = End::new();
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
    let mut kept = 0;
    for end in &mut ends {
        write(end, 0);
        kept += end.qp.counters().out_of_order_executed;
    }
    assert!((1..24).contains(&kept), "{kept}");
    assert_eq!(budget.used(), 0);
    // The budget is returned however the queue ends.
    let ways: [fn(&mut End); 4] = [
        |end| end.to(QpState::Err),
        |end| end.to(QpState::Reset),
        |end| end.wait_for_deadline(),
        |end| end.qp = End::reset().qp,
    ];
    for (end, way) in ends.iter_mut().zip(ways) {
        write(end, 100);
        assert!(budget.used() > 0);
        way(end);
        assert_eq!(budget.used(), 0);
    }
}

/// A requester with ten packets in flight.
fn sending() -> End {
    let mut end = End::new();
    end.ask(1, write_to(0), 10 * MTU);
    assert_eq!(end.poll().len(), 10);
    end
}

#[test]
fn one_packet_goes_again_and_its_answer_is_awaited() {
    let mut end = sending();
    end.give(nak(3, NakCode::PsnSequence), &[]);
    let again = end.only();
    assert_eq!(psns(std::slice::from_ref(&again)), [3]);
    assert!(again.header.bth.ack_req);
    end.ask(2, SendOp::Send, 1);
    assert!(end.poll().is_empty(), "who knows what the peer does");
    end.give(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(psns(&end.poll()), [10]);
    assert_eq!(end.qp.counters().retransmitted, 1);
}

#[test]
fn a_peer_that_drops_what_follows_a_hole_gets_it_again_and_the_next_time_at_once() {
    let mut end = sending();
    end.give(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [0]);
    end.give(ack(0), &[]);
    // A loss has reduced the window.
    assert_eq!(psns(&end.poll()), [1, 2, 3, 4, 5, 6, 7, 8]);
    end.give(ack(2), &[]);
    end.poll();
    end.pass(ms(1));
    end.give(nak(4, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [4, 5, 6, 7, 8, 9]);
}

#[test]
fn a_peer_that_keeps_what_follows_a_hole_gets_new_packets_meanwhile() {
    let mut end = sending();
    end.give(nak(0, NakCode::PsnSequence), &[]);
    end.poll();
    end.give(ack(9), &[]);
    end.ask(2, write_to(0), 4 * MTU);
    assert_eq!(psns(&end.poll()), [10, 11, 12, 13]);
    end.ask(3, SendOp::Send, 1);
    end.give(nak(11, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [11, 14]);
    end.give(ack(14), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(end.qp.counters().retransmitted, 2);
}

#[test]
fn a_run_of_losses_is_repaired_in_doubling_steps() {
    let mut end = sending();
    let mut sizes = Vec::new();
    for psn in [0, 1, 3, 7] {
        end.give(nak(psn, NakCode::PsnSequence), &[]);
        sizes.push(end.poll().len());
    }
    assert_eq!(sizes, [1, 2, 4, 3]);
    end.give(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn what_is_lost_behind_a_repair_goes_again_with_the_answer() {
    let mut end = sending();
    // The peer is known to keep requests behind a gap.
    end.give(nak(0, NakCode::PsnSequence), &[]);
    end.poll();
    end.give(ack(9), &[]);
    end.ask(2, write_to(0), 6 * MTU);
    assert_eq!(psns(&end.poll()), [10, 11, 12, 13, 14, 15]);
    end.give(nak(11, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [11]);
    // 12 arrived; 13 and the following did not.
    end.give(nak(13, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [13]);
    end.give(ack(13), &[]);
    assert_eq!(psns(&end.poll()), [14, 15]);
}

#[test]
fn the_repeated_packet_may_be_lost_as_well() {
    let mut end = sending();
    end.give(nak(3, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [3]);
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [3]);
    assert_eq!(end.qp.counters().probes, 1);
    end.wait_for_deadline();
    assert_eq!(end.qp.counters().timeouts, 1);
    assert_eq!(psns(&end.poll()), [3]);
    end.give(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn the_probe_of_a_lost_tail_is_one_packet() {
    let mut end = sending();
    end.give(ack(7), &[]);
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [8]);
    // The first acknowledgement after the loss.
    end.give(ack(8), &[]);
    assert_eq!(psns(&end.poll()), [9]);
    end.give(ack(9), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn a_probe_that_has_not_gone_out_gives_way_to_the_packet_that_asks_for_draining() {
    let mut end = End::new();
    for wr_id in [1, 2] {
        end.post(wr_id, write_to(0), SendFlags::empty(), &[sge(LOCAL, 0, 8)]);
    }
    let (packets, _) = end.poll_room(1);
    assert_eq!(packets.len(), 1);
    end.now = end.qp.deadline();
    end.qp.handle_timeout(end.now, &mut end.host);
    assert_eq!(end.qp.counters().probes, 1);
    end.to(QpState::Sqd);
    assert_eq!(psns(&end.poll()), [0]);
}

#[test]
fn a_lost_packet_costs_one_packet_between_two_ends_that_keep() {
    let (mut a, mut b) = pair(|_| ());
    a.ask(1, write_to(0), 12 * MTU);
    let sent = a.poll();
    for packet in sent.iter().filter(|p| p.psn() != OWN_PSN + 4) {
        b.give_sent(packet);
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
