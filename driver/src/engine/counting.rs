//! The counters of the engine, and the sums over the queue pairs of a device.

use super::Engine;
use crate::counters::{DeviceCounters, DeviceReadings, QpTotals};
use crate::device;
use crate::event_queue::lock;
use std::sync::Arc;
use urxe_net::Counter;

/// The engine's counters, beside [`urxe_net::NetCounters`] and those of each queue pair.
#[derive(Debug, Default)]
pub struct EngineCounters {
    /// Packets that violate the wire format.
    pub malformed: Counter,
    /// Packets for a queue pair that does not exist.
    pub unknown_qp: Counter,
    /// Times that the progress thread woke up.
    pub wakeups: Counter,
    /// Sends that were deferred, and sent in one batch with later ones.
    pub gathered_sends: Counter,
    /// Times that the flush timer expired for the deferred sends of a queue pair.
    pub gathered_late: Counter,
    /// Acknowledgements that were held for the program's answer.
    pub held_acks: Counter,
    /// Awaited writes that arrived before a completion was returned to an application that polls
    /// memory.
    pub writes_awaited: Counter,
    /// Times that a connection waited for room to send to a process of this host.
    pub turns_awaited: Counter,
    /// Times that all queue pairs failed after a panic.
    pub panics: Counter,
}

impl Engine {
    /// Returns the counters of a device, which remain when it is closed.
    pub(crate) fn counters_of(&self, device: &str) -> Arc<DeviceCounters> {
        let mut counted = lock(&self.counted);
        Arc::clone(counted.entry(device.to_owned()).or_default())
    }

    /// Returns the sums over the queue pairs of a device, destroyed ones included.
    pub(crate) fn totals_of(&self, device: &str) -> QpTotals {
        self.counters_of(device).totals(|| self.live_totals(device))
    }

    /// Returns the readings of each device, by its name.
    pub(crate) fn read_devices(&self) -> Vec<(String, DeviceReadings)> {
        let counted: Vec<_> = lock(&self.counted)
            .iter()
            .map(|(name, counters)| (name.clone(), Arc::clone(counters)))
            .collect();
        let read = |(name, counters): (String, Arc<DeviceCounters>)| {
            let readings = counters.read(|| self.live_totals(&name), self.bad_datagrams(&name));
            (name, readings)
        };
        counted.into_iter().map(read).collect()
    }

    /// Returns the readings that belong to the process and to no device.
    pub(crate) fn read_process(&self) -> Vec<(&'static str, u64)> {
        let mut readings = vec![
            ("malformed_packets", self.counters.malformed.get()),
            ("unknown_qp", self.counters.unknown_qp.get()),
            ("wakeups", self.counters.wakeups.get()),
            ("gathered_sends", self.counters.gathered_sends.get()),
            ("gathered_late", self.counters.gathered_late.get()),
            ("held_acks", self.counters.held_acks.get()),
            ("writes_awaited", self.counters.writes_awaited.get()),
            ("turns_awaited", self.counters.turns_awaited.get()),
            ("panics", self.counters.panics.get()),
        ];
        if let Some(counters) = self.net_counters() {
            readings.extend(counters.snapshot());
        }
        readings
    }

    /// Returns the sums over the queue pairs of a device that exist now.
    fn live_totals(&self, device: &str) -> QpTotals {
        let mut totals = QpTotals::default();
        for qp in self.qps().iter() {
            if qp.device().name() == device {
                totals += &qp.totals();
            }
        }
        totals
    }

    /// Returns the number of datagrams for a device that were dropped: malformed, or with a wrong
    /// ICRC.
    fn bad_datagrams(&self, device: &str) -> u64 {
        let Some(network) = self.network.get() else {
            return 0;
        };
        let addresses = device::addresses_of(device);
        let counts = addresses
            .into_iter()
            .map(|address| network.shared.counters().invalid_datagrams(address));
        counts.sum()
    }
}
