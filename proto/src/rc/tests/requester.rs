//! The requester's packets and their acknowledgement.

use super::*;
use crate::rc::congestion::INITIAL_WINDOW;
use Opcode::*;
use WcStatus::Success;

fn opcodes(packets: &[Sent]) -> Vec<Opcode> {
    packets.iter().map(Sent::opcode).collect()
}

fn psns(packets: &[Sent]) -> Vec<u32> {
    packets.iter().map(|p| p.psn() - OWN_PSN).collect()
}

#[test]
fn message_is_split_at_the_path_mtu() {
    let mut end = Endpoint::new();
    let pieces = [
        sge(LOCAL, 10, 300),
        sge(READ_ONLY, 5, 0),
        sge(READ_ONLY, 20, 301),
    ];
    end.post(1, SendOp::Send, SIGNALED, &pieces);
    let packets = end.poll();
    assert_eq!(opcodes(&packets), [RcSendFirst, RcSendMiddle, RcSendLast]);
    assert_eq!(psns(&packets), [0, 1, 2]);
    let data: Vec<u8> = packets.iter().flat_map(|p| p.payload.clone()).collect();
    let expected = (10..310)
        .map(|i| pattern(LOCAL, i))
        .chain((20..321).map(|i| pattern(READ_ONLY, i)));
    assert!(data.iter().copied().eq(expected));
    assert!(
        packets
            .iter()
            .all(|p| p.header.bth.dest_qp == Qpn::new(0x22))
    );
    assert!(
        packets
            .iter()
            .all(|p| p.header.bth.mig_req && p.header.bth.pkey == PKey::DEFAULT)
    );
}

#[test]
fn connection_is_idle_while_it_has_nothing_to_send_and_awaits_nothing() {
    let mut endpoint = Endpoint::new();
    assert!(endpoint.qp.is_idle());
    endpoint.post(1, SendOp::Send, SIGNALED, &[sge(LOCAL, 0, 10)]);
    assert!(!endpoint.qp.is_idle());
    endpoint.poll_one();
    assert!(
        !endpoint.qp.is_idle(),
        "the request may have to be repeated"
    );
    endpoint.deliver(ack(0), &[]);
    assert!(endpoint.qp.is_idle());
    endpoint.deliver(request(RcSendOnly, 0), &[1]);
    assert!(!endpoint.qp.is_idle(), "a response is due");
    endpoint.poll_one();
    assert!(endpoint.qp.is_idle());
}

#[test]
fn only_the_first_packet_of_a_write_has_a_reth() {
    let mut end = Endpoint::new();
    let op = SendOp::WriteImm {
        addr: base(REMOTE) + 9,
        rkey: RKey(REMOTE),
        imm: 77,
    };
    end.post_signaled(1, op, 2 * MTU + 1);
    let packets = end.poll();
    assert_eq!(
        opcodes(&packets),
        [RcWriteFirst, RcWriteMiddle, RcWriteLastImm]
    );
    let reth = packets[0].header.reth.unwrap();
    assert_eq!((reth.addr, reth.rkey), (base(REMOTE) + 9, RKey(REMOTE)));
    assert_eq!(reth.length as usize, 2 * MTU + 1);
    assert_eq!(packets[2].header.imm, Some(77));
}

#[test]
fn psns_wrap_within_a_message_and_so_do_acknowledgements() {
    let mut end = Endpoint::with(|attr| attr.sq_psn = psn(0xff_fffe));
    end.post_signaled(1, SendOp::Send, 4 * MTU);
    let packets = end.poll();
    let sent: Vec<u32> = packets.iter().map(Sent::psn).collect();
    assert_eq!(sent, [0xff_fffe, 0xff_ffff, 0, 1]);
    let mut header = ack(0);
    header.bth.psn = psn(0xff_ffff);
    end.deliver(header, &[]);
    assert!(end.done().is_empty());
    header.bth.psn = psn(1);
    end.deliver(header, &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn solicited_is_on_the_last_packet_if_requested() {
    let mut end = Endpoint::new();
    let flags = SIGNALED | SendFlags::SOLICITED;
    end.post(1, SendOp::Send, flags, &[sge(LOCAL, 0, 2 * MTU)]);
    end.post_signaled(2, SendOp::Send, 2 * MTU);
    // A plain WRITE raises no event at the peer.
    end.post(3, write_to(0), flags, &[sge(LOCAL, 0, 1)]);
    let packets = end.poll();
    let solicited: Vec<bool> = packets.iter().map(|p| p.header.bth.solicited).collect();
    assert_eq!(solicited, [false, true, false, false, false]);
}

#[test]
fn last_packet_of_a_signaled_message_has_ack_req() {
    let mut end = Endpoint::new();
    for wr_id in 0..3 {
        end.post(wr_id, SendOp::Send, UNSIGNALED, &[]);
    }
    end.post_signaled(3, SendOp::Send, 0);
    end.post(4, SendOp::Send, UNSIGNALED, &[]);
    let ack_reqs: Vec<bool> = end.poll().iter().map(|p| p.header.bth.ack_req).collect();
    // The last one requests an ACK too, as no packet with AckReq follows.
    assert_eq!(ack_reqs, [false, false, false, true, true]);
}

#[test]
fn long_message_has_several_ack_reqs_per_window() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, REGION);
    let packets = end.poll();
    let window = INITIAL_WINDOW as usize;
    assert_eq!(packets.len(), window);
    assert!(packets.iter().filter(|p| p.header.bth.ack_req).count() >= 3);
    assert!(
        packets[window - 1].header.bth.ack_req,
        "else the window stays shut"
    );
}

#[test]
fn packet_before_a_blocked_read_has_ack_req() {
    let mut end = Endpoint::new();
    // Less than half of the window remains.
    let packets = INITIAL_WINDOW / 2 + 1;
    let data = sge(LOCAL, 0, packets as usize * MTU);
    end.post(1, write_to(0), UNSIGNALED, &[data]);
    end.post_signaled(2, read_from(0), 64 * 1024);
    let write = end.poll();
    assert_eq!(write.len(), packets as usize);
    assert!(write.last().unwrap().header.bth.ack_req);
    end.deliver(ack(packets - 1), &[]);
    assert_eq!(end.poll()[0].opcode(), RcReadRequest);
}

#[test]
fn one_acknowledgement_completes_all_before_it_in_order() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post(2, SendOp::Send, UNSIGNALED, &[]);
    end.post_signaled(3, write_to(0), 3 * MTU);
    end.post_signaled(4, SendOp::Send, 1);
    end.poll();
    end.deliver(ack(4), &[]);
    assert_eq!(end.done(), [(1, Success), (3, Success)]);
    end.deliver(ack(5), &[]);
    assert_eq!(end.done(), [(4, Success)]);
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn unsignaled_work_request_completes_only_with_an_error() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, UNSIGNALED, &[]);
    end.post(2, SendOp::Send, UNSIGNALED, &[]);
    end.poll();
    end.deliver(ack(0), &[]);
    assert!(end.done().is_empty());
    end.deliver(nak(1, NakCode::RemoteOperational), &[]);
    assert_eq!(end.done(), [(2, WcStatus::RemOpErr)]);
}

#[test]
fn ack_of_an_unsent_psn_is_ignored() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    for offset in [1, 2, 1000, 1 << 22] {
        end.deliver(ack(offset), &[]);
        end.deliver(nak(offset, NakCode::PsnSequence), &[]);
        end.deliver(nak(offset, NakCode::RemoteAccess), &[]);
        end.deliver(rnr_nak(offset, 1), &[]);
    }
    assert!(end.done().is_empty() && end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
    assert_eq!(end.qp.counters().stale_responses, 16);
}

#[test]
fn stale_ack_and_stale_nak_are_ignored() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 3 * MTU);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    end.deliver(ack(2), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    for offset in 0..3 {
        end.deliver(ack(offset), &[]);
        end.deliver(nak(offset, NakCode::PsnSequence), &[]);
        end.deliver(nak(offset, NakCode::InvalidRequest), &[]);
        end.deliver(rnr_nak(offset, 1), &[]);
    }
    assert!(end.done().is_empty() && end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
    end.deliver(ack(3), &[]);
    assert_eq!(end.done(), [(2, Success)]);
}

#[test]
fn unsolicited_response_is_ignored() {
    let mut end = Endpoint::new();
    for offset in [0, 1, 0xff_ffff - OWN_PSN] {
        end.deliver(ack(offset), &[]);
        end.deliver(nak(offset, NakCode::PsnSequence), &[]);
        end.deliver(answer(RcReadResponseOnly, offset, UNLIMITED), &[]);
        end.deliver(answer(RcReadResponseMiddle, offset, UNLIMITED), &[0; MTU]);
        end.deliver(
            answer(RcAtomicAck, offset, UNLIMITED).with_atomic_ack(1),
            &[],
        );
    }
    assert_eq!(end.qp.state(), QpState::Rts);
    assert!(end.poll().is_empty() && end.done().is_empty());
}

#[test]
fn reserved_syndrome_is_dropped() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    for byte in [0x40, 0x80, 0xa0, 0xe0, 0xff] {
        end.deliver(answer(RcAck, 0, Syndrome::Reserved(byte)), &[]);
    }
    assert!(end.done().is_empty());
    assert_eq!(end.qp.counters().malformed, 5);
}

#[test]
fn response_acknowledges_all_earlier_requests() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, write_to(0), 1);
    end.post_signaled(3, read_from(0), 4);
    end.post_signaled(4, add(1), 8);
    end.poll();
    end.deliver(answer(RcReadResponseOnly, 2, UNLIMITED), &[9; 4]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, 4), [9; 4]);
    end.deliver(answer(RcAtomicAck, 3, UNLIMITED).with_atomic_ack(5), &[]);
    assert_eq!(end.done(), [(4, Success)]);
}

#[test]
fn atomic_result_is_in_the_byte_order_of_the_host() {
    let mut end = Endpoint::new();
    let op = SendOp::CompareSwap {
        addr: base(REMOTE) + 16,
        rkey: RKey(REMOTE),
        compare: 3,
        swap: 4,
    };
    end.post(1, op, SIGNALED, &[sge(LOCAL, 0, 8)]);
    let packet = end.poll_one();
    let atomic = packet.header.atomic.unwrap();
    assert_eq!((atomic.compare, atomic.swap_or_add), (3, 4));
    assert_eq!(atomic.addr, base(REMOTE) + 16);
    let original = 0x0102_0304_0506_0708;
    end.deliver(
        answer(RcAtomicAck, 0, UNLIMITED).with_atomic_ack(original),
        &[],
    );
    assert_eq!(end.host.bytes(LOCAL, 0, 8), original.to_ne_bytes());
    assert_eq!(end.host.sends[0].byte_len, 8);
    assert_eq!(end.host.sends[0].opcode, WcOpcode::CompareSwap);
}

#[test]
fn zero_length_messages_take_a_packet_and_need_no_memory() {
    let mut end = Endpoint::new();
    let nowhere = SendOp::Write {
        addr: 0,
        rkey: RKey(0),
    };
    let nothing = SendOp::Read {
        addr: 0,
        rkey: RKey(0),
    };
    end.post(1, SendOp::Send, SIGNALED, &[]);
    end.post(2, nowhere, SIGNALED, &[]);
    end.post(3, nothing, SIGNALED, &[]);
    let packets = end.poll();
    assert_eq!(opcodes(&packets), [RcSendOnly, RcWriteOnly, RcReadRequest]);
    assert_eq!(psns(&packets), [0, 1, 2]);
    assert!(packets.iter().all(|p| p.payload.is_empty()));
    end.deliver(answer(RcReadResponseOnly, 2, UNLIMITED), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn inline_data_is_copied_when_posted() {
    let mut end = Endpoint::new();
    let mut data = vec![5; 300];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SIGNALED,
        payload: Payload::Inline(&data),
        dest: None,
    };
    end.qp.post_send(&wr, end.now, &mut end.host).unwrap();
    data.fill(6);
    let packets = end.poll();
    assert_eq!(packets[0].payload, [5; 256]);
    assert_eq!(packets[1].payload, [5; 44]);
}

#[test]
fn reads_and_atomics_outstanding_are_at_most_max_rd_atomic() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 2);
    end.post_signaled(1, read_from(0), 1);
    end.post_signaled(2, add(1), 8);
    end.post_signaled(3, read_from(0), 1);
    end.post_signaled(4, write_to(0), 1);
    // The WRITE stays behind the waiting READ.
    assert_eq!(psns(&end.poll()), [0, 1]);
    end.deliver(answer(RcReadResponseOnly, 0, UNLIMITED), &[0]);
    assert_eq!(psns(&end.poll()), [2, 3]);
}

#[test]
fn fence_waits_for_earlier_reads_and_atomics_only() {
    let mut end = Endpoint::new();
    let fence = SIGNALED | SendFlags::FENCE;
    end.post_signaled(1, read_from(0), 2 * MTU);
    end.post_signaled(2, SendOp::Send, 1);
    end.post(3, write_to(0), fence, &[sge(LOCAL, 0, 1)]);
    end.post(4, write_to(0), fence, &[sge(LOCAL, 0, 1)]);
    assert_eq!(psns(&end.poll()), [0, 2]);
    end.deliver(answer(RcReadResponseFirst, 0, UNLIMITED), &[1; MTU]);
    assert!(end.poll().is_empty());
    end.deliver(answer(RcReadResponseLast, 1, UNLIMITED), &[1; MTU]);
    // The SEND before it is not acknowledged, and a WRITE with a fence does not block another.
    assert_eq!(psns(&end.poll()), [3, 4]);
}

/// Answers the PSNs of a READ from `first` up to `to`, all with full packets.
fn answer_read(end: &mut Endpoint, first: u32, to: u32) {
    for psn in first..to {
        end.deliver(answer(RcReadResponseMiddle, psn, UNLIMITED), &[3; MTU]);
    }
}

/// The PSNs that a READ request covers.
fn requested(request: &Sent) -> std::ops::Range<u32> {
    let first = psns(std::slice::from_ref(request))[0];
    first..first + request.header.reth.unwrap().length.div_ceil(MTU as u32)
}

#[test]
fn long_read_is_split_into_requests_that_fit_the_window() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 1);
    end.post_signaled(1, read_from(0), 65_536 * 4);
    let mut from = 0;
    // The only request that may be outstanding covers the window, which doubles.
    for window in [INITIAL_WINDOW, 32, 64, 128, 256] {
        let request = end.poll_one();
        assert_eq!(requested(&request), from..from + window);
        let reth = request.header.reth.unwrap();
        assert_eq!(reth.addr, base(REMOTE) + u64::from(from) * MTU as u64);
        answer_read(&mut end, from, from + window);
        from += window;
    }
    assert!(end.done().is_empty());
}

#[test]
fn read_requests_that_share_the_window_cover_64_kib_each_at_most() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 16);
    end.post_signaled(1, read_from(0), 65_536 * 4);
    let mut longest = 0;
    for _ in 0..10 {
        for request in end.poll() {
            let request = requested(&request);
            longest = longest.max(request.end - request.start);
            answer_read(&mut end, request.start, request.end);
        }
    }
    let most = 65_536 / MTU as u32;
    assert!(longest > INITIAL_WINDOW && longest <= most, "{longest}");
}

#[test]
fn repeated_read_request_ends_where_an_earlier_one_ended() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 1);
    end.post_signaled(1, read_from(0), 65_536);
    assert_eq!(requested(&end.poll_one()), 0..INITIAL_WINDOW);
    // Neither a response nor an answer to the probe arrives. The READ is requested again in small
    // parts, and the response to the second one is lost. The whole is requested in between, since
    // the peer may not accept a partial request.
    end.wait_for_deadline();
    assert_eq!(end.poll_one().opcode(), RcWriteOnly);
    end.wait_for_deadline();
    assert_eq!(requested(&end.poll_one()), 0..1);
    answer_read(&mut end, 0, 1);
    assert_eq!(requested(&end.poll_one()), 1..3);
    for expected in [1..INITIAL_WINDOW, 1..3, 1..2] {
        end.wait_for_deadline();
        assert_eq!(requested(&end.poll_one()), expected);
    }
    answer_read(&mut end, 1, 2);
    // It ends at 3, like the lost part, though the window has room.
    assert_eq!(requested(&end.poll_one()), 2..3);
    answer_read(&mut end, 2, 3);
    let mut at = 3;
    while at < INITIAL_WINDOW {
        let range = requested(&end.poll_one());
        assert!(
            range.start == at && range.end <= INITIAL_WINDOW,
            "{range:?}"
        );
        at = range.end;
        answer_read(&mut end, range.start, range.end);
    }
    assert_eq!(requested(&end.poll_one()).start, INITIAL_WINDOW);
}

#[test]
fn read_of_more_than_1_gib_completes() {
    let mut end = Endpoint::with(|attr| {
        attr.max_rd_atomic = 1;
        attr.path_mtu = Mtu::B4096;
    });
    end.host.boundless = true;
    let length = (1 << 30) + 5;
    end.post(1, read_from(0), SIGNALED, &[sge(LOCAL, 0, length)]);
    let (mut requested, mut answered) = (0_u64, 0);
    while end.host.sends.is_empty() {
        for request in end.poll() {
            let reth = request.header.reth.unwrap();
            assert_eq!(reth.addr, base(REMOTE) + requested);
            assert_eq!(request.psn(), OWN_PSN + (requested / 4096) as u32);
            requested += u64::from(reth.length);
            let mut left = reth.length as usize;
            while left > 0 {
                let len = left.min(4096);
                end.deliver(
                    answer(RcReadResponseMiddle, answered, UNLIMITED),
                    &[0; 4096][..len],
                );
                answered += 1;
                left -= len;
            }
        }
    }
    assert_eq!(requested, length as u64);
    assert_eq!(end.host.sends[0].byte_len as usize, length);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn message_may_take_half_of_the_psn_space() {
    let mut end = Endpoint::new();
    end.host.boundless = true;
    let half = sge(LOCAL, 0, 1 << 31);
    end.post(1, SendOp::Send, SIGNALED, &[]);
    for wr_id in 2..6 {
        end.post(wr_id, SendOp::Send, SIGNALED, &[half]);
    }
    end.poll();
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    end.deliver(ack(1), &[]);
    end.deliver(ack(2), &[]);
    assert!(end.done().is_empty(), "8,388,606 packets are to come");
}

#[test]
fn message_of_more_than_2_gib_is_refused() {
    let mut end = Endpoint::new();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SIGNALED,
        payload: Payload::Sges(&[sge(LOCAL, 0, 1 << 31), sge(LOCAL, 0, 1)]),
        dest: None,
    };
    let result = end.qp.post_send(&wr, end.now, &mut end.host);
    assert_eq!(result, Err(PostError::TooLong));
}

#[test]
fn atomic_with_too_small_a_result_buffer_is_refused() {
    let swap = SendOp::CompareSwap {
        addr: base(REMOTE),
        rkey: RKey(REMOTE),
        compare: 0,
        swap: 1,
    };
    let one = |len| sge(LOCAL, 0, len);
    let mut end = Endpoint::new();
    let mut post = |op, sges: &[Sge]| {
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SIGNALED,
            payload: Payload::Sges(sges),
            dest: None,
        };
        end.qp.post_send(&wr, end.now, &mut end.host)
    };
    for op in [add(1), swap] {
        for short in [&[][..], &[one(7)], &[one(4), one(3)]] {
            assert_eq!(post(op, short), Err(PostError::ShortResult));
        }
        post(op, &[one(4), one(4)]).unwrap();
    }
    assert_eq!(end.poll().len(), 2);
}

#[test]
fn invalid_credits_mean_no_limit() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver(ack(0), &[]);
    for wr_id in 2..8 {
        end.post_signaled(wr_id, SendOp::Send, 1);
    }
    assert_eq!(end.poll().len(), 6);
}

#[test]
fn without_credit_one_packet_at_a_time_solicits_credits() {
    let no_credit = |offset| answer(RcAck, offset, Syndrome::Ack(Credits::from_count(0)));
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver(no_credit(0), &[]);
    end.post_signaled(2, SendOp::Send, 3 * MTU);
    end.post_signaled(3, SendOp::Send, 1);
    let first = end.poll_one();
    assert_eq!(first.opcode(), RcSendFirst);
    assert!(first.header.bth.ack_req);
    // The message has its receive once its first packet is acknowledged; the next message has none.
    end.deliver(no_credit(1), &[]);
    assert_eq!(psns(&end.poll()), [2, 3]);
    end.deliver(no_credit(3), &[]);
    assert_eq!(psns(&end.poll()), [4]);
}

#[test]
fn credits_limit_only_messages_that_consume_a_receive() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver(answer(RcAck, 0, Syndrome::Ack(Credits::from_count(2))), &[]);
    end.post_signaled(2, write_to(0), 1);
    end.post_signaled(3, SendOp::Send, 1);
    end.post_signaled(4, read_from(0), 1);
    let imm = SendOp::WriteImm {
        addr: base(REMOTE),
        rkey: RKey(REMOTE),
        imm: 1,
    };
    end.post_signaled(5, imm, 3 * MTU);
    end.post_signaled(6, SendOp::Send, 1);
    let packets = end.poll();
    assert_eq!(psns(&packets), [1, 2, 3, 4, 5, 6]);
    assert!(
        packets[5].header.bth.ack_req,
        "the next message waits for news"
    );
}

#[test]
fn read_with_max_rd_atomic_0_is_a_local_error() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 0);
    end.post_signaled(1, read_from(0), 1);
    assert!(end.poll().is_empty());
    assert_eq!(end.done(), [(1, WcStatus::LocQpOpErr)]);
}
