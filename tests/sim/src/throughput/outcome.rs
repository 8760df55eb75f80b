//! The figures of a transfer.

use std::fmt;
use std::time::Duration;

/// The result of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The fraction of the link's rate that carried acknowledged data.
    pub utilization: f64,
    /// The fraction of the sent packets that were retransmissions.
    pub retransmitted: f64,
    /// The fraction of the link's rate, after the warm-up, that carried packets sent for the first
    /// time.
    pub carried: f64,
    /// The number of packets of either direction whose PSN had been sent before.
    pub sent_again: u64,
    /// The number of packets that arrived for the first time.
    pub arrived: u64,
    /// The number of packets that arrived although they had arrived before.
    pub arrived_again: u64,
    /// The number of packets that were sent, acknowledgements excepted.
    pub packets: u64,
    /// The number of completed work requests.
    pub completed: u64,
    /// The longest time from posting a work request to its completion.
    pub latency: Duration,
    /// The longest time for which a requester received nothing.
    pub longest_gap: Duration,
    /// The average time of a packet in the queue.
    pub queueing_delay: Duration,
}

impl Outcome {
    /// The fraction of the packets that arrived which had arrived before.
    pub fn needless(&self) -> f64 {
        self.arrived_again as f64 / (self.arrived + self.arrived_again).max(1) as f64
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = format!(
            "{:.0}%, {:.1}%, {:.1} ms, {} us",
            self.utilization * 100.0,
            self.retransmitted * 100.0,
            self.longest_gap.as_secs_f64() * 1e3,
            self.queueing_delay.as_micros()
        );
        f.pad(&cell)
    }
}
