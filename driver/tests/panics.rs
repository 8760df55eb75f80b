//! Panics during the handling of packets. A subscriber of the library's trace events raises them:
//! it panics after the reception of a packet, while its queue pair is locked.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use urxe_driver::events::{EventObject, EventType};
use urxe_driver::{Channel, path};
use urxe_proto::ids::RKey;
use urxe_proto::qp::QpState;
use urxe_proto::work::SendOp;

/// The name of the thread that panics with the next packet. It is cleared by the panic.
static PANICS: Mutex<Option<&str>> = Mutex::new(None);
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

/// Number of WRITEs whose completions the completion queue can hold.
const MAX_WRITES: u64 = 100;

/// Pause between two WRITEs, so that the progress thread notices the waiting thread.
const PAUSE: Duration = Duration::from_millis(5);

struct Panicker;

impl Subscriber for Panicker {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "urxe_driver::path::rx" && *metadata.level() == Level::TRACE
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let name = thread::current().name().map(str::to_owned);
        let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
        if panics.is_some() && name.as_deref() == *panics {
            *panics = None;
            drop(panics);
            HAS_PANICKED.store(true, Ordering::Release);
            panic!("deliberate");
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Serializes the tests: all queue pairs of the process fail.
fn alone() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    static SUBSCRIBER: Once = Once::new();
    let turn = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    SUBSCRIBER.call_once(|| tracing::subscriber::set_global_default(Panicker).unwrap());
    HAS_PANICKED.store(false, Ordering::Release);
    turn
}

fn panic_in(thread: &'static str) {
    *PANICS.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
}

/// Two ends, and memory of each.
struct Ends {
    a: End,
    b: End,
    from: Buffer,
    to: Buffer,
}

impl Ends {
    fn new() -> Ends {
        let (a, b) = pair(|_| ());
        let mut from = Buffer::new(&a.pd, 64, ALL);
        from.fill(3);
        let to = Buffer::new(&b.pd, 64, ALL);
        Ends { a, b, from, to }
    }

    fn write(&self) {
        let (addr, rkey) = (self.to.mr.addr(), RKey(self.to.mr.rkey().0));
        let op = SendOp::Write { addr, rkey };
        self.a.post(1, op, &[self.from.sge(0, 64)]);
    }
}

fn wait_until(what: &str, test: impl Fn() -> bool) {
    let start = Instant::now();
    while !test() {
        assert!(start.elapsed() < TEST_TIMEOUT, "{what}");
        thread::yield_now();
    }
}

/// Waits until both queue pairs have failed, with one event each.
fn have_failed(ends: &Ends) {
    for end in [&ends.a, &ends.b] {
        wait_until("the queue pair is not in the error state", || {
            end.qp.state() == QpState::Err
        });
        wait_until("no event", || {
            let event = end.context.events().take();
            event.is_some_and(|event| {
                event.kind == EventType::QpFatal && matches!(event.object, EventObject::Qp(_))
            })
        });
    }
}

/// Checks that the progress thread executes a WRITE while no thread calls the library.
fn check_progress() {
    let ends = Ends::new();
    ends.write();
    wait_until("the progress thread makes no progress", || {
        ends.to.now() == ends.from.data
    });
}

#[test]
fn progress_thread_survives_a_panic() {
    let _alone = alone();
    let panics = || path::get().counters().panics.get();
    let before = panics();
    let ends = Ends::new();
    panic_in("urxe-progress");
    ends.write();
    have_failed(&ends);
    assert_eq!(panics(), before + 1);
    check_progress();
}

/// The C ABI reports panics that it catches in a call.
#[test]
fn reported_panic_fails_all_queue_pairs() {
    let _alone = alone();
    let ends = Ends::new();
    path::get().panicked();
    have_failed(&ends);
    check_progress();
}

#[test]
fn a_panicking_waiter_is_unregistered() {
    let _alone = alone();
    let channel = Arc::new(Channel::new().unwrap());
    let mut ends = Ends::new();
    panic_in("waiter");
    let waits = Arc::clone(&channel);
    let waiter = thread::Builder::new().name("waiter".into());
    let waiter = waiter.spawn(move || drop(waits.next())).unwrap();
    // The progress thread may receive the WRITE; then the next one is tried. Completions are not
    // polled, since this thread would receive in the poll.
    let has_panicked = || HAS_PANICKED.load(Ordering::Acquire);
    for seed in 1.. {
        assert!(seed < MAX_WRITES, "the waiter has received nothing");
        ends.from.fill(seed);
        ends.write();
        wait_until("no thread receives", || {
            has_panicked() || ends.to.now() == ends.from.data
        });
        if has_panicked() {
            break;
        }
        thread::sleep(PAUSE);
    }
    assert!(waiter.join().is_err());
    have_failed(&ends);
    check_progress();
}
