//! Concurrent use by several threads.

use crate::end::{ALL, End, TIMEOUT, connect, pair, pattern, status};
use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use urxe::{
    BuildError, Completion, CompletionQueue, Context, MemoryRegion, PostError, PreparedQueuePair,
    ProtectionDomain, QueuePair, ReceiveRequest, SendRequest, WcStatus,
};

fn post_when_not_full(mut post: impl FnMut() -> Result<(), PostError>) {
    let start = Instant::now();
    while let Err(error) = post() {
        assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
        assert!(start.elapsed() < TIMEOUT, "the queue is still full");
        thread::yield_now();
    }
}

#[test]
fn threads_waiting_on_one_queue_get_each_completion_once() {
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
        // The last four completions end the four threads.
        for n in 0..MESSAGES + 4 {
            post_when_not_full(|| qp_b.post_receive(ReceiveRequest::empty().id(n)));
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

#[test]
fn threads_post_to_one_queue_pair_concurrently() {
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
                    // The region is dropped here, but the work request keeps the memory registered.
                    post_when_not_full(|| {
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
fn a_completion_queue_of_many_queue_pairs_does_not_overrun() {
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
    // No completion has been polled so far.
    let mut received = Vec::new();
    let start = Instant::now();
    while received.len() < PAIRS * EACH {
        assert!(start.elapsed() < TIMEOUT);
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
    assert!(a.context.events().poll().unwrap().is_none());
    assert!(b.context.events().poll().unwrap().is_none());
}

#[test]
fn shared_objects_are_send_and_sync() {
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
