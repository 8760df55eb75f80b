//! Shared receive queues.

use crate::end::{TIMEOUT, connect, status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use urxe::{
    BuildError, Completion, CompletionQueue, Context, Event, EventSource, EventType, GRH_BYTES,
    PostError, ProtectionDomain, QKey, QueuePair, QueuePairBuilder, ReceiveRequest, RemoteAccess,
    SendRequest, SharedReceiveQueue, SrqError, WcStatus, WorkQueue,
};

/// A device with one completion queue for senders and another for receivers.
struct Setup {
    context: Context,
    pd: ProtectionDomain,
    sent: CompletionQueue,
    received: CompletionQueue,
}

impl Setup {
    fn new() -> Setup {
        let context = urxe::device("urxe_lo").unwrap().open().unwrap();
        Setup {
            pd: context.pd(),
            sent: context.completion_queue().unwrap(),
            received: context.completion_queue().unwrap(),
            context,
        }
    }

    fn shared(&self, max_wr: u32) -> SharedReceiveQueue {
        let builder = self.pd.shared_receive_queue().max_wr(max_wr);
        builder.build().unwrap()
    }

    fn sender(&self) -> QueuePairBuilder<'_> {
        self.pd.queue_pair(&self.sent, &self.sent)
    }

    fn receiver<'a>(&'a self, shared: &'a SharedReceiveQueue) -> QueuePairBuilder<'a> {
        let builder = self.pd.queue_pair(&self.sent, &self.received);
        builder.receives_from(shared)
    }

    /// Returns a connection whose second end receives from `shared`.
    fn connection(&self, shared: &SharedReceiveQueue) -> (QueuePair, QueuePair) {
        let ends = (self.sender().build(), self.receiver(shared).build());
        connect(ends.0.unwrap(), ends.1.unwrap())
    }

    /// Returns a receive with memory of its own.
    fn receive(&self, len: usize) -> ReceiveRequest {
        let region = self.pd.register(len, RemoteAccess::WRITE).unwrap();
        ReceiveRequest::into(region.slice(..).unwrap())
    }

    fn event(&self, kind: EventType) -> Event {
        loop {
            let event = self.context.events().wait_timeout(TIMEOUT).unwrap();
            let event = event.expect("no event arrived");
            if event.kind == kind {
                return event;
            }
        }
    }
}

fn next(cq: &CompletionQueue) -> Completion {
    let completion = cq.wait_timeout(TIMEOUT).unwrap();
    completion.expect("no completion arrived")
}

#[test]
fn a_message_of_any_service_consumes_the_oldest_receive() {
    let setup = Setup::new();
    let shared = setup.shared(4);
    for n in 0..3 {
        let receive = setup.receive(GRH_BYTES + 10).id(n);
        shared.post_receive(receive).unwrap();
    }
    let (unreliable, to_unreliable) = connect(
        setup.sender().build_unreliable().unwrap(),
        setup.receiver(&shared).build_unreliable().unwrap(),
    );
    unreliable.post_send(SendRequest::send(b"first")).unwrap();
    let first = next(&setup.received);
    let (reliable, to_reliable) = setup.connection(&shared);
    reliable.post_send(SendRequest::send(b"second")).unwrap();
    let second = next(&setup.received);
    let asker = setup.sender().build_datagram(QKey(5)).unwrap();
    let answerer = setup.receiver(&shared).build_datagram(QKey(5)).unwrap();
    let to = asker.destination(&answerer.address()).unwrap();
    asker.post_send(&to, SendRequest::send(b"third")).unwrap();
    let third = next(&setup.received);
    let expected = [
        (&first, to_unreliable.qpn(), &b"first"[..]),
        (&second, to_reliable.qpn(), b"second"),
        (&third, answerer.qpn(), b"third"),
    ];
    for (n, (completion, qpn, data)) in expected.into_iter().enumerate() {
        assert_eq!(completion.queue, WorkQueue::Receive);
        assert_eq!((completion.wr_id, completion.qpn), (n as u64, qpn));
        assert_eq!(completion.data().unwrap(), data);
    }
    assert_eq!(third.sender().unwrap().qpn, asker.qpn());
    assert_eq!(shared.outstanding(), 0);
}

#[test]
fn a_receive_occupies_its_place_until_its_completion_is_polled() {
    let setup = Setup::new();
    let shared = setup.shared(2);
    let (a, _b) = setup.connection(&shared);
    for _ in 0..2 {
        shared.post_receive(setup.receive(8)).unwrap();
    }
    let full = Err(PostError::QueueFull { capacity: 2 });
    assert_eq!(shared.post_receive(setup.receive(8)), full);
    a.post_send(SendRequest::send(b"12345678")).unwrap();
    assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
    assert_eq!(shared.post_receive(setup.receive(8)), full);
    assert_eq!(next(&setup.received).data().unwrap(), b"12345678");
    shared.post_receive(setup.receive(8)).unwrap();
    assert_eq!(shared.outstanding(), 2);
}

#[test]
fn dropping_a_queue_pair_releases_its_completed_receives() {
    let setup = Setup::new();
    let shared = setup.shared(4);
    let (a, b) = setup.connection(&shared);
    let (other_a, other_b) = setup.connection(&shared);
    let there = setup.pd.register(8, RemoteAccess::WRITE).unwrap();
    let remote = there.remote();
    for n in 0..3 {
        let slice = there.slice(..).unwrap();
        shared
            .post_receive(ReceiveRequest::into(slice).id(n))
            .unwrap();
    }
    let kept = setup.receive(8).id(3);
    shared.post_receive(kept).unwrap();
    drop(there);
    for _ in 0..2 {
        a.post_send(SendRequest::send(b"lost")).unwrap();
        assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
    }
    drop(b);
    assert_eq!(shared.outstanding(), 2);
    assert!(setup.received.poll().is_none());
    // One posted receive holds the memory.
    other_a
        .post_send(SendRequest::write(b"12345678", &remote))
        .unwrap();
    assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
    other_a.post_send(SendRequest::send(b"seen")).unwrap();
    assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
    let seen = next(&setup.received);
    assert_eq!((seen.wr_id, seen.qpn), (2, other_b.qpn()));
    assert_eq!(seen.data().unwrap(), b"seen");
    drop(seen);
    // The memory is no longer registered.
    other_a
        .post_send(SendRequest::write(b"12345678", &remote))
        .unwrap();
    assert_eq!(status(&next(&setup.sent)), WcStatus::RemAccessErr);
    for _ in 0..3 {
        shared.post_receive(setup.receive(8)).unwrap();
    }
}

#[test]
fn dropping_a_queue_pair_releases_a_receive_in_progress() {
    const LEN: usize = 64 << 20;
    let setup = Setup::new();
    let shared = setup.shared(1);
    let from = setup.pd.register(LEN, RemoteAccess::empty()).unwrap();
    for reset in [true, false] {
        let (a, b) = setup.connection(&shared);
        shared.post_receive(setup.receive(LEN)).unwrap();
        shared.set_limit(1).unwrap();
        a.post_send(SendRequest::send(from.slice(..).unwrap()))
            .unwrap();
        // The first packet has consumed the receive.
        setup.event(EventType::SrqLimitReached);
        let prepared = match reset {
            true => Some(b.reset().unwrap()),
            false => {
                drop(b);
                None
            }
        };
        assert_eq!(shared.outstanding(), 0);
        assert!(setup.received.poll().is_none());
        drop((a, prepared));
    }
}

#[test]
fn a_queue_pair_uses_the_shared_queue_again_after_reset() {
    let setup = Setup::new();
    let shared = setup.shared(4);
    let (mut a, mut b) = setup.connection(&shared);
    for _ in 0..20 {
        for n in 0..3 {
            shared.post_receive(setup.receive(8).id(n)).unwrap();
        }
        for n in 0..2 {
            a.post_send(SendRequest::send(b"12345678")).unwrap();
            assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
            if n == 0 {
                assert_eq!(next(&setup.received).wr_id, 0);
            }
        }
        (a, b) = connect(a.reset().unwrap(), b.reset().unwrap());
        assert_eq!(shared.outstanding(), 1);
        a.post_send(SendRequest::send(b"12345678")).unwrap();
        assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
        let completion = next(&setup.received);
        assert_eq!((completion.wr_id, completion.qpn), (2, b.qpn()));
    }
}

#[test]
fn a_failed_queue_pair_leaves_posted_receives_to_others() {
    let setup = Setup::new();
    let shared = setup.shared(4);
    let (a, b) = setup.connection(&shared);
    let (other, _other) = setup.connection(&shared);
    for n in 0..2 {
        shared.post_receive(setup.receive(8).id(n)).unwrap();
    }
    a.post_send(SendRequest::send(b"12345678")).unwrap();
    assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
    b.fail().unwrap();
    let event = setup.event(EventType::QpLastWqeReached);
    assert_eq!(event.source, EventSource::QueuePair(b.qpn()));
    assert_eq!(next(&setup.received).data().unwrap(), b"12345678");
    drop(b);
    assert_eq!(shared.outstanding(), 1);
    other.post_send(SendRequest::send(b"87654321")).unwrap();
    assert_eq!(next(&setup.received).wr_id, 1);
}

#[test]
fn the_limit_event_is_raised_once() {
    let setup = Setup::new();
    let shared = setup.shared(4);
    let (a, _b) = setup.connection(&shared);
    for _ in 0..4 {
        shared.post_receive(setup.receive(8)).unwrap();
    }
    let too_high = shared.set_limit(5).unwrap_err();
    let expected = SrqError::Limit {
        limit: 5,
        max_wr: 4,
    };
    assert_eq!(too_high.to_string(), expected.to_string());
    shared.set_limit(3).unwrap();
    assert_eq!(shared.limit(), 3);
    for _ in 0..2 {
        a.post_send(SendRequest::send(b"12345678")).unwrap();
        next(&setup.received);
    }
    let event = setup.event(EventType::SrqLimitReached);
    assert_eq!(event.source, EventSource::SharedReceiveQueue);
    assert_eq!(shared.limit(), 0);
    a.post_send(SendRequest::send(b"12345678")).unwrap();
    next(&setup.received);
    assert_eq!(setup.context.events().poll().unwrap(), None);
}

#[test]
fn a_shared_queue_reserves_its_completion_entries_once() {
    // With a reservation for each pair, the limit of a completion queue would be exceeded.
    const PAIRS: usize = 80;
    let setup = Setup::new();
    let shared = setup.shared(65_536);
    let pairs: Vec<_> = (0..PAIRS).map(|_| setup.connection(&shared)).collect();
    for _ in 0..4 * PAIRS {
        shared.post_receive(setup.receive(8)).unwrap();
    }
    for (a, _) in &pairs {
        for _ in 0..4 {
            a.post_send(SendRequest::send(b"12345678")).unwrap();
            assert_eq!(status(&next(&setup.sent)), WcStatus::Success);
        }
    }
    // No completion has been polled so far.
    for _ in 0..4 * PAIRS {
        assert_eq!(next(&setup.received).data().unwrap(), b"12345678");
    }
    drop(pairs);
    // The reservation has been released.
    for _ in 0..PAIRS {
        let another = setup.shared(65_536);
        setup.receiver(&another).build().unwrap();
    }
}

#[test]
fn objects_of_different_devices_or_domains_are_an_error() {
    let (setup, other) = (Setup::new(), Setup::new());
    let shared = setup.shared(1);
    let receiver = setup.receiver(&shared).build().unwrap();
    let refused = receiver.post_receive(setup.receive(8)).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    assert!(refused.to_string().contains("post the receive there"));
    let foreign = shared.post_receive(other.receive(8));
    assert_eq!(foreign, Err(PostError::OtherProtectionDomain));
    let region = setup.pd.register(8, RemoteAccess::empty()).unwrap();
    let pieces = vec![region.slice(..).unwrap(); 5];
    let too_many = shared.post_receive(ReceiveRequest::into(pieces));
    assert_eq!(too_many, Err(PostError::TooManySlices { given: 5, max: 4 }));
    assert_eq!(shared.outstanding(), 0);
    let elsewhere = other.receiver(&shared).build();
    assert!(matches!(elsewhere, Err(BuildError::OtherContext)));
    for max_wr in [0, 65_537] {
        let refused = setup.pd.shared_receive_queue().max_wr(max_wr).build();
        assert!(matches!(refused, Err(SrqError::Size)));
    }
}

#[test]
fn dropping_queue_pairs_during_polls_loses_no_receive() {
    const CAPACITY: usize = 64;
    const ROUNDS: usize = 300;
    let setup = Setup::new();
    let shared = setup.shared(CAPACITY as u32);
    let memory = setup.pd.register(8, RemoteAccess::empty()).unwrap();
    let fill = || {
        let receive = || ReceiveRequest::into(memory.slice(..).unwrap());
        while shared.post_receive(receive()).is_ok() {}
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut taken = Vec::new();
                while !done.load(Ordering::Acquire) {
                    setup.received.poll_into(&mut taken, 5);
                    for completion in taken.drain(..) {
                        assert_eq!(status(&completion), WcStatus::Success);
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            fill();
            let (a, b) = setup.connection(&shared);
            a.post_sends((0..20).map(|_| SendRequest::send(b"12345678")))
                .unwrap();
            drop(b);
            drop(a);
        }
        done.store(true, Ordering::Release);
    });
    // All outstanding receives are posted and unused.
    fill();
    let (a, _b) = setup.connection(&shared);
    for _ in 0..CAPACITY {
        a.post_send(SendRequest::send(b"12345678")).unwrap();
        assert_eq!(status(&next(&setup.received)), WcStatus::Success);
    }
    assert_eq!(shared.outstanding(), 0);
}
