//! Asynchronous events of queue pairs, each caused through the API.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use urxe_driver::events::{AsyncEvent, EventObject, EventType};
use urxe_proto::qp::{AddressVector, AttrMask, PathMigState, QpAttr, QpState};
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, WcStatus};

/// Returns an end's next event.
fn next_event(end: &End) -> AsyncEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = end.context.events().take() {
            return event;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "no event");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the kind of an end's next event, which must concern its queue pair.
fn event(end: &End) -> EventType {
    let AsyncEvent { kind, object } = next_event(end);
    assert!(matches!(object, EventObject::Qp(qp) if Arc::ptr_eq(&qp, end.qp.origin())));
    kind
}

#[test]
fn first_packet_before_rts_establishes_communication() {
    let (a, b) = (End::new(None, 16), End::new(None, 16));
    a.init();
    b.init();
    let attr = b.ready_to_receive(&a, |_| {});
    a.connect(&b, |_| {});
    let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 8, ALL));
    for wr_id in 0..2 {
        b.qp.post_receive(wr_id, &[to.sge(0, 8)]).unwrap();
        a.post(wr_id, SendOp::Send, &[from.sge(0, 8)]);
        assert_eq!(b.completion().status, WcStatus::Success);
    }
    assert_eq!(event(&b), EventType::CommEst);
    b.ready_to_send(attr);
    // The event is delivered once: the next one is another.
    drain(&b);
    assert_eq!(event(&b), EventType::SqDrained);
}

fn drain(end: &End) {
    let attr = QpAttr {
        state: QpState::Sqd,
        en_sqd_async_notify: true,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    end.qp.modify(&attr, mask).unwrap();
}

#[test]
fn sq_drained_follows_the_last_started_send() {
    const LEN: u32 = 1 << 20;
    let (a, b) = pair(|_| {});
    let from = Buffer::new(&a.pd, LEN as usize, ALL);
    let to = Buffer::new(&b.pd, LEN as usize, ALL);
    let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
    a.post(1, SendOp::Write { addr, rkey }, &[from.sge(0, LEN)]);
    drain(&a);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(event(&a), EventType::SqDrained);
    assert!(!a.qp.attributes().sq_draining);
}

/// The requester gets a completion, the responder an event (11.6.3.2).
#[test]
fn an_invalid_request_raises_a_responder_event() {
    let (a, b) = pair(|_| {});
    let (here, there) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 64, ALL));
    let unaligned = SendOp::FetchAdd {
        addr: there.mr.addr() + 4,
        rkey: there.mr.rkey(),
        add: 1,
    };
    a.post(1, unaligned, &[here.sge(0, 8)]);
    assert_eq!(a.completion().status, WcStatus::RemInvReqErr);
    assert_eq!(event(&b), EventType::QpReqErr);
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn overrun_of_its_completion_queue_is_fatal_to_a_queue_pair() {
    let (a, b) = (End::new(None, 2), End::new(None, 16));
    let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 8, ALL));
    let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
    for round in 0..3 {
        let tune = |attr: &mut QpAttr| {
            attr.rq_psn = attr.rq_psn + 100 * round;
            attr.sq_psn = attr.sq_psn + 100 * round;
        };
        a.init();
        b.init();
        a.connect(&b, tune);
        b.connect(&a, tune);
        let mut posting = a.qp.start_posting();
        for wr_id in 0..5 {
            let write = SendWr {
                wr_id,
                op: SendOp::Write { addr, rkey },
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&[from.sge(0, 8)]),
                dest: None,
            };
            posting.post(&write).unwrap();
        }
        drop(posting);
        assert_eq!(next_event(&a).kind, EventType::CqErr);
        assert_eq!(event(&a), EventType::QpFatal);
        assert!(a.context.events().take().is_none(), "one event for all");
        for end in [&a, &b] {
            end.qp.modify(&QpAttr::default(), AttrMask::STATE).unwrap();
        }
    }
}

#[test]
fn path_migration_is_followed_by_the_peer() {
    let (a, b) = pair(|_| {});
    let path = a.qp.attributes().av;
    // Both paths have the same addresses; only the traffic class differs.
    let alternate = AddressVector {
        traffic_class: 0x20,
        ..path
    };
    let attr = QpAttr {
        alt_av: alternate,
        alt_port: 1,
        alt_timeout: 12,
        path_mig_state: PathMigState::Rearm,
        ..QpAttr::default()
    };
    for end in [&a, &b] {
        let mask = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
        end.qp.modify(&attr, mask).unwrap();
        let shown = end.qp.attributes();
        assert_eq!((shown.av, shown.alt_av), (path, alternate));
        assert_eq!(shown.path_mig_state, PathMigState::Rearm);
    }
    let from = Buffer::new(&a.pd, 8, ALL);
    let to = Buffer::new(&b.pd, 8, ALL);
    let send = |wr_id| {
        b.qp.post_receive(wr_id, &[to.sge(0, 8)]).unwrap();
        a.post(wr_id, SendOp::Send, &[from.sge(0, 8)]);
        assert_eq!(b.completion().status, WcStatus::Success);
        assert_eq!(a.completion().status, WcStatus::Success);
    };
    send(0);
    for end in [&a, &b] {
        assert_eq!(end.qp.attributes().path_mig_state, PathMigState::Armed);
    }
    let migrated = QpAttr::default();
    a.qp.modify(&migrated, AttrMask::PATH_MIG_STATE).unwrap();
    send(1);
    for end in [&a, &b] {
        assert_eq!(event(end), EventType::PathMig);
        let shown = end.qp.attributes();
        assert_eq!((shown.av, shown.timeout), (alternate, 12));
        assert_eq!(shown.path_mig_state, PathMigState::Migrated);
    }
}

#[test]
fn an_alternate_path_with_an_invalid_gid_index_changes_nothing() {
    let (a, _b) = pair(|_| {});
    let before = a.qp.attributes();
    let alt_av = AddressVector {
        sgid_index: 255,
        ..before.av
    };
    let attr = QpAttr {
        alt_av,
        alt_port: 1,
        ..before
    };
    let error = a.qp.modify(&attr, AttrMask::ALT_PATH).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert_eq!(a.qp.attributes(), before);
}
