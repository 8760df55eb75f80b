//! The output of the manager: MADs to send and events for the program.

use super::wire::{Mad, Message};
use super::{Address, Event};
use std::collections::VecDeque;

/// A MAD to send from queue pair 1, with the queue key of the GSI.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transmit {
    /// The destination.
    pub address: Address,
    /// The MAD.
    pub mad: Box<Mad>,
}

/// The counters of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// MADs sent, retransmissions included.
    pub sent: u64,
    /// MADs retransmitted for lack of an answer.
    pub retransmitted: u64,
    /// REQs that waited because their destination had not answered enough of those before.
    pub paced: u64,
    /// MADs received, including those counted below.
    pub received: u64,
    /// Dropped: not a valid MAD of communication management.
    pub malformed: u64,
    /// Duplicate messages.
    pub duplicates: u64,
    /// Messages without a connection, or unexpected in its state.
    pub unmatched: u64,
    /// Requests that wait, because the backlog is full, until the program takes up others.
    pub awaiting_backlog: u64,
    /// Requests dropped because the backlog was full: those for a connection if too many wait, all
    /// those for a queue pair. The peer retransmits them.
    pub over_backlog: u64,
    /// Requests rejected by the manager itself.
    pub refused: u64,
}

/// Queued MADs and events.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub transmits: VecDeque<Transmit>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
}

impl Outbox {
    /// Queues a message for transmission.
    pub fn send(&mut self, address: Address, transaction: u64, message: &Message) {
        self.send_mad(address, Box::new(message.to_mad(transaction)));
    }

    /// Queues a MAD for transmission.
    pub fn send_mad(&mut self, address: Address, mad: Box<Mad>) {
        self.counters.sent += 1;
        self.transmits.push_back(Transmit { address, mad });
    }
}
