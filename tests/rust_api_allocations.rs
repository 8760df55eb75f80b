//! Work requests of the safe Rust API allocate nothing, once the queues have grown to their size.
//!
//! The allocator of this process counts, so this is the only test in its process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use urxe::{
    BufferPool, Completion, CompletionQueue, ConnectOptions, LocalSlice, QueuePair, ReceiveRequest,
    RemoteAccess, RemoteRegion, SendRequest,
};

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator; the counter allocates nothing, as it
// is a constant-initialized thread local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`, whose allocation this is.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The number of work requests of each kind whose allocations are counted.
const COUNTED: u64 = 10_000;

/// The number of work requests before that: queues and caches grow to their size.
const BEFORE: u64 = 1_000;

/// Two connected queue pairs on one completion queue.
struct Pair {
    cq: CompletionQueue,
    a: QueuePair,
    b: QueuePair,
}

impl Pair {
    /// Polls until a completion arrives, which must be a success.
    fn completion(&self) -> Completion {
        loop {
            if let Some(completion) = self.cq.poll() {
                completion.result.expect("the work request succeeds");
                return completion;
            }
        }
    }
}

/// Returns the allocations of this thread during the counted calls of `once`.
fn allocations(mut once: impl FnMut()) -> u64 {
    (0..BEFORE).for_each(|_| once());
    let before = ALLOCATIONS.get();
    (0..COUNTED).for_each(|_| once());
    ALLOCATIONS.get() - before
}

fn send(pair: &Pair, pool: &BufferPool) {
    let inbox = pool.take().expect("both buffers are in the pool");
    pair.b.post_receive(ReceiveRequest::into(inbox)).unwrap();
    let mut message = pool.take().expect("one buffer is in the pool");
    message.fill(b"hello").unwrap();
    pair.a.post_send(SendRequest::send(message)).unwrap();
    let (first, second) = (pair.completion(), pair.completion());
    let received = [&first, &second].map(|completion| completion.buffer.as_deref());
    assert_eq!(received, [Some(&b"hello"[..]); 2]);
}

fn write(pair: &Pair, pool: &BufferPool, to: &RemoteRegion) {
    let data = pool.take().expect("both buffers are in the pool");
    pair.a.post_send(SendRequest::write(data, to)).unwrap();
    pair.completion();
}

fn read(pair: &Pair, pool: &BufferPool, from: &RemoteRegion) {
    let into = pool.take().expect("both buffers are in the pool");
    pair.a.post_send(SendRequest::read(into, from)).unwrap();
    let read = pair.completion().buffer.expect("the READ had a buffer");
    assert_eq!(read.len(), 64);
}

fn slices(pair: &Pair, local: &LocalSlice, to: &RemoteRegion) {
    let list = [local.clone(), local.clone()];
    pair.a.post_send(SendRequest::write(list, to)).unwrap();
    assert_eq!(pair.completion().buffers.len(), 2);
    pair.a
        .post_send(SendRequest::read(local.clone(), to))
        .unwrap();
    pair.completion();
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let context = urxe::device("urxe_lo").unwrap().open().unwrap();
    let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
    let qp = || pd.queue_pair(&cq, &cq).build();
    let (a, b) = (qp().unwrap(), qp().unwrap());
    let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    let options = ConnectOptions::default();
    let a = a.connect(&endpoint_b, &options).unwrap();
    let b = b.connect(&endpoint_a, &options).unwrap();
    let pair = Pair { cq, a, b };
    let pool = pd.buffer_pool(2, 64).unwrap();
    let memory = pd.register(256, RemoteAccess::all()).unwrap();
    let (remote, local) = (memory.remote(), memory.slice(128..192).unwrap());

    let counts = [
        allocations(|| send(&pair, &pool)),
        allocations(|| write(&pair, &pool, &remote)),
        allocations(|| read(&pair, &pool, &remote)),
        allocations(|| slices(&pair, &local, &remote)),
    ];
    // A queue may still grow once, when another thread was delayed for longer than before.
    let is_steady = |count: &u64| *count <= COUNTED / 1_000;
    assert!(
        counts.iter().all(is_steady),
        "SEND, WRITE, READ, slices: {counts:?} allocations for {COUNTED} each"
    );
}
