//! Reliable connections over the loopback interface: every operation, over real sockets.

mod common;

use common::{ALL, Buffer, End, pair};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::Arc;
use std::time::Duration;
use urxe_driver::Channel;
use urxe_driver::events::{EventObject, EventType};
use urxe_proto::host::Access;
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::QpState;
use urxe_proto::work::{Extra, SendOp, WcOpcode, WcStatus};

#[test]
fn send_and_receive_at_every_path_mtu() {
    for mtu in Mtu::ALL {
        let (a, b) = pair(|attr| attr.path_mtu = mtu);
        for len in [
            0,
            1,
            3,
            mtu.bytes() - 1,
            mtu.bytes(),
            mtu.bytes() + 1,
            100_000,
        ] {
            let mut from = Buffer::new(&a.pd, len, ALL);
            let to = Buffer::new(&b.pd, len, ALL);
            from.fill(len as u64);
            b.qp.post_receive(7, &[to.sge(0, len as u32)]).unwrap();
            a.post(9, SendOp::SendImm(0x1234_5678), &[from.sge(0, len as u32)]);
            let received = b.completion();
            assert_eq!(received.status, WcStatus::Success);
            assert_eq!((received.wr_id, received.opcode), (7, WcOpcode::Recv));
            assert_eq!(received.byte_len as usize, len);
            assert_eq!(received.extra, Extra::Imm(0x1234_5678));
            assert_eq!(
                (
                    a.completion().wr_id,
                    to.data[..len / 8] == from.data[..len / 8]
                ),
                (9, true)
            );
        }
    }
}

#[test]
fn request_that_arrived_before_the_destruction_is_acknowledged() {
    for _ in 0..50 {
        let (a, b) = pair(|_| {});
        let from = Buffer::new(&a.pd, 64, ALL);
        let to = Buffer::new(&b.pd, 64, ALL);
        let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
        a.post(1, SendOp::Write { addr, rkey }, &[from.sge(0, 64)]);
        // The kernel delivers to a socket of the same host before the post returns.
        drop(b);
        assert_eq!(a.completion().status, WcStatus::Success);
    }
}

#[test]
fn write_and_read_large_messages() {
    const LEN: usize = 16 << 20;
    let (a, b) = pair(|_| {});
    let mut here = Buffer::new(&a.pd, LEN, ALL);
    let there = Buffer::new(&b.pd, LEN, ALL);
    let back = Buffer::new(&a.pd, LEN, ALL);
    here.fill(5);
    let (addr, rkey) = (there.mr.addr(), there.mr.rkey());
    a.post(1, SendOp::Write { addr, rkey }, &[here.sge(0, LEN as u32)]);
    assert_eq!(a.completion().status, WcStatus::Success);
    a.post(2, SendOp::Read { addr, rkey }, &[back.sge(0, LEN as u32)]);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert!(here.data == there.data && here.data == back.data);
}

#[test]
fn atomics_return_the_previous_value() {
    let (a, b) = pair(|_| {});
    let result = Buffer::new(&a.pd, 8, ALL);
    let cell = Buffer::new(&b.pd, 8, ALL);
    let (addr, rkey) = (cell.mr.addr(), cell.mr.rkey());
    for round in 0..10 {
        a.post(
            1,
            SendOp::FetchAdd { addr, rkey, add: 3 },
            &[result.sge(0, 8)],
        );
        assert_eq!(a.completion().opcode, WcOpcode::FetchAdd);
        assert_eq!(result.data[0], 3 * round);
    }
    a.post(
        2,
        SendOp::CompareSwap {
            addr,
            rkey,
            compare: 30,
            swap: 99,
        },
        &[result.sge(0, 8)],
    );
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!((result.data[0], cell.data[0]), (30, 99));
}

#[test]
fn unauthorized_write_fails_on_both_sides() {
    let (a, b) = pair(|_| {});
    let here = Buffer::new(&a.pd, 64, ALL);
    let there = Buffer::new(&b.pd, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let write = SendOp::Write {
        addr: there.mr.addr(),
        rkey: there.mr.rkey(),
    };
    a.post(1, write, &[here.sge(0, 64)]);
    a.post(2, write, &[here.sge(0, 64)]);
    assert_eq!(a.completion().status, WcStatus::RemAccessErr);
    assert_eq!(a.completion().status, WcStatus::WrFlushErr);
    assert_eq!(a.qp.state(), QpState::Err);
    let event = b.context.events().next().unwrap();
    assert_eq!(event.kind, EventType::QpAccessErr);
    assert!(matches!(event.object, EventObject::Qp(qp) if Arc::ptr_eq(&qp, b.qp.origin())));
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn a_send_is_retried_after_rnr_nak() {
    let (a, b) = pair(|_| {});
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    std::thread::sleep(Duration::from_millis(30));
    b.qp.post_receive(2, &[to.sge(0, 64)]).unwrap();
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert!(b.qp.counters().rnr_naks_sent > 0);
}

#[test]
fn rnr_retry_exceeded_is_reported() {
    let (a, _b) = pair(|attr| attr.rnr_retry = 1);
    let from = Buffer::new(&a.pd, 64, ALL);
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    assert_eq!(a.completion().status, WcStatus::RnrRetryExcErr);
}

#[test]
fn a_missing_peer_causes_retry_exceeded() {
    let (a, b) = pair(|attr| {
        attr.timeout = 8;
        attr.retry_cnt = 2;
    });
    let from = Buffer::new(&a.pd, 64, ALL);
    drop(b);
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    assert_eq!(a.completion().status, WcStatus::RetryExcErr);
}

#[test]
fn a_completion_queue_that_overruns_takes_its_queue_pairs_to_error() {
    let (a, b) = (End::new(None, 2), End::new(None, 256));
    a.init();
    b.init();
    a.connect(&b, |_| {});
    b.connect(&a, |_| {});
    let here = Buffer::new(&a.pd, 8, ALL);
    let there = Buffer::new(&b.pd, 8, ALL);
    for wr_id in 0..5 {
        let write = SendOp::Write {
            addr: there.mr.addr(),
            rkey: there.mr.rkey(),
        };
        a.post(wr_id, write, &[here.sge(0, 8)]);
    }
    let event = a.context.events().next().unwrap();
    assert_eq!(event.kind, EventType::CqErr);
    let start = std::time::Instant::now();
    while a.qp.state() != QpState::Err {
        assert!(start.elapsed() < common::TEST_TIMEOUT);
        std::thread::yield_now();
    }
}

/// Returns two connected ends. The channel notifies of the second one's completions.
fn notified() -> (Arc<Channel>, End, End) {
    let channel = Arc::new(Channel::new().unwrap());
    let second = End::new(Some(Arc::clone(&channel)), 16);
    let (a, b) = common::join(End::new(None, 16), second, |_| {});
    (channel, a, b)
}

#[test]
fn a_waiting_program_is_notified_and_its_descriptor_can_be_polled() {
    let (channel, a, b) = notified();
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    for round in 0..20 {
        b.cq.arm(false);
        b.qp.post_receive(round, &[to.sge(0, 64)]).unwrap();
        a.post(round, SendOp::Send, &[from.sge(0, 64)]);
        if round % 2 == 0 {
            // The thread sleeps in poll(2), so only the progress thread can receive.
            let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
            let timeout = rustix::time::Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1);
        }
        let cq = channel.next().unwrap();
        assert!(Arc::ptr_eq(&cq, &b.cq));
        assert_eq!(b.completion().wr_id, round);
        assert_eq!(a.completion().wr_id, round);
    }
}

#[test]
fn solicited_arming_ignores_unsolicited_completions() {
    let (channel, a, b) = notified();
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    b.cq.arm(true);
    b.qp.post_receive(1, &[to.sge(0, 64)]).unwrap();
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    assert_eq!(a.completion().status, WcStatus::Success);
    let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
    let none = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut fds, Some(&none)).unwrap(), 0);
}

/// UCX arms after its last poll and then sleeps, without another poll: NICs compare the consumer
/// index of the request.
#[test]
fn arming_notifies_of_a_completion_that_no_event_announced() {
    let (channel, a, b) = notified();
    let from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    let is_readable = || {
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        let none = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&none)).unwrap() == 1
    };
    let transfer = |wr_id| {
        b.qp.post_receive(wr_id, &[to.sge(0, 64)]).unwrap();
        a.post(wr_id, SendOp::Send, &[from.sge(0, 64)]);
        assert_eq!(a.completion().status, WcStatus::Success);
    };
    transfer(1);
    // It is unsolicited.
    b.cq.arm(true);
    assert!(!is_readable());
    b.cq.arm(false);
    assert!(is_readable());
    channel.next().unwrap();
    // That event announced it, and one that was taken needs none.
    b.cq.arm(false);
    assert!(!is_readable());
    transfer(2);
    channel.next().unwrap();
    transfer(3);
    for wr_id in 1..=3 {
        assert_eq!(b.completion().wr_id, wr_id);
    }
    b.cq.arm(false);
    assert!(!is_readable());
}

/// An application that is only a target makes no calls, and its memory is still written and read.
#[test]
fn an_idle_target_is_served_by_the_progress_thread() {
    let (a, b) = pair(|_| {});
    let mut here = Buffer::new(&a.pd, 1 << 20, ALL);
    let there = Buffer::new(&b.pd, 1 << 20, ALL);
    here.fill(3);
    let write = SendOp::Write {
        addr: there.mr.addr(),
        rkey: there.mr.rkey(),
    };
    a.post(1, write, &[here.sge(0, 1 << 20)]);
    let start = std::time::Instant::now();
    while there.now() != here.data {
        assert!(start.elapsed() < common::TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(a.completion().status, WcStatus::Success);
}
