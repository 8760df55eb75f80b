//! Outgoing packets and the completion of work requests.

use super::*;

#[test]
fn packets_have_consecutive_psns_and_request_no_acknowledgement() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::SendImm(7), 2 * MTU + 3);
    end.post(2, write_to(8), MTU + 1);
    let packets = end.poll();
    let opcodes: Vec<_> = packets.iter().map(Sent::opcode).collect();
    let expected = [
        UcSendFirst,
        UcSendMiddle,
        UcSendLastImm,
        UcWriteFirst,
        UcWriteLast,
    ];
    assert_eq!(opcodes, expected);
    let psns: Vec<_> = packets.iter().map(Sent::psn).collect();
    assert_eq!(psns, [0xff_ffff, 0, 1, 2, 3]);
    assert!(packets.iter().all(|p| !p.header.bth.ack_req));
    assert!(
        packets
            .iter()
            .all(|p| p.header.bth.dest_qp == Qpn::new(0x22))
    );
    let solicited: Vec<_> = packets.iter().map(|p| p.header.bth.solicited).collect();
    assert_eq!(solicited, [false, false, true, false, false]);
    let data: Vec<_> = packets[..3]
        .iter()
        .flat_map(|p| p.payload.clone())
        .collect();
    let expected: Vec<_> = (0..2 * MTU + 3).map(|i| pattern(LOCAL, i)).collect();
    assert_eq!(data, expected);
    assert_eq!(packets[2].header.imm, Some(7));
    let reth = packets[3].header.reth.unwrap();
    assert_eq!((reth.addr, reth.length), (base(REMOTE) + 8, MTU as u32 + 1));
    assert_eq!(end.qp.attributes().sq_psn, Psn::new(4));
}

#[test]
fn work_request_completes_when_its_last_packet_is_sent() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, 3 * MTU);
    assert_eq!(end.done(), []);
    let (packets, more) = end.poll_room(2);
    assert_eq!((packets.len(), more), (2, true));
    assert_eq!(end.done(), []);
    assert_eq!(end.qp.send_queue_room(), 15);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.host.sends[0].opcode, WcOpcode::Send);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.send_queue_room(), 16);
}

#[test]
fn unsignaled_work_request_generates_no_completion() {
    let mut end = Endpoint::new();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Inline(&[1, 2, 3]),
        dest: None,
    };
    end.qp.post_send(&wr, end.now, &mut end.host).unwrap();
    assert_eq!(end.poll()[0].payload, [1, 2, 3]);
    assert_eq!(end.done(), []);
}

#[test]
fn destination_of_a_work_request_is_ignored() {
    let mut end = Endpoint::new();
    let elsewhere = UdDestination {
        handle: 1,
        qpn: Qpn::new(0x99),
        qkey: QKey(1),
    };
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[sge(LOCAL, 0, MTU + 1)]),
        dest: Some(Destination::Datagram(elsewhere)),
    };
    end.qp.post_send(&wr, end.now, &mut end.host).unwrap();
    let packets = end.poll();
    let goes_to: Vec<_> = packets.iter().map(|p| p.header.bth.dest_qp.get()).collect();
    assert_eq!(goes_to, [0x22, 0x22]);
}

#[test]
fn operations_with_a_response_are_refused() {
    let mut end = Endpoint::new();
    let (addr, rkey) = (base(REMOTE), RKey(REMOTE));
    let ops = [
        SendOp::SendInv(rkey),
        SendOp::Read { addr, rkey },
        SendOp::FetchAdd { addr, rkey, add: 1 },
        SendOp::CompareSwap {
            addr,
            rkey,
            compare: 0,
            swap: 1,
        },
    ];
    for op in ops {
        let posted = end.try_post(1, op, &[sge(LOCAL, 0, 8)]);
        assert_eq!(posted, Err(PostError::Operation));
    }
    assert_eq!(end.poll(), []);
}

/// 10.3.1.6.
#[test]
fn local_error_leads_to_sqe_and_rts_is_reachable_from_there() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, MTU);
    end.try_post(2, SendOp::Send, &[sge(LOCAL, 0, MTU), sge(NO_KEY, 0, MTU)])
        .unwrap();
    end.post(3, SendOp::Send, 1);
    // The first packet of the second message is sent before its second element is checked.
    assert_eq!(end.poll().len(), 2);
    assert_eq!(end.done(), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Sqe);
    end.post(4, SendOp::Send, 1);
    assert_eq!(end.done(), [(4, WrFlushErr)]);
    // Reception continues.
    end.receive(9, MTU);
    end.deliver(packet(UcSendOnly, 0), b"abc");
    assert_eq!(end.received(), [(9, Success)]);

    end.enter(QpState::Rts);
    end.post(5, SendOp::Send, 1);
    let packets = end.poll();
    assert_eq!((packets[0].opcode(), packets[0].psn()), (UcSendOnly, 1));
    assert_eq!(end.done(), [(5, Success)]);
}

/// 10.3.1.5.
#[test]
fn sqd_completes_the_message_in_progress_and_starts_none() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, 2 * MTU);
    end.post(2, SendOp::Send, 1);
    assert_eq!(end.poll_room(1).0.len(), 1);
    let attr = QpAttr {
        en_sqd_async_notify: true,
        ..attributes()
    };
    end.modify(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr);
    assert!(end.qp.attributes().sq_draining);
    assert_eq!(end.host.events, []);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.host.events, [QpEvent::SendQueueDrained]);
    assert!(!end.qp.attributes().sq_draining);
    end.enter(QpState::Rts);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.done(), [(2, Success)]);
}

#[test]
fn sq_draining_is_set_without_the_event_being_asked_for() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, 2 * MTU);
    assert_eq!(end.poll_room(1).0.len(), 1);
    assert!(!end.qp.attributes().sq_draining);
    end.enter(QpState::Sqd);
    assert!(end.qp.attributes().sq_draining);
    assert_eq!(end.poll().len(), 1);
    assert!(!end.qp.attributes().sq_draining);
    assert_eq!(end.host.events, []);
}

#[test]
fn local_operations_are_executed_in_order_without_a_packet() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, 1);
    end.try_post(2, SendOp::LocalInv(RKey(7)), &[]).unwrap();
    end.post(3, SendOp::Send, 1);
    end.try_post(4, SendOp::LocalInv(RKey(NO_KEY)), &[])
        .unwrap();
    end.post(5, SendOp::Send, 1);
    let psns: Vec<_> = end.poll().iter().map(Sent::psn).collect();
    assert_eq!(psns, [OWN_PSN, 0]);
    assert_eq!(*end.host.local.borrow(), [(7, 1)]);
    let failed = (4, WcStatus::LocQpOpErr);
    let flushed = (5, WrFlushErr);
    assert_eq!(
        end.done(),
        [(1, Success), (2, Success), (3, Success), failed, flushed]
    );
    assert_eq!(end.qp.state(), QpState::Sqe);
}
