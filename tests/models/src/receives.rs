//! The receive queue of a queue pair: each posted receive is taken once, whole and in its order.

use crate::receive_ring::ReceiveRing;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::system::{check, join, thread};
use std::sync::Arc;
use urxe_proto::host::Receive;
use urxe_proto::ids::LKey;
use urxe_proto::work::Sge;

/// A queue pair.
struct Pair {
    ring: ReceiveRing,
    /// The queue pair's lock, with the receives that were taken under it.
    taken: Mutex<Vec<u64>>,
    /// The published state: whether it is an error state.
    failed: AtomicBool,
}

fn pair() -> Arc<Pair> {
    Arc::new(Pair {
        ring: ReceiveRing::new(1, 1).expect("memory"),
        taken: Mutex::new(Vec::new()),
        failed: AtomicBool::new(false),
    })
}

/// Posts a receive with a recognisable element. Returns false when the ring is full.
fn post(pair: &Pair, id: u64) -> bool {
    let element = Sge {
        addr: id,
        length: id as u32,
        lkey: LKey(id as u32),
    };
    pair.ring.post(id, &[element]).is_ok()
}

/// Takes a receive for a packet, or flushes it.
fn take(pair: &Pair) -> Option<u64> {
    let mut taken = lock(&pair.taken);
    let mut receive = Receive::default();
    let id = pair.ring.take(&mut receive).then_some(receive.wr_id)?;
    let [element] = receive.sges[..] else {
        panic!("the elements of another receive");
    };
    assert_eq!((element.addr, element.lkey), (id, LKey(id as u32)));
    taken.push(id);
    Some(id)
}

/// Two threads post to a ring of one slot while packets take: every receive that was posted is
/// taken once.
pub fn each_posted_receive_is_taken_once() {
    check(3, || {
        let pair = pair();
        let posters = [1, 2].map(|id| thread(&pair, move |pair| post(pair, id).then_some(id)));
        take(&pair);
        let mut posted: Vec<u64> = posters.into_iter().filter_map(join).collect();
        while take(&pair).is_some() {}
        let mut taken = std::mem::take(&mut *lock(&pair.taken));
        taken.sort_unstable();
        posted.sort_unstable();
        assert_eq!(taken, posted);
        assert_eq!(pair.ring.len(), 0);
    });
}

/// A slot that is free again is not overwritten before its receive was read.
pub fn reused_slot_keeps_its_receive() {
    check(3, || {
        let pair = pair();
        assert!(post(&pair, 1));
        let poster = thread(&pair, |pair| post(pair, 2));
        assert_eq!(take(&pair), Some(1));
        let posted = join(poster);
        assert_eq!(take(&pair), posted.then_some(2));
    });
}

/// A receive that is posted while the queue pair enters the error state is flushed: by the thread
/// that changes the state, or by the poster, which then sees that state.
pub fn receive_is_flushed_when_the_queue_pair_fails() {
    check(3, || {
        let pair = pair();
        let poster = thread(&pair, |pair| {
            assert!(post(pair, 1));
            if pair.failed.load(Ordering::Acquire) {
                take(pair);
            }
        });
        pair.failed.store(true, Ordering::Release);
        pair.ring.wait_for_posters();
        take(&pair);
        join(poster);
        assert_eq!(*lock(&pair.taken), [1]);
    });
}
