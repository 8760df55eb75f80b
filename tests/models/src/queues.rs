//! Queues that several threads put into and take from: nothing is lost or comes twice, and nobody waits for what is
//! not there.

use crate::aside::Aside;
use crate::counted::Counted;
use crate::system::{Semaphore, check, end, thread};
use std::sync::Arc;

type Events = Counted<u32, Semaphore>;

fn events() -> Arc<Events> {
    Arc::new(Counted::with(Semaphore::new()))
}

/// As `EventQueue::next` does.
fn next(events: &Events) -> u32 {
    loop {
        if let Some(event) = events.take(Some) {
            return event;
        }
        events.count().wait();
    }
}

/// Two readers, and two events: each gets one.
pub fn each_event_wakes_a_reader() {
    check(3, || {
        let events = events();
        let readers = [(); 2].map(|()| thread(&events, next));
        events.push(1);
        events.push(2);
        let mut got = readers.map(end);
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert_eq!(events.count().value(), 0);
    });
}

/// An event is taken back while a reader is at it: either has it, and the reader gets the next one.
pub fn an_event_is_taken_back_or_read() {
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
        let taken_back = events.retract(|event| *event == 1);
        events.push(LAST);
        let was_read = end(reader);
        assert_ne!(was_read, taken_back == [1]);
        assert_eq!(events.count().value(), 0);
    });
}

/// What threads put aside while they hold locks, and take when they hold none, is all taken when they are done,
/// once.
pub fn what_is_put_aside_is_taken_once() {
    check(3, || {
        let aside = Arc::new(Aside::default());
        let receivers = [1, 2].map(|packet| {
            thread(&aside, move |aside| {
                assert!(aside.put(|| packet));
                aside.take()
            })
        });
        let mut taken = aside.take();
        taken.extend(receivers.map(end).concat());
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert!(aside.is_empty());
    });
}
