//! The measured links and their workloads.

use std::time::Duration;

/// The length of each WRITE, and of a long READ, in bytes.
pub const MESSAGE: u32 = 64 << 10;

/// The number of outstanding READ requests.
pub const READS: u8 = 16;

/// The length of a transfer of the first two tables, in virtual time.
pub(super) const TRANSFER_TIME: Duration = Duration::from_millis(60);

/// A link and its users.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The description.
    pub name: &'static str,
    /// The number of requesters.
    pub senders: usize,
    /// The rate, in bytes per second.
    pub rate: u64,
    /// The time from sending a packet to its answer on an idle link.
    pub round_trip: Duration,
    /// The size of the queue, in packets.
    pub queue: usize,
    /// The queue length, in packets, from which packets are marked (ECN).
    pub mark: usize,
    /// The probability of a loss, per packet.
    pub loss: f64,
    /// The number of consecutive packets per loss.
    pub run: u32,
    /// The probability that a packet is late.
    pub reorder: f64,
    /// The longest time by which it is late.
    pub late: Duration,
    /// The number of work requests that each requester keeps posted.
    pub depth: u32,
    /// The number of READ requests that each requester may have outstanding (`max_rd_atomic`).
    pub reads: u8,
    /// The time from the start of the transfer to the start of the measurement of the link's use.
    pub warm_up: Duration,
    /// The length of the transfer, in virtual time.
    pub duration: Duration,
}

/// A NIC's link within a rack.
pub const NIC: Case = Case {
    name: "25 Gbit/s, 60 us",
    senders: 1,
    rate: 3_000_000_000,
    round_trip: Duration::from_micros(60),
    queue: 1000,
    mark: usize::MAX,
    loss: 0.0,
    run: 1,
    reorder: 0.0,
    late: Duration::ZERO,
    depth: 16,
    reads: READS,
    warm_up: Duration::ZERO,
    duration: TRANSFER_TIME,
};

/// The cases of the tables.
pub const CASES: [Case; 13] = [
    NIC,
    Case {
        name: "loss 0.1%",
        loss: 0.001,
        ..NIC
    },
    Case {
        name: "loss 1%",
        loss: 0.01,
        ..NIC
    },
    Case {
        name: "loss of 8 at a time, 1% in all",
        loss: 0.01 / 8.0,
        run: 8,
        ..NIC
    },
    Case {
        name: "receive buffer of 50 packets",
        queue: 50,
        ..NIC
    },
    Case {
        name: "the same, 4 senders",
        senders: 4,
        queue: 50,
        ..NIC
    },
    Case {
        name: "the same, 16 senders",
        senders: 16,
        queue: 50,
        ..NIC
    },
    Case {
        name: "switch queue of 20 packets",
        queue: 20,
        ..NIC
    },
    Case {
        name: "CE marks from 20 packets on",
        mark: 20,
        queue: 200,
        ..NIC
    },
    Case {
        name: "the same, 8 senders",
        senders: 8,
        mark: 20,
        queue: 200,
        ..NIC
    },
    Case {
        name: "8 senders, no marks",
        senders: 8,
        queue: 200,
        ..NIC
    },
    Case {
        name: "1 Gbit/s, 1 ms",
        rate: 125_000_000,
        round_trip: Duration::from_millis(1),
        queue: 100,
        ..NIC
    },
    Case {
        name: "the same, loss 1%",
        rate: 125_000_000,
        round_trip: Duration::from_millis(1),
        queue: 100,
        loss: 0.01,
        ..NIC
    },
];

/// The work of the requesters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// WRITEs of this many bytes.
    Write(u32),
    /// SENDs of this many bytes.
    Send(u32),
    /// READs of this many bytes.
    Read(u32),
}

impl Work {
    /// The length of a message.
    pub(super) fn bytes(self) -> u32 {
        match self {
            Work::Write(bytes) | Work::Send(bytes) | Work::Read(bytes) => bytes,
        }
    }
}
