//! The counters of the process, as other processes read them.
//!
//! A process reports its counters as JSON, so that a command of another version can read them.

use super::engine::Engine;
use crate::counters::{self, DeviceCounters, DeviceReadings, QpTotals, Readings, Resource};
use crate::device;
use crate::queues::qp::QueuePairReport;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use urxe_proto::cm;

/// Counters by name.
pub type Counts = BTreeMap<String, u64>;

/// The counters of one process since it started.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct Report {
    /// The program's name.
    pub program: String,
    /// A random number of the process. Process IDs do not distinguish processes of other PID
    /// namespaces: those that cannot be seen are all 0.
    #[serde(default)]
    pub instance: u64,
    /// The counters of each device, by its name.
    pub devices: BTreeMap<String, DeviceReport>,
    /// Counters that belong to no device: system calls, port sharing, injected faults.
    pub process: Counts,
    /// The queue pairs with the most packets, at most 100.
    #[serde(default)]
    pub queue_pairs: Vec<QueuePairReport>,
    /// The number of queue pairs that are not listed.
    #[serde(default)]
    pub queue_pairs_omitted: u64,
}

/// The maximum number of queue pairs in a report, which is one message of at most 64 KiB.
const MAX_QUEUE_PAIRS: usize = 100;

/// The counters of one device in one process. A device that the process never used has no entry.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(default)]
pub struct DeviceReport {
    /// The counters below `ports/1/counters` in sysfs.
    pub port: Counts,
    /// Counters by the names of the kernel's rxe.
    pub hw: Counts,
    /// Counters by the names of NIC vendors' diagnostics.
    pub diagnostic: Counts,
    /// Counters by urxe's own names.
    pub transport: Counts,
    /// The numbers of objects that exist, by the names of [`RESOURCES`].
    pub resources: Counts,
}

/// The names of the kinds of objects that are counted, those of the kernel in its order.
pub const RESOURCES: [&str; 7] = ["pd", "cq", "qp", "cm_id", "mr", "ctx", "srq"];

impl DeviceReport {
    /// Returns the groups of counters, each with its name.
    pub fn groups(&self) -> [(&'static str, &Counts); 4] {
        [
            ("port", &self.port),
            ("hw", &self.hw),
            ("diagnostic", &self.diagnostic),
            ("transport", &self.transport),
        ]
    }

    /// Adds the counters of another process. Sums wrap around.
    pub fn add(&mut self, other: &DeviceReport) {
        let groups = [
            (&mut self.port, &other.port),
            (&mut self.hw, &other.hw),
            (&mut self.diagnostic, &other.diagnostic),
            (&mut self.transport, &other.transport),
            (&mut self.resources, &other.resources),
        ];
        for (mine, others) in groups {
            for (name, count) in others {
                let mine = mine.entry(name.clone()).or_default();
                *mine = mine.wrapping_add(*count);
            }
        }
    }

    /// Returns the report of a device for which nothing was counted: all counters are 0.
    pub fn zero() -> DeviceReport {
        DeviceCounters::default().read(Default::default, 0).into()
    }
}

impl From<DeviceReadings> for DeviceReport {
    fn from(readings: DeviceReadings) -> Self {
        DeviceReport {
            port: counts(readings.port),
            hw: counts(readings.hw),
            diagnostic: counts(readings.diagnostic),
            transport: counts(readings.transport),
            resources: counts(RESOURCES.map(|name| (name, 0)).into()),
        }
    }
}

impl Engine {
    /// Returns the counters of the process.
    pub(crate) fn report(&self) -> Report {
        let devices = counters::of_all_devices().into_iter();
        let (queue_pairs, queue_pairs_omitted) = self.report_queue_pairs();
        Report {
            program: program(),
            instance: self.instance,
            devices: devices
                .map(|(name, counters)| {
                    let bad = self.bad_datagrams(&name);
                    let readings = counters.read(|| self.live_totals(&name), bad);
                    let report = DeviceReport {
                        resources: counts(self.resources(&name, &counters)),
                        ..readings.into()
                    };
                    (name, report)
                })
                .collect(),
            process: counts(self.read_process()),
            queue_pairs,
            queue_pairs_omitted,
        }
    }

    /// Returns the queue pairs with the most packets, and the number of the others.
    fn report_queue_pairs(&self) -> (Vec<QueuePairReport>, u64) {
        let mut reports: Vec<_> = self.qps.read().iter().map(|qp| qp.report()).collect();
        reports.sort_by_key(|qp| Reverse(qp.sent_packets + qp.received_packets));
        let omitted = reports.len().saturating_sub(MAX_QUEUE_PAIRS);
        reports.truncate(MAX_QUEUE_PAIRS);
        (reports, omitted as u64)
    }

    /// Returns the readings that belong to the process and to no device.
    fn read_process(&self) -> Vec<(&'static str, u64)> {
        let mut readings = vec![
            ("malformed_packets", self.counters.malformed.get()),
            ("unknown_qp", self.counters.unknown_qp.get()),
            ("wakeups", self.counters.wakeups.get()),
            ("coalesced_sends", self.counters.coalesced_sends.get()),
            ("flush_timeouts", self.counters.flush_timeouts.get()),
            ("delayed_acks", self.counters.delayed_acks.get()),
            ("writes_awaited", self.counters.writes_awaited.get()),
            ("quantum_waits", self.quantum_waits()),
            ("receive_sockets", self.receive_sockets() as u64),
            ("path_mtu_exceeded", self.counters.path_mtu_exceeded.get()),
            ("panics", self.counters.panics.get()),
        ];
        if let Some(network) = self.network.get() {
            readings.extend(read_cm(&network.gsi.counters()));
        }
        if let Some(counters) = self.net_counters() {
            readings.extend(counters.snapshot());
        }
        readings
    }

    /// Returns the sums over the queue pairs of a device that exist now.
    fn live_totals(&self, device: &str) -> QpTotals {
        let mut totals = QpTotals::default();
        for qp in self.qps.read().iter() {
            if qp.device().name() == device {
                totals += &qp.totals();
            }
        }
        totals
    }

    /// Returns the numbers of objects of a device that exist now.
    fn resources(&self, device: &str, counters: &DeviceCounters) -> Readings {
        let (contexts, ids) = device::users_of(device);
        let number = |name| match name {
            "pd" => counters.existing(Resource::Pd),
            "cq" => counters.existing(Resource::Cq),
            "qp" => self
                .qps
                .read()
                .iter()
                .filter(|qp| qp.device().name() == device)
                .count() as u64,
            "cm_id" => ids,
            "mr" => counters.existing(Resource::Mr),
            "ctx" => contexts,
            _ => counters.existing(Resource::Srq),
        };
        RESOURCES
            .iter()
            .map(|name| (*name, number(*name)))
            .collect()
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

/// Returns the readings of the connection manager. The names are like the kernel's (`ib_cm`), which
/// counts each kind of message by itself.
fn read_cm(cm: &cm::Counters) -> [(&'static str, u64); 10] {
    [
        ("cm_tx_msgs", cm.sent),
        ("cm_tx_retries", cm.retransmitted),
        ("cm_tx_paced", cm.paced),
        ("cm_rx_msgs", cm.received),
        ("cm_rx_duplicates", cm.duplicates),
        ("cm_rx_malformed", cm.malformed),
        ("cm_rx_unmatched", cm.unmatched),
        ("cm_rx_awaiting_backlog", cm.awaiting_backlog),
        ("cm_rx_over_backlog", cm.over_backlog),
        ("cm_rx_refused", cm.refused),
    ]
}

/// Returns a report as JSON.
pub(super) fn encode(report: &Report) -> Vec<u8> {
    serde_json::to_vec(report).expect("names and numbers are JSON")
}

fn counts(readings: Readings) -> Counts {
    let own = |(name, count): (&str, u64)| (name.to_owned(), count);
    readings.into_iter().map(own).collect()
}

/// Returns the name under which this program was started.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
