//! The operations that each state of the queue pair permits.

use super::*;
use Opcode::*;
use WcStatus::{Success, WrFlushErr};

/// An end in `state`.
fn in_state(state: QpState) -> Endpoint {
    let attr = attributes();
    let mut end = Endpoint::reset();
    let path: &[QpState] = match state {
        QpState::Reset => &[],
        QpState::Init => &[QpState::Init],
        QpState::Rtr => &[QpState::Init, QpState::Rtr],
        QpState::Rts => &[QpState::Init, QpState::Rtr, QpState::Rts],
        QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
        _ => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err],
    };
    for &next in path {
        let mask = match next {
            QpState::Init => INIT,
            QpState::Rtr => RTR,
            QpState::Rts => RTS,
            _ => AttrMask::empty(),
        };
        end.modify(next, mask, &attr);
    }
    assert_eq!(end.qp.state(), state);
    end
}

/// The states of a reliable connection.
const STATES: [QpState; 6] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Err,
];

fn post(end: &mut Endpoint) -> Result<(), PostError> {
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SIGNALED,
        payload: Payload::Sges(&[]),
        dest: None,
    };
    end.qp.post_send(&wr, end.now, &mut end.host)
}

#[test]
fn sends_are_accepted_sent_and_flushed_by_state() {
    for state in STATES {
        let mut end = in_state(state);
        let takes = matches!(state, QpState::Rts | QpState::Sqd | QpState::Err);
        let expected = if takes { Ok(()) } else { Err(PostError::State) };
        assert_eq!(post(&mut end), expected, "{state:?}");
        let sent = usize::from(state == QpState::Rts);
        assert_eq!(end.poll().len(), sent, "{state:?}");
        let flushed = if state == QpState::Err {
            vec![(1, WrFlushErr)]
        } else {
            vec![]
        };
        assert_eq!(end.done(), flushed, "{state:?}");
    }
}

#[test]
fn requests_are_handled_or_dropped_by_state() {
    for state in STATES {
        let mut end = in_state(state);
        end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[0xff]);
        let handled = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        assert_eq!(end.host.bytes(REMOTE, 0, 1) == [0xff], handled, "{state:?}");
        assert_eq!(end.poll().len(), usize::from(handled), "{state:?}");
        assert_eq!(end.qp.counters().dropped_in_state, u64::from(!handled));
    }
}

#[test]
fn receives_are_flushed_in_error_only() {
    for state in STATES {
        let mut end = in_state(state);
        end.receive(5, &[]);
        let flushed = if state == QpState::Err {
            vec![(5, WrFlushErr)]
        } else {
            vec![]
        };
        assert_eq!(end.received(), flushed, "{state:?}");
    }
}

#[test]
fn first_packet_in_rtr_is_reported_once() {
    let mut end = in_state(QpState::Rtr);
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    assert_eq!(end.events(), [QpEvent::CommunicationEstablished]);
    let mut end = in_state(QpState::Rts);
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert!(end.events().is_empty());
}

#[test]
fn responses_in_rtr_are_ignored() {
    let mut end = in_state(QpState::Rtr);
    for offset in [0, 0xff_ffff] {
        end.deliver(ack(offset), &[]);
        end.deliver(nak(offset, NakCode::RemoteAccess), &[]);
    }
    assert_eq!(end.qp.state(), QpState::Rtr);
    assert_eq!(end.qp.counters().stale_responses, 4);
}

#[test]
fn packets_from_other_addresses_are_dropped() {
    let mut end = Endpoint::new();
    let header = rdma(RcWriteOnly, 0, REMOTE, 0, 1).with_payload_len(1);
    let packet = Packet {
        header,
        payload: &[0xff],
    };
    let stranger = Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, 10).into());
    end.qp
        .handle_packet(end.now, source(stranger), &packet, &mut end.host);
    let mut other_partition = packet;
    other_partition.header.bth.pkey = PKey(0x8001);
    end.deliver(other_partition.header, packet.payload);
    end.deliver(Header::new(UcSendOnly, Qpn::new(0x11), psn(PEER_PSN)), &[]);
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
    assert!(end.poll().is_empty());
    let counters = end.qp.counters();
    assert_eq!((counters.wrong_source, counters.bad_pkey), (1, 1));
    assert_eq!((counters.malformed, counters.received_packets), (1, 0));
}

#[test]
fn packets_of_a_limited_partition_member_are_accepted() {
    let mut end = Endpoint::new();
    let mut header = rdma(RcWriteOnly, 0, REMOTE, 0, 1);
    header.bth.pkey = PKey(0x7fff);
    end.deliver(header, &[1]);
    assert_eq!(end.poll().len(), 1);
}

#[test]
fn draining_completes_begun_work_requests_and_starts_no_other() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 3 * MTU);
    assert_eq!(end.poll_room(2).0.len(), 2);
    end.post_signaled(2, SendOp::Send, 1);
    let attr = QpAttr {
        en_sqd_async_notify: true,
        ..attributes()
    };
    end.modify(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr);
    assert!(end.qp.attributes().sq_draining);
    assert_eq!(end.poll_one().psn(), OWN_PSN + 2);
    end.post_signaled(3, SendOp::Send, 1);
    assert!(end.events().is_empty());
    // Requests begun before are retransmitted, too.
    end.deliver(nak(1, NakCode::PsnSequence), &[]);
    assert_eq!(end.poll().len(), 2);
    end.deliver(ack(2), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.events(), [QpEvent::SendQueueDrained]);
    assert!(!end.qp.attributes().sq_draining);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.deadline(), Time::NEVER);
    end.enter(QpState::Rts);
    assert_eq!(end.poll().len(), 2);
    end.deliver(ack(4), &[]);
    assert_eq!(end.done(), [(2, Success), (3, Success)]);
}

#[test]
fn sq_draining_is_set_until_begun_work_requests_have_completed() {
    for notify in [false, true] {
        let mut end = Endpoint::new();
        end.post_signaled(1, SendOp::Send, 1);
        end.poll();
        end.post_signaled(2, SendOp::Send, 1);
        assert!(!end.qp.attributes().sq_draining);
        let attr = QpAttr {
            en_sqd_async_notify: notify,
            ..attributes()
        };
        end.modify(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr);
        assert!(end.qp.attributes().sq_draining);
        end.deliver(ack(0), &[]);
        assert!(!end.qp.attributes().sq_draining);
        end.enter(QpState::Rts);
        assert_eq!(end.poll().len(), 1);
        assert!(!end.qp.attributes().sq_draining);
    }
}

#[test]
fn draining_an_idle_queue_is_reported_at_once_if_requested() {
    for wanted in [true, false] {
        let mut end = Endpoint::new();
        let attr = QpAttr {
            en_sqd_async_notify: wanted,
            ..attributes()
        };
        end.modify(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr);
        assert_eq!(end.events().len(), usize::from(wanted));
    }
}

#[test]
fn draining_requests_the_acknowledgement_that_it_needs() {
    let mut end = Endpoint::new();
    end.post(1, write_to(0), UNSIGNALED, &[]);
    end.post(2, write_to(0), UNSIGNALED, &[]);
    assert!(!end.poll_room(1).0[0].header.bth.ack_req);
    end.enter(QpState::Sqd);
    let retransmitted = end.poll_one();
    assert_eq!(retransmitted.psn(), OWN_PSN);
    assert!(retransmitted.header.bth.ack_req);
}

#[test]
fn error_flushes_sends_then_receives_in_order() {
    let mut end = Endpoint::new();
    end.receive(10, &[sge(LOCAL, 0, 4 * MTU)]);
    end.receive(11, &[]);
    end.deliver(request(RcSendFirst, 0).with_ack_req(false), &[1; MTU]);
    end.post_signaled(1, SendOp::Send, 1);
    end.post(2, SendOp::Send, UNSIGNALED, &[]);
    end.poll();
    end.post_signaled(3, read_from(0), 1);
    end.enter(QpState::Err);
    assert_eq!(
        end.done(),
        [(1, WrFlushErr), (2, WrFlushErr), (3, WrFlushErr)]
    );
    // The receive consumed by the incomplete message is first.
    assert_eq!(end.received(), [(10, WrFlushErr), (11, WrFlushErr)]);
    assert!(end.poll().is_empty() && end.events().is_empty());
    assert_eq!(end.qp.deadline(), Time::NEVER);
    // Late answers are ignored.
    end.deliver(ack(0), &[]);
    assert!(end.done().is_empty());
}

#[test]
fn queued_responses_are_not_sent_in_the_error_state() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 1), &[]);
    end.deliver(request(RcSendOnly, 5), &[]);
    end.enter(QpState::Err);
    assert!(end.poll().is_empty());
}

#[test]
fn receives_of_a_shared_queue_stay_and_last_wqe_reached_is_reported_once() {
    let mut end = Endpoint::new();
    end.host.shared = true;
    end.receive(1, &[]);
    end.enter(QpState::Err);
    end.enter(QpState::Err);
    end.qp.receive_posted(&mut end.host);
    assert!(end.received().is_empty());
    assert_eq!(end.host.receives.len(), 1);
    assert_eq!(end.events(), [QpEvent::LastWqeReached]);
}

#[test]
fn device_failure_flushes_and_is_reported() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.qp.fail(end.now, &mut end.host);
    end.qp.fail(end.now, &mut end.host);
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(end.done(), [(1, WrFlushErr)]);
    assert_eq!(end.events(), [QpEvent::Fatal]);
}

#[test]
fn reset_discards_everything_without_completions() {
    let mut end = Endpoint::new();
    end.receive(10, &[]);
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 1), &[]);
    end.enter(QpState::Reset);
    assert!(end.done().is_empty() && end.received().is_empty() && end.poll().is_empty());
    assert_eq!(end.host.receives.len(), 0);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    // The queue pair works again, with new PSNs.
    let attr = QpAttr {
        sq_psn: psn(7000),
        rq_psn: psn(PEER_PSN),
        ..attributes()
    };
    end.modify(QpState::Init, INIT, &attr);
    end.modify(QpState::Rtr, RTR, &attr);
    end.modify(QpState::Rts, RTS, &attr);
    end.post_signaled(2, SendOp::Send, 1);
    assert_eq!(end.poll_one().psn(), 7000);
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    let ack = end.poll_one();
    assert_eq!((ack.psn(), ack.msn()), (PEER_PSN, 1));
}

#[test]
fn refused_modification_changes_nothing() {
    let mut end = Endpoint::new();
    let before = end.qp.attributes();
    let attr = QpAttr {
        state: QpState::Rts,
        min_rnr_timer: 32,
        access: Access::empty(),
        ..attributes()
    };
    let mask = AttrMask::STATE | AttrMask::MIN_RNR_TIMER | AttrMask::ACCESS_FLAGS;
    let result = end.qp.modify(&attr, mask, end.now, &mut end.host);
    assert_eq!(
        result,
        Err(TransitionError::OutOfRange(AttrMask::MIN_RNR_TIMER))
    );
    assert_eq!(end.qp.attributes(), before);
}

#[test]
fn attributes_show_the_next_psns() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 3 * MTU);
    end.poll();
    end.deliver(rdma(RcReadRequest, 0, REMOTE, 0, 2 * MTU), &[]);
    let attr = end.qp.attributes();
    assert_eq!(attr.sq_psn, psn(OWN_PSN + 3));
    assert_eq!(attr.rq_psn, psn(PEER_PSN + 2));
}
