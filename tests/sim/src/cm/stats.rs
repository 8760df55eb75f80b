//! The counts of a simulation of the connection manager.

/// The counts of a run, or of many.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stats {
    /// Connections established.
    pub established: u64,
    /// Attempts that were rejected.
    pub rejected: u64,
    /// Attempts that timed out without an answer.
    pub timed_out: u64,
    /// MRAs received: messages that announce a late answer.
    pub delayed: u64,
    /// Services resolved.
    pub resolved: u64,
    /// Connections found stale.
    pub stale: u64,
    /// Crashes: a host lost all its state.
    pub crashes: u64,
    /// Attempts that a program abandoned.
    pub abandoned: u64,
    /// Attempts abandoned while the REQ had no answer.
    pub abandoned_before_reply: u64,
    /// Duplicate messages received.
    pub duplicates: u64,
    /// Messages retransmitted.
    pub retransmitted: u64,
    /// Requests that waited because too many were pending.
    pub awaiting_backlog: u64,
    /// Messages delivered.
    pub delivered: u64,
}

impl crate::seeds::Stats for Stats {
    fn add(&mut self, other: &Stats) {
        self.established += other.established;
        self.rejected += other.rejected;
        self.timed_out += other.timed_out;
        self.delayed += other.delayed;
        self.resolved += other.resolved;
        self.stale += other.stale;
        self.crashes += other.crashes;
        self.abandoned += other.abandoned;
        self.abandoned_before_reply += other.abandoned_before_reply;
        self.duplicates += other.duplicates;
        self.retransmitted += other.retransmitted;
        self.awaiting_backlog += other.awaiting_backlog;
        self.delivered += other.delivered;
    }
}
