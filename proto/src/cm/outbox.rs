//! What comes out: MADs to send, and events for the program.

use super::wire::{Mad, Message};
use super::{Address, Event};
use std::collections::VecDeque;

/// A MAD to send: from queue pair 1, with the queue key of the general service interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where it goes.
    pub address: Address,
    /// What it is.
    pub mad: Box<Mad>,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// MADs sent, those sent again included.
    pub sent: u64,
    /// MADs sent again because no answer came.
    pub repeated: u64,
    /// MADs received, those that follow included.
    pub received: u64,
    /// Not a MAD of communication management: dropped.
    pub malformed: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Messages that belong to nothing that exists, or do not fit its state.
    pub unmatched: u64,
    /// Requests dropped because their listener has as many as it wants; the peer repeats them.
    pub over_backlog: u64,
    /// Requests that were rejected without asking the program.
    pub refused: u64,
}

/// MADs and events that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub transmits: VecDeque<Transmit>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
}

impl Outbox {
    /// Sends a message.
    pub fn send(&mut self, address: Address, transaction: u64, message: &Message) {
        self.send_mad(address, Box::new(message.to_mad(transaction)));
    }

    /// Sends a MAD.
    pub fn send_mad(&mut self, address: Address, mad: Box<Mad>) {
        self.counters.sent += 1;
        self.transmits.push_back(Transmit { address, mad });
    }
}
