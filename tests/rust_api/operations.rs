//! Every operation, with checks of the transferred bytes.

use crate::end::{ALL, End, connect, pair, pattern, status};
use std::sync::atomic::Ordering;
use std::thread;
use urxe::{
    ConnectOptions, Mtu, ReceiveRequest, RemoteAccess, SendRequest, WcOpcode, WcStatus, WorkQueue,
};

#[test]
fn every_operation_transfers_the_right_bytes_around_the_path_mtu() {
    for mtu in Mtu::ALL {
        let (a, b) = (End::new(), End::new());
        // The smaller path MTU of the two ends applies.
        let small = a.qp().path_mtu(mtu).build().unwrap();
        let (qp_a, qp_b) = connect(small, b.qp().build().unwrap());
        assert_eq!(qp_b.attributes().path_mtu, mtu);
        let m = mtu.bytes();
        for len in [1, 2, 3, 4, m - 1, m, m + 1, 2 * m, 3 * m + 5, 100_000] {
            let seed = len as u64;
            let here = a.filled(len, seed);
            let there = b.pd.register(len, ALL).unwrap();

            qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()).id(7))
                .unwrap();
            let send = SendRequest::send_with_imm(here.slice(..).unwrap(), 0x1234_5678);
            qp_a.post_send(send.id(9)).unwrap();
            let received = b.completion();
            assert_eq!((received.wr_id, received.queue), (7, WorkQueue::Receive));
            assert_eq!(received.qpn, qp_b.qpn());
            let done = received.result.unwrap();
            assert_eq!((done.opcode, done.imm), (WcOpcode::Recv, Some(0x1234_5678)));
            assert_eq!(done.byte_len as usize, len);
            assert!(received.data().unwrap() == pattern(len, seed));
            let sent = a.completion();
            assert_eq!((sent.wr_id, sent.queue), (9, WorkQueue::Send));
            assert_eq!(sent.result.unwrap().opcode, WcOpcode::Send);

            here.write(0, &pattern(len, seed + 1000)).unwrap();
            qp_a.post_send(SendRequest::write(here.slice(..).unwrap(), &there.remote()))
                .unwrap();
            assert_eq!(a.completion().result.unwrap().opcode, WcOpcode::Write);
            assert!(there.to_vec(..).unwrap() == pattern(len, seed + 1000));

            there.write(0, &pattern(len, seed + 2000)).unwrap();
            qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &there.remote()))
                .unwrap();
            let read = a.completion();
            assert_eq!(read.result.unwrap().opcode, WcOpcode::Read);
            assert!(read.data().unwrap() == pattern(len, seed + 2000));

            qp_b.post_receive(ReceiveRequest::empty().id(8)).unwrap();
            here.write(0, &pattern(len, seed + 3000)).unwrap();
            let write = SendRequest::write_with_imm(here.slice(..).unwrap(), &there.remote(), 77);
            qp_a.post_send(write).unwrap();
            let notified = b.completion();
            assert_eq!(notified.wr_id, 8);
            assert_eq!(notified.result.unwrap().opcode, WcOpcode::RecvWriteImm);
            assert_eq!(notified.result.unwrap().imm, Some(77));
            assert!(notified.data().unwrap().is_empty());
            assert!(there.to_vec(..).unwrap() == pattern(len, seed + 3000));
            assert_eq!(a.status(), WcStatus::Success);
        }
    }
}

#[test]
fn several_slices_are_gathered_and_filled_in_order() {
    let (a, b, qp_a, qp_b) = pair();
    let here = a.filled(10_000, 3);
    let there = b.pd.register(10_000, ALL).unwrap();
    let from = [5000..9000, 0..1, 100..3000].map(|range| here.slice(range).unwrap());
    let to = [9000..9100, 0..6000, 7000..8000].map(|range| there.slice(range).unwrap());
    qp_b.post_receive(ReceiveRequest::into(to)).unwrap();
    qp_a.post_send(SendRequest::send(from)).unwrap();
    let all = pattern(10_000, 3);
    let sent = [&all[5000..9000], &all[0..1], &all[100..3000]].concat();
    let received = b.completion();
    assert!(received.data().unwrap() == sent);
    assert!(there.to_vec(9000..9100).unwrap() == sent[..100]);
    assert!(there.to_vec(0..6000).unwrap() == sent[100..6100]);
    assert!(there.to_vec(7000..7801).unwrap() == sent[6100..]);
    assert_eq!(a.status(), WcStatus::Success);
}

#[test]
fn inline_data_and_empty_messages_need_no_registered_memory() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.pd.register(64, ALL).unwrap();
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    qp_b.post_receive(ReceiveRequest::empty()).unwrap();
    qp_a.post_send(SendRequest::send(b"inline")).unwrap();
    qp_a.post_send(SendRequest::send(&[])).unwrap();
    qp_a.post_send(SendRequest::write(
        b"written",
        &there.remote().slice(32..).unwrap(),
    ))
    .unwrap();
    assert_eq!(b.completion().data().unwrap(), b"inline");
    assert_eq!(b.completion().result.unwrap().byte_len, 0);
    for _ in 0..3 {
        assert_eq!(a.status(), WcStatus::Success);
    }
    assert_eq!(there.to_vec(32..39).unwrap(), b"written");
    assert_eq!(there.to_vec(..6).unwrap(), b"inline");
}

#[test]
fn a_vector_is_registered_with_its_contents() {
    let (a, b, qp_a, _qp_b) = pair();
    let there =
        b.pd.register_vec(pattern(5000, 1), RemoteAccess::READ)
            .unwrap();
    let here = a.pd.register(5000, RemoteAccess::empty()).unwrap();
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &there.remote()))
        .unwrap();
    assert!(a.completion().data().unwrap() == pattern(5000, 1));
}

#[test]
fn remote_and_local_atomics_lose_no_addition() {
    const ROUNDS: u64 = 300;
    let target = End::new();
    let cell = target.pd.register(64, RemoteAccess::ATOMIC).unwrap();
    let word = cell.remote().word(8).unwrap();
    let ends: Vec<_> = (0..3)
        .map(|_| {
            let end = End::new();
            let prepared = end.qp().build().unwrap();
            let (qp, other) = connect(prepared, target.qp().build().unwrap());
            (end, qp, other)
        })
        .collect();
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let adders: Vec<_> = ends
            .iter()
            .map(|(end, qp, _)| {
                scope.spawn(move || {
                    let result = end.pd.register(8, RemoteAccess::empty()).unwrap();
                    let result = result.word(0).unwrap();
                    let add = |_| {
                        let add = SendRequest::fetch_add(&result, word, 1);
                        qp.post_send(add).unwrap();
                        assert_eq!(end.status(), WcStatus::Success);
                        result.load(Ordering::Acquire)
                    };
                    (0..ROUNDS).map(add).collect::<Vec<_>>()
                })
            })
            .collect();
        let own = cell.word(8).unwrap();
        let add = |_| own.fetch_add(1, Ordering::SeqCst);
        let mut seen: Vec<u64> = (0..ROUNDS).map(add).collect();
        seen.extend(adders.into_iter().flat_map(|adder| adder.join().unwrap()));
        seen
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..4 * ROUNDS));
}

#[test]
fn compare_and_swap_returns_the_old_value_and_swaps_only_on_a_match() {
    let (a, b, qp_a, _qp_b) = pair();
    let cell = b.pd.register(8, RemoteAccess::ATOMIC).unwrap();
    let result = a.pd.register(8, RemoteAccess::empty()).unwrap();
    let result = result.word(0).unwrap();
    let word = cell.remote().word(0).unwrap();
    cell.word(0).unwrap().store(40, Ordering::SeqCst);
    for (compare, swap, before, after) in
        [(41, 1, 40, 40), (40, 2, 40, 2), (2, u64::MAX, 2, u64::MAX)]
    {
        qp_a.post_send(SendRequest::compare_swap(&result, word, compare, swap))
            .unwrap();
        let done = a.completion();
        assert_eq!(done.result.unwrap().opcode, WcOpcode::CompareSwap);
        assert_eq!(done.data().unwrap(), u64::to_ne_bytes(before));
        assert_eq!(result.load(Ordering::SeqCst), before);
        assert_eq!(cell.word(0).unwrap().load(Ordering::SeqCst), after);
    }
}

#[test]
fn atomic_write_and_flush_take_effect_before_they_complete() {
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(16, ALL).unwrap();
    let word = there.remote().word(8).unwrap();
    for value in [1, u64::MAX, 7] {
        qp_a.post_send(SendRequest::atomic_write(word, value))
            .unwrap();
        let done = a.completion();
        assert_eq!(done.result.unwrap().opcode, WcOpcode::AtomicWrite);
        assert!(done.data().unwrap().is_empty());
        assert_eq!(there.word(8).unwrap().load(Ordering::Acquire), value);
    }
    qp_a.post_send(SendRequest::flush(&there.remote())).unwrap();
    assert_eq!(a.completion().result.unwrap().opcode, WcOpcode::Flush);
    let ordinary = b.pd.register(16, ALL - RemoteAccess::FLUSH).unwrap();
    qp_a.post_send(SendRequest::flush(&ordinary.remote()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemAccessErr);
}

#[test]
fn unsignaled_requests_free_their_places_with_the_next_signaled_one() {
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(4096, ALL).unwrap();
    for round in 0..50_u64 {
        // The queue is filled; only the last request is signaled.
        let requests = (0..128_u64).map(|n| {
            let to = there.remote().slice(n * 8..).unwrap();
            let request = SendRequest::write(b"unsignal", &to).id(round * 1000 + n);
            if n == 127 {
                request
            } else {
                request.unsignaled()
            }
        });
        qp_a.post_sends(requests).unwrap();
        assert_eq!(a.completion().wr_id, round * 1000 + 127);
    }
    assert!(a.cq.poll().is_none());
    let all = there.to_vec(..1024).unwrap();
    assert!(all.chunks(8).all(|word| word == b"unsignal"));
}

#[test]
fn a_fenced_send_starts_after_the_earlier_read_has_completed() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.filled(200_000, 1);
    let here = a.pd.register(200_000, ALL).unwrap();
    let echo = b.pd.register(200_000, ALL).unwrap();
    qp_b.post_receive(ReceiveRequest::into(echo.slice(..).unwrap()))
        .unwrap();
    qp_a.post_sends([
        SendRequest::read(here.slice(..).unwrap(), &there.remote()).unsignaled(),
        SendRequest::send(here.slice(..).unwrap()).fence(),
    ])
    .unwrap();
    assert!(b.completion().data().unwrap() == pattern(200_000, 1));
    assert_eq!(a.status(), WcStatus::Success);
}

#[test]
fn a_queue_pair_can_connect_to_itself() {
    let end = End::new();
    let prepared = end.qp().build().unwrap();
    let itself = prepared.endpoint();
    let qp = prepared
        .connect(&itself, &ConnectOptions::default())
        .unwrap();
    let buffer = end.pd.register(16, ALL).unwrap();
    qp.post_receive(ReceiveRequest::into(buffer.slice(..).unwrap()).id(1))
        .unwrap();
    qp.post_send(SendRequest::send(b"to myself").id(2)).unwrap();
    for _ in 0..2 {
        let completion = end.completion();
        assert_eq!(status(&completion), WcStatus::Success);
        if completion.wr_id == 1 {
            assert_eq!(completion.data().unwrap(), b"to myself");
        }
    }
}
