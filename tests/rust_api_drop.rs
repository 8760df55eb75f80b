//! Dropping the objects of the safe Rust API in any order, with work in progress, leaves nothing.
//!
//! The test counts resources of the whole process, so it is the only test in its process.

use std::any::Any;
use std::fs;
use urxe::{ConnectOptions, ReceiveRequest, RemoteAccess, SendRequest};

const LEN: usize = 1 << 20;

/// A generator of random numbers for the order of drops.
struct Shuffle(u64);

impl Shuffle {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % n
    }
}

/// Creates every kind of object, starts every kind of work, and drops all in a random order.
fn create_and_drop(shuffle: &mut Shuffle) {
    let context = urxe::device("urxe_lo").unwrap().open().unwrap();
    let pd = context.pd();
    let cqs = [(); 3].map(|()| context.completion_queue().unwrap());
    let a = pd.queue_pair(&cqs[0], &cqs[1]).build().unwrap();
    let b = pd.queue_pair(&cqs[2], &cqs[2]).build().unwrap();
    let unused = pd.queue_pair(&cqs[0], &cqs[2]).build().unwrap();
    let shared = pd.shared_receive_queue().max_wr(2).build().unwrap();
    let c = pd.queue_pair(&cqs[0], &cqs[1]).build().unwrap();
    let d = pd.queue_pair(&cqs[0], &cqs[2]).receives_from(&shared);
    let d = d.build().unwrap();
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let options = ConnectOptions::default();
    let a = a.connect(&at_b, &options).unwrap();
    let b = b.connect(&at_a, &options).unwrap();
    let (at_c, at_d) = (c.endpoint(), d.endpoint());
    let c = c.connect(&at_d, &options).unwrap();
    let d = d.connect(&at_c, &options).unwrap();
    let from = pd.register(LEN, RemoteAccess::all()).unwrap();
    let to = pd.register_vec(vec![1; LEN], RemoteAccess::all()).unwrap();
    let counter = pd.register(8, RemoteAccess::ATOMIC).unwrap();
    let word = from.word(8).unwrap();
    cqs[0].arm();
    cqs[2].arm();
    unused.post_receive(ReceiveRequest::empty()).unwrap();
    b.post_receive(ReceiveRequest::into(to.slice(..).unwrap()))
        .unwrap();
    for _ in 0..2 {
        let slice = to.slice(..).unwrap();
        shared.post_receive(ReceiveRequest::into(slice)).unwrap();
    }
    c.post_send(SendRequest::send(from.slice(..).unwrap()))
        .unwrap();
    let remote = to.remote();
    a.post_sends([
        SendRequest::write(from.slice(..).unwrap(), &remote),
        SendRequest::read(from.slice(..).unwrap(), &remote).unsignaled(),
        SendRequest::send(from.slice(..).unwrap()),
        SendRequest::fetch_add(&word, counter.remote().word(0).unwrap(), 1),
    ])
    .unwrap();
    if shuffle.below(2) == 0 {
        // Some work completes, and one completion is kept.
        let _ = cqs[0].wait().unwrap();
    }
    let kept = cqs[0].poll();
    let slice = from.slice(5..).unwrap();
    let events = context.events().clone();
    let [cq0, cq1, cq2] = cqs;
    let mut all: Vec<Box<dyn Any>> = vec![
        Box::new(context),
        Box::new(pd),
        Box::new(cq0),
        Box::new(cq1),
        Box::new(cq2),
        Box::new(a),
        Box::new(b),
        Box::new(unused),
        Box::new(c),
        Box::new(d),
        Box::new(shared),
        Box::new(from),
        Box::new(to),
        Box::new(counter),
        Box::new(word),
        Box::new(kept),
        Box::new(slice),
        Box::new(events),
    ];
    while !all.is_empty() {
        drop(all.swap_remove(shuffle.below(all.len())));
    }
}

/// The number of event descriptors and of mapped bytes. Sockets are not counted: they are shared by
/// the process and opened at first use.
fn resources() -> (usize, usize) {
    let kinds = fs::read_dir("/proc/self/fd").unwrap();
    let kinds = kinds.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let descriptors = kinds
        .filter(|kind| kind.to_string_lossy().contains("eventfd"))
        .count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
    (descriptors, kilobytes.parse::<usize>().unwrap() * 1024)
}

#[test]
fn objects_can_be_dropped_in_any_order_and_leave_nothing() {
    const ROUNDS: usize = 200;
    let mut shuffle = Shuffle(1);
    // The first rounds create the sockets, threads and buffers that the process keeps.
    for _ in 0..20 {
        create_and_drop(&mut shuffle);
    }
    let (descriptors, mapped) = resources();
    for _ in 0..ROUNDS {
        create_and_drop(&mut shuffle);
    }
    let (descriptors_after, mapped_after) = resources();
    assert_eq!(descriptors_after, descriptors);
    // One leaked region in twenty rounds would exceed this.
    let grown = mapped_after.saturating_sub(mapped);
    assert!(grown < ROUNDS / 20 * LEN, "{grown} bytes more are mapped");
}
