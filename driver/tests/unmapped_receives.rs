//! Receives whose memory the program has unmapped before it deregisters it. Here it is read-only
//! instead: a write fails in the same way.

mod common;

use common::datagrams::{QKEY, datagrams, handle};
use common::{ALL, Buffer, End, TEST_TIMEOUT};
use memmap2::{Mmap, MmapMut};
use std::thread;
use std::time::{Duration, Instant};
use urxe_driver::ah::Destination;
use urxe_driver::mr::Mr;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};

/// Memory that was made read-only while it is registered for writing. Deregistered before it is
/// unmapped, so that no other mapping takes its place.
struct ReadOnly {
    _mr: Mr,
    _map: Mmap,
}

impl ReadOnly {
    /// Returns memory into which this many receives of `end` are posted.
    fn with_receives(end: &End, len: usize, receives: u64) -> ReadOnly {
        let map = MmapMut::map_anon(len).unwrap();
        let addr = map.as_ptr().expose_provenance() as u64;
        // SAFETY: the program's error that is tested, see `ReadOnly`.
        let mr = unsafe { Mr::register(&end.pd, addr, len as u64, addr, ALL) }.unwrap();
        let receive = Sge {
            addr,
            length: len as u32,
            lkey: mr.lkey(),
        };
        for number in 0..receives {
            end.qp.post_receive(number, &[receive]).unwrap();
        }
        ReadOnly {
            _mr: mr,
            _map: map.make_read_only().unwrap(),
        }
    }
}

/// UCX's registration cache deregisters the memory of receives after it is unmapped.
#[test]
fn datagram_for_unmapped_memory_is_discarded() {
    const LEN: usize = 8192;
    let (a, b) = (datagrams(), datagrams());
    let from = Buffer::new(&a.pd, 64, ALL);
    let memory = ReadOnly::with_receives(&b, LEN, 1);
    let handle = handle(&a, &b);
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&[from.sge(0, 64)]),
        dest: None,
    };
    a.qp.start_posting().post_to(&wr, &dest).unwrap();
    // No call of the program receives: the progress thread does.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while b.qp.counters().receives_done == 0 {
        assert!(Instant::now() < deadline, "no datagram was received");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(b.completion().status, WcStatus::Success);
    drop(memory);
}

/// UCX destroys the queue pair of a UD interface after it has freed the memory of its receives. The
/// call itself receives what has arrived.
#[test]
fn datagrams_for_unmapped_memory_are_discarded_by_the_call_that_ends_their_queue_pair() {
    const LEN: usize = 4096;
    for _ in 0..20 {
        let (a, b) = (datagrams(), datagrams());
        let from = Buffer::new(&a.pd, 64, ALL);
        let memory = ReadOnly::with_receives(&b, LEN, 64);
        let handle = handle(&a, &b);
        let dest = Destination {
            handle: &handle,
            qpn: b.qp.qpn(),
            qkey: QKEY,
        };
        let wr = SendWr {
            wr_id: 100,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[from.sge(0, 64)]),
            dest: None,
        };
        for _ in 0..64 {
            a.qp.start_posting().post_to(&wr, &dest).unwrap();
        }
        b.qp.destroy();
        drop(memory);
    }
}
