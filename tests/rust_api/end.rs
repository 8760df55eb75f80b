//! Helpers of the tests: an opened device with queue pairs connected on the loopback interface.

use std::time::Duration;
use urxe::{
    Completion, CompletionQueue, ConnectOptions, Context, MemoryRegion, PreparedQueuePair,
    ProtectionDomain, QueuePair, QueuePairBuilder, RemoteAccess, WcStatus, WorkError,
};

/// The time after which a wait counts as hung.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub const ALL: RemoteAccess = RemoteAccess::all();

/// One end: an opened device with a protection domain and a completion queue.
pub struct End {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
}

impl End {
    pub fn new() -> End {
        let context = urxe::device("urxe_lo").unwrap().open().unwrap();
        let pd = context.pd();
        let cq = context.completion_queue().unwrap();
        End { context, pd, cq }
    }

    pub fn qp(&self) -> QueuePairBuilder<'_> {
        self.pd.queue_pair(&self.cq, &self.cq)
    }

    pub fn completion(&self) -> Completion {
        let completion = self.cq.wait_timeout(TIMEOUT).unwrap();
        completion.expect("no completion arrived")
    }

    /// The status of the next completion.
    pub fn status(&self) -> WcStatus {
        status(&self.completion())
    }

    pub fn event(&self) -> urxe::Event {
        let event = self.context.events().wait_timeout(TIMEOUT).unwrap();
        event.expect("no event arrived")
    }

    /// Returns registered memory with the pattern of `seed`.
    pub fn filled(&self, len: usize, seed: u64) -> MemoryRegion {
        let region = self.pd.register(len, ALL).unwrap();
        region.write(0, &pattern(len, seed)).unwrap();
        region
    }
}

pub fn status(completion: &Completion) -> WcStatus {
    match completion.result {
        Ok(_) => WcStatus::Success,
        Err(WorkError { status, .. }) => status,
    }
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let step = |_| {
        x = x
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (x >> 56) as u8
    };
    (0..len).map(step).collect()
}

pub fn connect(a: PreparedQueuePair, b: PreparedQueuePair) -> (QueuePair, QueuePair) {
    connect_with(a, b, &ConnectOptions::default())
}

pub fn connect_with(
    a: PreparedQueuePair,
    b: PreparedQueuePair,
    options: &ConnectOptions,
) -> (QueuePair, QueuePair) {
    let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    let a = a.connect(&endpoint_b, options).unwrap();
    (a, b.connect(&endpoint_a, options).unwrap())
}

/// Returns two connected ends, each with its own opened device.
pub fn pair() -> (End, End, QueuePair, QueuePair) {
    let (a, b) = (End::new(), End::new());
    let (qp_a, qp_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    (a, b, qp_a, qp_b)
}
