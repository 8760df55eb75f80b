//! Queue pairs with a shared receive queue, over the loopback interface.

mod common;

use common::{ALL, Buffer, End, join};
use rustix::fs::{OFlags, fcntl_setfl};
use std::sync::Arc;
use urxe_driver::events::{EventObject, EventType};
use urxe_driver::srq::{SrqAttr, SrqChange};
use urxe_driver::{Pd, Srq};
use urxe_proto::qp::{AttrMask, QpAttr, QpState, QpType};
use urxe_proto::queue::PostError;
use urxe_proto::work::{SendOp, WcStatus};

/// Returns a connected pair; the second end uses a shared receive queue of 8 receives.
fn pair() -> (End, End, Arc<Srq>) {
    let mut shared = None;
    let receiver = End::sharing(QpType::Rc, None, 256, |context| {
        let attr = SrqAttr {
            max_wr: 8,
            max_sge: 1,
            limit: 0,
        };
        shared = Some(context.create_srq(&Pd::new(), attr).unwrap());
        shared.clone()
    });
    let (a, b) = join(End::new(None, 256), receiver, |_| {});
    (a, b, shared.unwrap())
}

fn pair_on(srq: &Arc<Srq>) -> (End, End) {
    let receiver = End::sharing(QpType::Rc, None, 256, |_| Some(Arc::clone(srq)));
    join(End::new(None, 256), receiver, |_| {})
}

#[test]
fn messages_of_several_queue_pairs_take_receives_in_their_order() {
    let (a, b, srq) = pair();
    let (c, d) = pair_on(&srq);
    let to = Buffer::new(srq.pd(), 64, ALL);
    for wr_id in 0..4 {
        srq.post_receive(wr_id, &[to.sge(wr_id * 16, 16)]).unwrap();
    }
    for wr_id in 0..4 {
        let (sender, receiver) = if wr_id % 2 == 0 { (&a, &b) } else { (&c, &d) };
        let mut from = Buffer::new(&sender.pd, 16, ALL);
        from.fill(wr_id);
        sender.post(9, SendOp::Send, &[from.sge(0, 16)]);
        let received = receiver.completion();
        assert_eq!(
            (received.wr_id, received.status),
            (wr_id, WcStatus::Success)
        );
        assert_eq!(received.qpn, receiver.qp.qpn());
        let at = 2 * wr_id as usize;
        assert_eq!(to.now()[at..at + 2], from.data[..]);
        assert_eq!(sender.completion().status, WcStatus::Success);
    }
}

#[test]
fn message_waits_while_the_shared_queue_is_empty() {
    let (a, b, srq) = pair();
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(srq.pd(), 64, ALL);
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    while b.qp.counters().rnr_naks_sent == 0 {
        assert_eq!(a.cq.poll(&mut [None]), 0);
    }
    srq.post_receive(5, &[to.sge(0, 64)]).unwrap();
    assert_eq!(b.completion().wr_id, 5);
    assert_eq!(a.completion().status, WcStatus::Success);
}

#[test]
fn receives_are_not_posted_to_a_queue_pair_that_shares() {
    let (_a, b, _srq) = pair();
    assert_eq!(b.qp.post_receive(1, &[]), Err(PostError::SharedReceives));
    assert_eq!((b.qp.cap().max_recv_wr, b.qp.cap().max_recv_sge), (0, 0));
}

#[test]
fn keys_of_receives_are_of_the_shared_queues_protection_domain() {
    let (a, b, srq) = pair();
    let from = Buffer::new(&a.pd, 64, ALL);
    let own = Buffer::new(srq.pd(), 64, ALL);
    let queue_pairs = Buffer::new(&b.pd, 64, ALL);
    srq.post_receive(1, &[own.sge(0, 64)]).unwrap();
    srq.post_receive(2, &[queue_pairs.sge(0, 64)]).unwrap();
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    a.post(2, SendOp::Send, &[from.sge(0, 64)]);
    assert_eq!(b.completion().status, WcStatus::Success);
    let refused = b.completion();
    assert_eq!((refused.wr_id, refused.status), (2, WcStatus::LocProtErr));
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(a.completion().status, WcStatus::RemOpErr);
}

#[test]
fn queue_pair_in_error_raises_last_wqe_reached() {
    let (a, b, srq) = pair();
    let (c, d) = pair_on(&srq);
    let from = Buffer::new(&c.pd, 64, ALL);
    let to = Buffer::new(srq.pd(), 64, ALL);
    srq.post_receive(1, &[to.sge(0, 64)]).unwrap();
    let error = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    b.qp.modify(&error, AttrMask::STATE).unwrap();
    let event = b.context.events().next().unwrap();
    assert_eq!(event.kind, EventType::QpLastWqeReached);
    assert!(matches!(event.object, EventObject::Qp(qp) if Arc::ptr_eq(&qp, b.qp.origin())));
    assert_eq!(b.cq.poll(&mut [None]), 0, "nothing is flushed");
    c.post(1, SendOp::Send, &[from.sge(0, 64)]);
    assert_eq!(d.completion().wr_id, 1, "the others go on");
    drop(a);
}

#[test]
fn limit_event_is_raised_when_messages_consume_receives() {
    let (a, b, srq) = pair();
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(srq.pd(), 64, ALL);
    for wr_id in 0..4 {
        srq.post_receive(wr_id, &[to.sge(0, 64)]).unwrap();
    }
    let change = SrqChange {
        limit: Some(3),
        ..SrqChange::default()
    };
    srq.modify(change).unwrap();
    let events = b.context.events();
    fcntl_setfl(events.fd(), OFlags::NONBLOCK).unwrap();
    let limit_reached = || {
        std::iter::from_fn(|| events.next().ok())
            .any(|event| event.kind == EventType::SrqLimitReached)
    };
    for reached in [false, true, false] {
        a.post(1, SendOp::Send, &[from.sge(0, 64)]);
        assert_eq!(b.completion().status, WcStatus::Success);
        assert_eq!(limit_reached(), reached);
    }
}
