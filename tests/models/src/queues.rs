//! Concurrent queues: no element is lost or duplicated, and no reader waits for an element that
//! never arrives.

use crate::deferred_queue::DeferredQueue;
use crate::semaphore_queue::SemaphoreQueue;
use crate::system::{ModelSemaphore, check, join, thread};
use std::sync::Arc;

type Events = SemaphoreQueue<u32, ModelSemaphore>;

fn events() -> Arc<Events> {
    Arc::new(SemaphoreQueue::with(ModelSemaphore::new()))
}

/// Models `EventQueue::next`.
fn next(events: &Events) -> u32 {
    loop {
        if let Some(event) = events.take(Some) {
            return event;
        }
        events.semaphore().wait();
    }
}

/// Two readers and two events: each reader gets one.
pub fn each_event_wakes_a_reader() {
    check(3, || {
        let events = events();
        let readers = [(); 2].map(|()| thread(&events, next));
        events.push(1);
        events.push(2);
        let mut got = readers.map(join);
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert_eq!(events.semaphore().value(), 0);
    });
}

/// Models a thread that receives packets, and announces that it takes the event of one.
fn receive(events: &Events) -> u32 {
    loop {
        let announced = events.announce();
        if let Some(event) = announced.take(Some) {
            return event;
        }
        events.semaphore().wait();
    }
}

/// Of two readers and two events, one reader announces that it takes an event: the other one still
/// wakes for the second event.
pub fn announced_reader_leaves_the_other_event() {
    check(3, || {
        let events = events();
        let readers = [thread(&events, next), thread(&events, receive)];
        events.push(1);
        events.push(2);
        let mut got = readers.map(join);
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert_eq!(events.semaphore().value(), 0);
    });
}

/// A thread withdraws its announcement: an event that was added meanwhile wakes a reader.
pub fn withdrawn_announcement_leaves_the_event_readable() {
    check(3, || {
        let events = events();
        let reader = thread(&events, next);
        let withdraws = thread(&events, |events| drop(events.announce()));
        events.push(1);
        join(withdraws);
        assert_eq!(join(reader), 1);
        assert_eq!(events.semaphore().value(), 0);
    });
}

/// An event that an announced thread would take is removed, or taken by it: the counter is right
/// in either case.
pub fn event_is_retracted_from_an_announced_reader() {
    check(3, || {
        let events = events();
        let reader = thread(&events, |events| events.announce().take(Some));
        events.push(1);
        let taken_back = events.extract_if(|event| *event == 1);
        let was_read = join(reader).is_some();
        assert!(!was_read || taken_back.is_empty());
        let left = events.take(Some).is_some();
        assert!(was_read || left || taken_back == [1]);
        assert_eq!(events.semaphore().value(), 0);
    });
}

/// An event is removed while a reader takes it: exactly one of them gets it.
pub fn event_is_retracted_or_read() {
    const LAST: u32 = 9;
    check(3, || {
        let events = events();
        let reader = thread(&events, |events| {
            let first = next(events);
            (first != LAST)
                .then(|| assert_eq!(next(events), LAST))
                .is_some()
        });
        events.push(1);
        let taken_back = events.extract_if(|event| *event == 1);
        events.push(LAST);
        let was_read = join(reader);
        assert_ne!(was_read, taken_back == [1]);
        assert_eq!(events.semaphore().value(), 0);
    });
}

/// Packets that threads defer while they hold locks are taken once, after the locks are released.
pub fn deferred_packet_is_taken_once() {
    check(3, || {
        let aside = Arc::new(DeferredQueue::default());
        let receivers = [1, 2].map(|packet| {
            thread(&aside, move |aside| {
                assert!(aside.put(|| packet));
                aside.take()
            })
        });
        let mut taken = aside.take();
        taken.extend(receivers.map(join).concat());
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert!(aside.is_empty());
    });
}
