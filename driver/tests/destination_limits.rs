//! The in-flight limit of a destination: reliable connections to a process of this host share its
//! socket's receive buffer.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use urxe_driver::path;
use urxe_proto::ids::RKey;
use urxe_proto::qp::{AttrMask, QpAttr, QpState};
use urxe_proto::work::{SendOp, WcStatus};

/// More connections than the limit admits, if each has its first few packets in flight.
const MANY: usize = 80;

/// More connections than the limit admits, if each has one packet in flight, as an unanswered
/// connection has.
const UNANSWERED: usize = 160;

/// Bytes of a message; more than one send quantum.
const LENGTH: usize = 256 << 10;

/// Serializes the tests: their connections share one limit.
static SERIAL: Mutex<()> = Mutex::new(());

struct Connection {
    a: End,
    b: End,
    from: Buffer,
    to: Buffer,
}

impl Connection {
    fn new(tune: impl Fn(&mut QpAttr)) -> Self {
        let (a, b) = pair(tune);
        let from = Buffer::new(&a.pd, LENGTH, ALL);
        let to = Buffer::new(&b.pd, LENGTH, ALL);
        Connection { a, b, from, to }
    }

    fn post_write(&self) {
        let (addr, rkey) = (self.to.mr.addr(), RKey(self.to.mr.rkey().0));
        let sge = self.from.sge(0, LENGTH as u32);
        self.a.post(1, SendOp::Write { addr, rkey }, &[sge]);
    }

    fn post_read(&self) {
        let (addr, rkey) = (self.to.mr.addr(), RKey(self.to.mr.rkey().0));
        let sge = self.from.sge(0, LENGTH as u32);
        self.a.post(2, SendOp::Read { addr, rkey }, &[sge]);
    }
}

/// Calls `round`, which posts for all connections, until a connection has waited for the limit. If
/// each request completes before the next one is posted, none waits.
fn until_one_waits(mut round: impl FnMut()) {
    let begun = Instant::now();
    let before = path::get().quantum_waits();
    while path::get().quantum_waits() == before {
        assert!(begun.elapsed() < TEST_TIMEOUT, "no connection waited");
        round();
    }
}

#[test]
fn every_waiting_connection_is_served() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<Connection> = (0..MANY).map(|_| Connection::new(|_| ())).collect();
    for (i, connection) in all.iter_mut().enumerate() {
        connection.from.fill(i as u64);
    }
    until_one_waits(|| {
        all.iter().for_each(Connection::post_write);
        for connection in &all {
            assert_eq!(connection.a.completion().status, WcStatus::Success);
            assert!(connection.from.data == connection.to.now());
        }
    });
    until_one_waits(|| {
        all.iter().for_each(Connection::post_read);
        for connection in &all {
            assert_eq!(connection.a.completion().status, WcStatus::Success);
        }
    });
}

#[test]
fn unanswered_connections_do_not_block_others() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    // 4.096 us x 2^20, or about four seconds; the connection fails after seven retries.
    let long_timeout = |attr: &mut QpAttr| attr.timeout = 20;
    let dead: Vec<Connection> = (0..UNANSWERED)
        .map(|_| Connection::new(long_timeout))
        .collect();
    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    for connection in &dead {
        connection.b.qp.modify(&reset, AttrMask::STATE).unwrap();
    }
    let live = Connection::new(|_| ());
    let begun = Instant::now();
    dead.iter().for_each(Connection::post_write);
    live.post_write();
    assert_eq!(live.a.completion().status, WcStatus::Success);
    assert!(begun.elapsed() < TEST_TIMEOUT);
    let mut one = [None];
    assert!(dead.iter().all(|dead| dead.a.cq.poll(&mut one) == 0));
}

#[test]
fn a_closed_connection_releases_its_bytes_in_flight() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<Connection> = (0..MANY).map(|_| Connection::new(|_| ())).collect();
    all.iter().for_each(Connection::post_write);
    // The last connection waits for the limit; the others are destroyed.
    let last = all.pop().unwrap();
    all.clear();
    assert_eq!(last.a.completion().status, WcStatus::Success);
}

#[test]
fn connections_that_end_while_they_wait_leave_the_fifo() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<Connection> = (0..MANY).map(|_| Connection::new(|_| ())).collect();
    let mut posted = false;
    until_one_waits(|| {
        for connection in &all {
            if posted {
                connection.a.completion();
            }
            connection.post_write();
        }
        posted = true;
    });
    drop(all);
    // Another thread may still be removing one of them from the FIFO.
    let begun = Instant::now();
    while path::get().connections_awaiting_quantum() > 0 {
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "connections remain in the FIFO"
        );
        thread::yield_now();
    }
}
