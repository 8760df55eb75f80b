//! The safe Rust API over the loopback interface: every operation, every kind of failure, waiting,
//! dropping, and threads.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use urxe::{
    BatchError, BuildError, Completion, CompletionQueue, ConnectOptions, Context, DeviceError,
    Endpoint, EventType, MemoryRegion, Mtu, PostError, PreparedQueuePair, ProtectionDomain,
    QpState, QueuePair, QueuePairBuilder, RKey, RangeError, ReceiveRequest, RemoteAccess,
    RemoteRegion, SendRequest, Subject, WcOpcode, WcStatus, WorkError, WorkQueue,
};

/// How long anything here may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

const ALL: RemoteAccess = RemoteAccess::all();

/// What one end has.
struct End {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl End {
    fn new() -> End {
        let context = urxe::device("urxe_lo").unwrap().open().unwrap();
        let pd = context.pd();
        let cq = context.completion_queue().unwrap();
        End { context, pd, cq }
    }

    fn qp(&self) -> QueuePairBuilder<'_> {
        self.pd.queue_pair(&self.cq, &self.cq)
    }

    fn completion(&self) -> Completion {
        let completion = self.cq.wait_timeout(PATIENCE).unwrap();
        completion.expect("no completion came")
    }

    /// The status of the next completion.
    fn status(&self) -> WcStatus {
        status(&self.completion())
    }

    fn event(&self) -> urxe::Event {
        let event = self.context.events().next_timeout(PATIENCE).unwrap();
        event.expect("no event came")
    }

    /// Registered memory with bytes that `seed` decides.
    fn filled(&self, len: usize, seed: u64) -> MemoryRegion {
        let region = self.pd.register(len, ALL).unwrap();
        region.write(0, &pattern(len, seed)).unwrap();
        region
    }
}

fn status(completion: &Completion) -> WcStatus {
    match completion.result {
        Ok(_) => WcStatus::Success,
        Err(WorkError { status }) => status,
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let step = |_| {
        x = x
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (x >> 56) as u8
    };
    (0..len).map(step).collect()
}

fn connect(a: PreparedQueuePair, b: PreparedQueuePair) -> (QueuePair, QueuePair) {
    connect_with(a, b, &ConnectOptions::default())
}

fn connect_with(
    a: PreparedQueuePair,
    b: PreparedQueuePair,
    options: &ConnectOptions,
) -> (QueuePair, QueuePair) {
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let a = a.connect(&at_b, options).unwrap();
    (a, b.connect(&at_a, options).unwrap())
}

/// Two ends with a connection, each with an opened device of its own.
fn pair() -> (End, End, QueuePair, QueuePair) {
    let (a, b) = (End::new(), End::new());
    let (qp_a, qp_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    (a, b, qp_a, qp_b)
}

#[test]
fn every_operation_at_sizes_around_the_path_mtu_moves_the_right_bytes() {
    for mtu in Mtu::ALL {
        let (a, b) = (End::new(), End::new());
        // The smaller of the two counts.
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
            let told = b.completion();
            assert_eq!(told.wr_id, 8);
            assert_eq!(told.result.unwrap().opcode, WcOpcode::RecvWriteImm);
            assert_eq!(told.result.unwrap().imm, Some(77));
            assert!(told.data().unwrap().is_empty());
            assert!(there.to_vec(..).unwrap() == pattern(len, seed + 3000));
            assert_eq!(a.status(), WcStatus::Success);
        }
    }
}

#[test]
fn several_pieces_are_sent_and_filled_one_after_another() {
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
fn peers_and_the_programs_own_atomics_lose_no_addition() {
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
fn compare_and_swap_tells_what_was_there_and_swaps_only_if_it_was_expected() {
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
fn atomic_write_and_flush_are_done_when_they_complete() {
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
fn access_that_a_region_does_not_grant_is_refused_and_told_to_both() {
    type Attempt = fn(&MemoryRegion, &MemoryRegion) -> SendRequest<'static>;
    let attempts: [(RemoteAccess, Attempt); 3] = [
        (ALL - RemoteAccess::WRITE, |here, there| {
            SendRequest::write(here.slice(..).unwrap(), &there.remote())
        }),
        (ALL - RemoteAccess::READ, |here, there| {
            SendRequest::read(here.slice(..).unwrap(), &there.remote())
        }),
        (ALL - RemoteAccess::ATOMIC, |here, there| {
            let word = there.remote().word(0).unwrap();
            SendRequest::fetch_add(&here.word(0).unwrap(), word, 1)
        }),
    ];
    for (access, attempt) in attempts {
        let (a, b, qp_a, qp_b) = pair();
        let here = a.filled(64, 1);
        let there = b.pd.register(64, access).unwrap();
        qp_a.post_send(attempt(&here, &there).id(1)).unwrap();
        qp_a.post_send(attempt(&here, &there).id(2)).unwrap();
        let refused = a.completion();
        assert_eq!(
            (refused.wr_id, status(&refused)),
            (1, WcStatus::RemAccessErr)
        );
        let flushed = a.completion();
        assert_eq!((flushed.wr_id, status(&flushed)), (2, WcStatus::WrFlushErr));
        assert_eq!(qp_a.state(), QpState::Err);
        let event = b.event();
        assert_eq!(event.kind, EventType::QpAccessErr);
        assert_eq!(event.subject, Subject::QueuePair(qp_b.qpn()));
        assert_eq!(there.to_vec(..).unwrap(), [0; 64]);
    }
}

#[test]
fn a_wrong_key_and_a_range_beyond_the_region_are_refused() {
    for wrong in [true, false] {
        let (a, b, qp_a, _qp_b) = pair();
        let here = a.filled(64, 1);
        let there = b.pd.register(32, ALL).unwrap();
        let mut remote = there.remote();
        if wrong {
            remote.rkey = RKey(remote.rkey.0 ^ 0x100);
        } else {
            remote.len = 64;
        }
        let len = remote.len as usize;
        qp_a.post_send(SendRequest::write(here.slice(..len).unwrap(), &remote))
            .unwrap();
        assert_eq!(a.status(), WcStatus::RemAccessErr);
    }
}

#[test]
fn a_queue_pair_may_permit_less_than_the_region() {
    let (a, b) = (End::new(), End::new());
    let prepared = b.qp().remote_access(RemoteAccess::READ).build().unwrap();
    let (qp_a, _qp_b) = connect(a.qp().build().unwrap(), prepared);
    let (here, there) = (a.filled(8, 1), b.filled(8, 2));
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &there.remote()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    qp_a.post_send(SendRequest::write(here.slice(..).unwrap(), &there.remote()))
        .unwrap();
    assert_ne!(a.status(), WcStatus::Success);
}

#[test]
fn a_region_is_gone_for_peers_when_it_is_dropped() {
    let (a, b, qp_a, _qp_b) = pair();
    let here = a.filled(8, 1);
    let there = b.filled(8, 2);
    let remote = there.remote();
    let piece = there.slice(2..3).unwrap();
    drop(there);
    // A piece of it keeps it.
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.completion().data().unwrap(), pattern(8, 2));
    drop(piece);
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemAccessErr);
}

#[test]
fn a_work_request_keeps_its_memory_until_its_completion_is_taken() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.pd.register(5000, ALL).unwrap();
    let remote = there.remote();
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    drop(there);
    // The receive alone keeps the region now, for RDMA as well.
    let here = a.filled(5000, 4);
    qp_a.post_send(SendRequest::write(here.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    qp_a.post_send(SendRequest::send(here.slice(..10).unwrap()))
        .unwrap();
    drop(here);
    assert_eq!(a.status(), WcStatus::Success);
    let received = b.completion();
    assert_eq!(received.data().unwrap(), pattern(5000, 4)[..10]);
    let mut rest = [0; 4990];
    received.buffers[0].read(10, &mut rest).unwrap();
    assert!(rest[..] == pattern(5000, 4)[10..]);
    drop(received);
    let again = a.filled(1, 1);
    qp_a.post_send(SendRequest::write(again.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemAccessErr);
}

#[test]
fn a_receive_that_is_too_small_is_an_error_on_both_sides() {
    let (a, b, qp_a, qp_b) = pair();
    let (here, there) = (a.filled(9000, 1), b.pd.register(8999, ALL).unwrap());
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    qp_a.post_send(SendRequest::send(here.slice(..).unwrap()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemInvReqErr);
    assert_eq!(b.status(), WcStatus::LocLenErr);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_or_not() {
    let (a, b) = (End::new(), End::new());
    let there = b.pd.register(64, ALL).unwrap();
    let (qp_a, qp_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    qp_a.post_send(SendRequest::send(b"patient")).unwrap();
    thread::sleep(Duration::from_millis(20));
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    assert_eq!(b.completion().data().unwrap(), b"patient");
    assert_eq!(a.status(), WcStatus::Success);
    assert!(qp_b.counters().rnr_naks_sent > 0);

    let impatient = ConnectOptions {
        rnr_retry: 1,
        min_rnr_timer: 1,
        ..ConnectOptions::default()
    };
    let prepared = (a.qp().build().unwrap(), b.qp().build().unwrap());
    let (qp_a, _qp_b) = connect_with(prepared.0, prepared.1, &impatient);
    qp_a.post_send(SendRequest::send(b"impatient")).unwrap();
    assert_eq!(a.status(), WcStatus::RnrRetryExcErr);
}

#[test]
fn a_peer_that_is_gone_exceeds_the_retries() {
    let (a, b) = (End::new(), End::new());
    let options = ConnectOptions {
        timeout: 8,
        retry_cnt: 2,
        ..ConnectOptions::default()
    };
    let prepared = (a.qp().build().unwrap(), b.qp().build().unwrap());
    let (qp_a, qp_b) = connect_with(prepared.0, prepared.1, &options);
    drop(qp_b);
    qp_a.post_send(SendRequest::send(b"anybody?")).unwrap();
    let failed = a.completion();
    assert_eq!(status(&failed), WcStatus::RetryExcErr);
    let message = failed.result.unwrap_err().to_string();
    assert!(message.contains("did not answer"), "{message}");
    // What is posted from now on is flushed.
    qp_a.post_send(SendRequest::send(b"anybody?").unsignaled())
        .unwrap();
    qp_a.post_receive(ReceiveRequest::empty()).unwrap();
    assert_eq!(a.status(), WcStatus::WrFlushErr);
    assert_eq!(a.status(), WcStatus::WrFlushErr);
}

#[test]
fn memory_of_another_protection_domain_is_refused() {
    let (a, b, qp_a, qp_b) = pair();
    let other = a.context.pd().register(64, ALL).unwrap();
    let slice = || other.slice(..).unwrap();
    let refused = Err(PostError::OtherProtectionDomain);
    assert_eq!(qp_a.post_send(SendRequest::send(slice())), refused);
    assert_eq!(qp_b.post_receive(ReceiveRequest::into(slice())), refused);
    let own = a.filled(8, 1);
    let mixed = vec![own.slice(..).unwrap(), slice()];
    assert_eq!(qp_a.post_send(SendRequest::send(mixed)), refused);
    // Nor can a peer reach it by this connection.
    qp_b.post_send(SendRequest::write(b"x", &other.remote()))
        .unwrap();
    assert_eq!(b.status(), WcStatus::RemAccessErr);
}

#[test]
fn work_requests_beyond_the_limits_are_refused_with_what_the_limits_are() {
    let (a, b) = (End::new(), End::new());
    let small = a.qp().max_send_wr(2).max_recv_wr(1);
    let small = small.max_send_sge(1).max_recv_sge(1).max_inline(20);
    let (qp_a, _qp_b) = connect(small.build().unwrap(), b.qp().build().unwrap());
    let here = a.filled(64, 1);
    let there = b.pd.register(32, ALL).unwrap();
    let slice = || here.slice(..).unwrap();

    let pieces = SendRequest::send([slice(), slice()]);
    let error = qp_a.post_send(pieces).unwrap_err();
    assert_eq!(error, PostError::TooManySlices { given: 2, max: 1 });
    let error = qp_a.post_send(SendRequest::send(&[0; 21])).unwrap_err();
    assert_eq!(error, PostError::TooMuchInline { given: 21, max: 20 });
    let error = qp_a
        .post_send(SendRequest::write(slice(), &there.remote()))
        .unwrap_err();
    let short = PostError::RemoteTooShort {
        local: 64,
        remote: 32,
    };
    assert_eq!(error, short);
    assert_eq!(error.errno(), libc::EINVAL);

    qp_a.post_receive(ReceiveRequest::into(slice())).unwrap();
    let error = qp_a.post_receive(ReceiveRequest::empty()).unwrap_err();
    assert_eq!(error, PostError::QueueFull { capacity: 1 });

    // Places become free when completions are taken, not when the work is done.
    let batch = [&[1], &[2], &[3]]
        .map(|byte: &[u8; 1]| SendRequest::write(byte, &there.remote()).id(u64::from(byte[0])));
    let full = PostError::QueueFull { capacity: 2 };
    let error = qp_a.post_sends(batch).unwrap_err();
    assert_eq!(
        error,
        BatchError {
            posted: 2,
            source: full
        }
    );
    thread::sleep(Duration::from_millis(20));
    assert_eq!(
        qp_a.post_send(SendRequest::write(b"4", &there.remote())),
        Err(full)
    );
    assert_eq!(full.errno(), libc::ENOMEM);
    assert_eq!((a.completion().wr_id, a.completion().wr_id), (1, 2));
    qp_a.post_send(SendRequest::write(b"4", &there.remote()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::Success);
}

#[test]
fn unsignaled_work_requests_make_no_completion_and_free_their_places_with_the_next() {
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(4096, ALL).unwrap();
    for round in 0..50_u64 {
        // As many as the queue holds, of which the last is signaled.
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
fn a_fence_makes_a_send_wait_for_the_read_before_it() {
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
fn an_event_loop_learns_of_completions_by_the_descriptor() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.pd.register(64, ALL).unwrap();
    for round in 0..10 {
        qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()).id(round))
            .unwrap();
        b.cq.arm();
        assert!(b.cq.poll().is_none());
        assert!(!readable(&b.cq, 0));
        qp_a.post_send(SendRequest::send(b"wake up")).unwrap();
        assert!(readable(&b.cq, 20));
        assert!(b.cq.clear().unwrap());
        assert!(!readable(&b.cq, 0));
        assert!(!b.cq.clear().unwrap());
        assert_eq!(b.cq.poll().unwrap().wr_id, round);
        assert_eq!(a.status(), WcStatus::Success);
    }
}

#[test]
fn only_solicited_messages_notify_who_asked_for_those() {
    let (a, b, qp_a, qp_b) = pair();
    b.cq.arm_solicited();
    qp_b.post_receive(ReceiveRequest::empty()).unwrap();
    qp_b.post_receive(ReceiveRequest::empty()).unwrap();
    qp_a.post_send(SendRequest::send(&[])).unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    assert!(!readable(&b.cq, 0));
    qp_a.post_send(SendRequest::send(&[]).solicited()).unwrap();
    assert!(readable(&b.cq, 20));
    assert_eq!(a.status(), WcStatus::Success);
}

fn readable(fd: &impl AsFd, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn waiting_ends_with_the_time() {
    let end = End::new();
    let short = Duration::from_millis(30);
    let start = Instant::now();
    assert!(end.cq.wait_timeout(short).unwrap().is_none());
    assert!(end.context.events().next_timeout(short).unwrap().is_none());
    assert!(end.context.events().try_next().unwrap().is_none());
    let took = start.elapsed();
    assert!(took >= 2 * short && took < PATIENCE, "{took:?}");
}

#[test]
fn several_threads_wait_on_one_completion_queue_and_each_completion_comes_once() {
    const MESSAGES: u64 = 400;
    let (a, b, qp_a, qp_b) = pair();
    let seen = thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Vec::new();
                    loop {
                        let completion = b.completion();
                        if completion.result.unwrap().imm == Some(u32::MAX) {
                            return seen;
                        }
                        seen.push(completion.wr_id);
                    }
                })
            })
            .collect();
        // The last four end the four threads.
        for n in 0..MESSAGES + 4 {
            post_when_there_is_room(|| qp_b.post_receive(ReceiveRequest::empty().id(n)));
            let imm = if n < MESSAGES { 0 } else { u32::MAX };
            qp_a.post_send(SendRequest::send_with_imm(&[], imm))
                .unwrap();
            assert_eq!(a.status(), WcStatus::Success);
        }
        let seen = waiters.into_iter().map(|waiter| waiter.join().unwrap());
        seen.flatten().collect::<Vec<_>>()
    });
    assert_eq!(seen.len() as u64, MESSAGES);
    assert_eq!(
        seen.into_iter().collect::<HashSet<_>>().len() as u64,
        MESSAGES
    );
}

fn post_when_there_is_room(mut post: impl FnMut() -> Result<(), PostError>) {
    let start = Instant::now();
    while let Err(error) = post() {
        assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
        assert!(start.elapsed() < PATIENCE, "the queue stays full");
        thread::yield_now();
    }
}

#[test]
fn threads_post_to_one_queue_pair_at_the_same_time() {
    const THREADS: usize = 4;
    const EACH: usize = 250;
    const LEN: usize = 3000;
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(THREADS * EACH * LEN, ALL).unwrap();
    let remote = there.remote();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, qp_a) = (&a, &qp_a);
            scope.spawn(move || {
                for n in 0..EACH {
                    let slot = thread * EACH + n;
                    let here = a.filled(LEN, slot as u64);
                    let to = remote.slice((slot * LEN) as u64..).unwrap();
                    // The memory is dropped here: the work request keeps it.
                    post_when_there_is_room(|| {
                        let write = SendRequest::write(here.slice(..).unwrap(), &to);
                        qp_a.post_send(write.id(slot as u64))
                    });
                }
            });
        }
        let ids: HashSet<u64> = (0..THREADS * EACH)
            .map(|_| {
                let completion = a.completion();
                assert_eq!(status(&completion), WcStatus::Success);
                completion.wr_id
            })
            .collect();
        assert_eq!(ids.len(), THREADS * EACH);
    });
    for slot in 0..THREADS * EACH {
        let written = there.to_vec(slot * LEN..(slot + 1) * LEN).unwrap();
        assert!(written == pattern(LEN, slot as u64), "slot {slot}");
    }
}

#[test]
fn many_queue_pairs_share_completion_queues_that_cannot_overrun() {
    const PAIRS: usize = 300;
    const EACH: usize = 10;
    let (a, b) = (End::new(), End::new());
    let there = b.pd.register(PAIRS * EACH * 8, ALL).unwrap();
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| connect(a.qp().build().unwrap(), b.qp().build().unwrap()))
        .collect();
    let qpns: HashSet<_> = pairs
        .iter()
        .flat_map(|(qp_a, qp_b)| [qp_a.qpn(), qp_b.qpn()])
        .collect();
    assert_eq!(qpns.len(), 2 * PAIRS);
    for (n, (qp_a, qp_b)) in pairs.iter().enumerate() {
        for m in 0..EACH {
            let slot = n * EACH + m;
            let to = there.slice(slot * 8..slot * 8 + 8).unwrap();
            qp_b.post_receive(ReceiveRequest::into(to).id(slot as u64))
                .unwrap();
        }
        let messages: Vec<[u8; 8]> = (0..EACH)
            .map(|m| ((n * EACH + m) as u64).to_be_bytes())
            .collect();
        qp_a.post_sends(messages.iter().map(SendRequest::send))
            .unwrap();
    }
    // Nobody has polled so far: all completions are waiting, or under way.
    let mut received = Vec::new();
    let start = Instant::now();
    while received.len() < PAIRS * EACH {
        assert!(start.elapsed() < PATIENCE);
        b.cq.poll_into(&mut received, 100);
    }
    for completion in &received {
        let message = completion.data().unwrap();
        assert_eq!(message, completion.wr_id.to_be_bytes());
        let qpn = pairs[completion.wr_id as usize / EACH].1.qpn();
        assert_eq!(completion.qpn, qpn);
    }
    for _ in 0..PAIRS * EACH {
        assert_eq!(a.status(), WcStatus::Success);
    }
    assert!(a.context.events().try_next().unwrap().is_none());
    assert!(b.context.events().try_next().unwrap().is_none());
}

#[test]
fn a_dropped_queue_pairs_completions_are_gone_and_others_stay() {
    let (a, b) = (End::new(), End::new());
    let (first_a, _first_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    let (second_a, _second_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    let there = b.pd.register(8, ALL).unwrap();
    for (n, qp) in [&first_a, &second_a, &first_a, &second_a]
        .into_iter()
        .enumerate()
    {
        qp.post_send(SendRequest::write(b"12345678", &there.remote()).id(n as u64))
            .unwrap();
    }
    thread::sleep(Duration::from_millis(50));
    drop(first_a);
    assert_eq!((a.completion().wr_id, a.completion().wr_id), (1, 3));
    assert!(a.cq.poll().is_none());
}

#[test]
fn a_queue_pair_that_is_taken_to_error_flushes_in_order() {
    let (a, _b, qp_a, _qp_b) = pair();
    for n in 0..5 {
        qp_a.post_receive(ReceiveRequest::empty().id(n)).unwrap();
    }
    qp_a.fail().unwrap();
    assert_eq!(qp_a.state(), QpState::Err);
    for n in 0..5 {
        let flushed = a.completion();
        assert_eq!((flushed.wr_id, flushed.queue), (n, WorkQueue::Receive));
        assert_eq!(status(&flushed), WcStatus::WrFlushErr);
    }
}

#[test]
fn a_queue_pair_that_was_reset_is_connected_anew() {
    let (a, b, mut qp_a, mut qp_b) = pair();
    for round in 0..20_u64 {
        qp_a.post_receive(ReceiveRequest::empty().id(1)).unwrap();
        let there = b.pd.register(8, ALL).unwrap();
        qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
            .unwrap();
        let message = round.to_be_bytes();
        qp_a.post_send(SendRequest::send(&message)).unwrap();
        assert_eq!(b.completion().data().unwrap(), message);
        assert_eq!(a.status(), WcStatus::Success);
        let (qpn, psn) = (qp_a.qpn(), qp_a.attributes().sq_psn);
        let prepared = (qp_a.reset().unwrap(), qp_b.reset().unwrap());
        assert_eq!(prepared.0.qpn(), qpn);
        assert_ne!(prepared.0.endpoint().psn, psn);
        // The receive of before is forgotten.
        assert!(a.cq.poll().is_none());
        (qp_a, qp_b) = connect(prepared.0, prepared.1);
    }
}

#[test]
fn a_drained_queue_pair_tells_and_sends_again_when_it_is_resumed() {
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(1 << 20, ALL).unwrap();
    let here = a.filled(1 << 20, 1);
    let write = || SendRequest::write(here.slice(..).unwrap(), &there.remote());
    qp_a.post_send(write()).unwrap();
    qp_a.drain().unwrap();
    let event = a.event();
    assert_eq!(event.kind, EventType::SqDrained);
    assert_eq!(event.subject, Subject::QueuePair(qp_a.qpn()));
    assert_eq!(a.status(), WcStatus::Success);
    qp_a.post_send(write()).unwrap();
    assert!(
        a.cq.wait_timeout(Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    qp_a.resume().unwrap();
    assert_eq!(a.status(), WcStatus::Success);
}

#[test]
fn a_queue_pair_can_talk_to_itself() {
    let end = End::new();
    let prepared = end.qp().build().unwrap();
    let itself = prepared.endpoint();
    let qp = prepared
        .connect(&itself, &ConnectOptions::default())
        .unwrap();
    let room = end.pd.register(16, ALL).unwrap();
    qp.post_receive(ReceiveRequest::into(room.slice(..).unwrap()).id(1))
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

#[test]
fn what_cannot_be_built_says_why() {
    let (a, b) = (End::new(), End::new());
    let error = a.pd.queue_pair(&a.cq, &b.cq).build().unwrap_err();
    assert!(matches!(error, BuildError::OtherContext), "{error}");
    let error = a.qp().gid_index(200).build().unwrap_err();
    assert!(matches!(&error, BuildError::NoSuchGid { index: 200, .. }));
    assert!(error.to_string().contains("urxe_lo has no GID"), "{error}");
    let error = a.qp().max_send_wr(32_769).build().unwrap_err();
    assert!(matches!(error, BuildError::Create(_)), "{error}");
    assert_eq!(error.errno(), libc::EINVAL);
    let error = a.qp().max_send_wr(u32::MAX).build().unwrap_err();
    assert!(matches!(error, BuildError::Cq(_)), "{error}");

    // What could not be built has left no trace in the completion queue.
    let largest = || a.qp().max_send_wr(32_768).max_recv_wr(32_768).max_inline(0);
    let all: Vec<_> = (0..3)
        .map(|_| largest().max_send_sge(0).max_recv_sge(0).build())
        .collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn options_out_of_range_are_refused() {
    let (a, b) = (End::new(), End::new());
    let peer = b.qp().build().unwrap().endpoint();
    let default = ConnectOptions::default();
    let wrong = [
        ConnectOptions {
            timeout: 32,
            ..default
        },
        ConnectOptions {
            retry_cnt: 8,
            ..default
        },
        ConnectOptions {
            rnr_retry: 8,
            ..default
        },
        ConnectOptions {
            min_rnr_timer: 32,
            ..default
        },
    ];
    for options in wrong {
        let prepared = a.qp().build().unwrap();
        let error = prepared.connect(&peer, &options).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        assert!(error.to_string().contains("out of range"), "{error}");
    }
}

#[test]
fn an_unknown_device_is_told_with_those_that_there_are() {
    let error = urxe::device("urxe_nowhere").unwrap_err();
    assert!(matches!(&error, DeviceError::NotFound { .. }));
    assert_eq!(error.errno(), libc::ENODEV);
    let message = error.to_string();
    assert!(
        message.contains("urxe_nowhere") && message.contains("urxe_lo"),
        "{message}"
    );
    let all = urxe::devices().unwrap();
    assert!(
        all.iter()
            .all(|device| device.name() == format!("urxe_{}", device.interface()))
    );
    let last = all.last().unwrap();
    assert!(last.is_loopback() && last.active_mtu() == Mtu::B4096);
    assert!(
        last.gids()
            .iter()
            .any(|(index, ip)| *index == 0 && ip.is_loopback())
    );
}

#[test]
fn pieces_beyond_a_region_are_refused() {
    let end = End::new();
    let region = end.pd.register(100, ALL).unwrap();
    let outside = |result| matches!(result, Err(RangeError::Outside { of: 100, .. }));
    assert!(outside(region.slice(..101).map(drop)));
    assert!(outside(region.slice(101..).map(drop)));
    assert!(outside(region.read(99, &mut [0; 2])));
    assert!(outside(region.write(usize::MAX, &[0; 2])));
    assert!(outside(region.word(96).map(drop)));
    assert!(matches!(region.word(1), Err(RangeError::Misaligned { .. })));
    let piece = region.slice(10..20).unwrap();
    assert!(piece.slice(5..11).is_err() && piece.read(8, &mut [0; 3]).is_err());
    assert_eq!(piece.slice(5..).unwrap().offset(), 15);
    let huge = end.pd.register(usize::MAX / 2, ALL).unwrap_err();
    assert_eq!(huge.errno(), libc::ENOMEM);
    assert_eq!(end.pd.register(0, ALL).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn what_threads_share_can_be_shared() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Context>();
    shared::<ProtectionDomain>();
    shared::<MemoryRegion>();
    shared::<urxe::LocalSlice>();
    shared::<urxe::LocalWord>();
    shared::<CompletionQueue>();
    shared::<PreparedQueuePair>();
    shared::<Arc<QueuePair>>();
    shared::<Completion>();
    shared::<BuildError>();
}

/// Where the second process of [`two_processes_talk_and_a_target_need_not_call_in`] finds the first.
const MEET_AT: &str = "RUST_API_TEST_MEET_AT";

#[test]
fn two_processes_talk_and_a_target_need_not_call_in() {
    if let Ok(address) = env::var(MEET_AT) {
        return target(&mut TcpStream::connect(address).unwrap());
    }
    const LEN: usize = 3 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "two_processes_talk_and_a_target_need_not_call_in";
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(MEET_AT, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let end = End::new();
    let qp = introduce(&mut peer, end.qp().build().unwrap());
    let mut told = [0; RemoteRegion::BYTES];
    peer.read_exact(&mut told).unwrap();
    let there = RemoteRegion::from_bytes(&told);
    let from = end.filled(LEN, 5);
    let back = end.pd.register(LEN, RemoteAccess::empty()).unwrap();
    let before = end.pd.register(8, RemoteAccess::empty()).unwrap();
    let before = before.word(0).unwrap();
    let data = there.slice(8..).unwrap();
    qp.post_sends([
        SendRequest::write(from.slice(..).unwrap(), &data).id(1),
        SendRequest::read(back.slice(..).unwrap(), &data).id(2),
        SendRequest::fetch_add(&before, there.word(0).unwrap(), 41).id(3),
        SendRequest::send(b"look now").id(4),
    ])
    .unwrap();
    for wr_id in 1..=4 {
        let completion = end.completion();
        assert_eq!(
            (completion.wr_id, status(&completion)),
            (wr_id, WcStatus::Success)
        );
    }
    assert!(back.to_vec(..).unwrap() == pattern(LEN, 5));
    assert_eq!(before.load(Ordering::Acquire), 1);
    // Only now does the target look.
    peer.write_all(&[1]).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The second process: shows memory, looks away, and then sees what has become of it.
fn target(peer: &mut TcpStream) {
    const LEN: usize = 3 << 20;
    let end = End::new();
    let memory = end.pd.register(8 + LEN, ALL).unwrap();
    let counter = memory.word(0).unwrap();
    counter.store(1, Ordering::Release);
    let message = end.pd.register(8, RemoteAccess::empty()).unwrap();
    let prepared = end.qp().build().unwrap();
    prepared
        .post_receive(ReceiveRequest::into(message.slice(..).unwrap()))
        .unwrap();
    let _qp = introduce(peer, prepared);
    peer.write_all(&memory.remote().to_bytes()).unwrap();
    peer.read_exact(&mut [0]).unwrap();
    assert!(memory.to_vec(8..).unwrap() == pattern(LEN, 5));
    assert_eq!(counter.load(Ordering::Acquire), 42);
    assert_eq!(end.completion().data().unwrap(), b"look now");
}

/// Exchanges endpoints with another process, and connects.
fn introduce(peer: &mut TcpStream, prepared: PreparedQueuePair) -> QueuePair {
    peer.write_all(&prepared.endpoint().to_bytes()).unwrap();
    let mut theirs = [0; Endpoint::BYTES];
    peer.read_exact(&mut theirs).unwrap();
    let theirs = Endpoint::from_bytes(&theirs).unwrap();
    let qp = prepared
        .connect(&theirs, &ConnectOptions::default())
        .unwrap();
    peer.write_all(&[1]).unwrap();
    peer.read_exact(&mut [0]).unwrap();
    qp
}
