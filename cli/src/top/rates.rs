//! The rows of `urxe top`: the queue pairs of all processes, with rates between two surveys.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};
use urxe_driver::stat::{QueuePairReport, Survey};

/// A queue pair with its rates.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub pid: u32,
    pub program: String,
    pub qp: QueuePairReport,
    /// Bytes per second.
    pub sent: f64,
    pub received: f64,
    /// Packets per second.
    pub packets: f64,
    pub retransmitted: f64,
}

/// The column by which rows are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Column {
    Pid,
    Program,
    Qp,
    Peer,
    Sent,
    Received,
    Packets,
    Retransmitted,
    Window,
    RoundTrip,
}

impl Column {
    /// All columns, in the order of the screen.
    pub const ALL: [Self; 10] = [
        Self::Pid,
        Self::Program,
        Self::Qp,
        Self::Peer,
        Self::Sent,
        Self::Received,
        Self::Packets,
        Self::Retransmitted,
        Self::Window,
        Self::RoundTrip,
    ];

    /// The heading.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Program => "PROGRAM",
            Self::Qp => "QUEUE PAIR",
            Self::Peer => "PEER",
            Self::Sent => "SENT/s",
            Self::Received => "RECEIVED/s",
            Self::Packets => "PACKETS/s",
            Self::Retransmitted => "RETRANS/s",
            Self::Window => "WINDOW",
            Self::RoundTrip => "RTT",
        }
    }

    /// Compares two rows: rates, windows and round-trip times in descending order, the others in
    /// ascending order.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        match self {
            Self::Pid => a.pid.cmp(&b.pid),
            Self::Program => a.program.cmp(&b.program),
            Self::Qp => a.qp.qpn.cmp(&b.qp.qpn),
            Self::Peer => a.qp.peer.cmp(&b.qp.peer),
            Self::Sent => b.sent.total_cmp(&a.sent),
            Self::Received => b.received.total_cmp(&a.received),
            Self::Packets => b.packets.total_cmp(&a.packets),
            Self::Retransmitted => b.retransmitted.total_cmp(&a.retransmitted),
            Self::Window => b.qp.window.cmp(&a.qp.window),
            Self::RoundTrip => b.qp.round_trip.cmp(&a.qp.round_trip),
        }
    }

    /// Whether the cells are amounts, which are aligned at the right.
    pub const fn is_amount(self) -> bool {
        !matches!(self, Self::Program | Self::Qp | Self::Peer)
    }

    /// The least width, at which a change of a rate does not move the columns.
    pub const fn min_width(self) -> usize {
        match self {
            Self::Sent | Self::Received => "999.9 MB".len(),
            Self::RoundTrip => "99.9 us".len(),
            _ => 0,
        }
    }

    /// The column to the right, or to the left.
    pub fn next(self, forward: bool) -> Self {
        let len = Self::ALL.len();
        let at = Self::ALL.iter().position(|&column| column == self);
        let step = if forward { 1 } else { len - 1 };
        Self::ALL[(at.unwrap_or(0) + step) % len]
    }
}

impl Row {
    /// The texts of the columns, in the order of [`Column::ALL`].
    pub fn cells(&self) -> [String; 10] {
        let qp = &self.qp;
        [
            self.pid.to_string(),
            printable(&self.program),
            format!(
                "{:#x} {} {}",
                qp.qpn,
                printable(&qp.service),
                printable(&qp.state)
            ),
            qp.peer
                .map_or(String::new(), |(ip, qpn)| format!("{ip} {qpn:#x}")),
            amount(self.sent, "B"),
            amount(self.received, "B"),
            amount(self.packets, ""),
            amount(self.retransmitted, ""),
            qp.window.map_or(String::new(), |window| window.to_string()),
            qp.round_trip.map_or(String::new(), |nanos| {
                crate::perf::show_time(Duration::from_nanos(nanos))
            }),
        ]
    }

    /// Whether the program, the process ID, the device, the queue pair or the peer contains `text`.
    pub fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let cells = self.cells();
        let cells = cells[..4].iter().chain([&self.qp.device]);
        cells
            .into_iter()
            .any(|cell| cell.to_lowercase().contains(&text))
    }

    pub fn json(&self) -> Value {
        json!({
            "pid": self.pid,
            "program": self.program,
            "queue_pair": self.qp,
            "sent_bytes_per_second": self.sent,
            "received_bytes_per_second": self.received,
            "packets_per_second": self.packets,
            "retransmitted_per_second": self.retransmitted,
        })
    }
}

/// Returns the queue pairs of `now` with their rates since `before`, which is `elapsed` earlier. If
/// a queue pair is not in `before`, its counts since its creation are used.
pub fn rows(before: &Survey, now: &Survey, elapsed: Duration) -> Vec<Row> {
    let known: HashMap<(u64, u32), &QueuePairReport> = before
        .processes
        .iter()
        .flat_map(|process| {
            let instance = process.report.instance;
            let queue_pairs = process.report.queue_pairs.iter();
            queue_pairs.map(move |qp| ((instance, qp.qpn), qp))
        })
        .collect();
    let zero = QueuePairReport::default();
    let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let processes = now.processes.iter();
    let rows = processes.flat_map(|process| {
        let report = &process.report;
        report.queue_pairs.iter().map(|qp| {
            let key = (report.instance, qp.qpn);
            let earlier = *known.get(&key).unwrap_or(&&zero);
            let rate = |count: fn(&QueuePairReport) -> u64| {
                count(qp).saturating_sub(count(earlier)) as f64 / seconds
            };
            Row {
                pid: process.pid,
                program: report.program.clone(),
                sent: rate(|qp| qp.sent_bytes),
                received: rate(|qp| qp.received_bytes),
                packets: rate(|qp| qp.sent_packets + qp.received_packets),
                retransmitted: rate(|qp| qp.retransmitted),
                qp: qp.clone(),
            }
        })
    });
    rows.collect()
}

/// Keeps the rows that match `filter`, and sorts them by `column`.
pub fn select(mut rows: Vec<Row>, filter: &str, column: Column, reverse: bool) -> Vec<Row> {
    rows.retain(|row| row.matches(filter));
    rows.sort_by(|a, b| {
        let order = column.compare(a, b);
        let order = if reverse { order.reverse() } else { order };
        // With a second key, equal rows keep their order between two surveys.
        order.then(a.pid.cmp(&b.pid)).then(a.qp.qpn.cmp(&b.qp.qpn))
    });
    rows
}

/// Formats an amount with its decimal prefix.
fn amount(value: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T"];
    let mut value = value;
    let mut at = 0;
    while value >= 1000.0 && at + 1 < prefixes.len() {
        value /= 1000.0;
        at += 1;
    }
    let prefix = prefixes[at];
    let unit = format!("{prefix}{unit}");
    let number = match at {
        0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    };
    format!("{number} {unit}").trim_end().to_owned()
}

/// Replaces control characters, so that names from other processes cannot control the terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use urxe_driver::stat::{Process, Report};

    /// A survey of one process with a queue pair for each pair of number and sent bytes.
    pub fn survey(queue_pairs: &[(u32, u64)]) -> Survey {
        let queue_pair = |&(qpn, sent_bytes): &(u32, u64)| QueuePairReport {
            qpn,
            device: "urxe_eth0".into(),
            service: "RC".into(),
            state: "RTS".into(),
            peer: Some(("192.0.2.2".parse().expect("an address"), 7)),
            sent_bytes,
            retransmitted: sent_bytes / 1000,
            window: Some(qpn),
            round_trip: Some(12_300),
            ..QueuePairReport::default()
        };
        Survey {
            processes: vec![Process {
                pid: 4711,
                report: Report {
                    program: "bad\x1bname".into(),
                    instance: 9,
                    queue_pairs: queue_pairs.iter().map(queue_pair).collect(),
                    ..Report::default()
                },
            }],
            silent: 0,
        }
    }

    #[test]
    fn rates_are_differences_per_second() {
        let before = survey(&[(0x11, 1000)]);
        let now = survey(&[(0x11, 5000), (0x12, 600)]);
        let rows = rows(&before, &now, Duration::from_secs(2));
        assert_eq!((rows[0].sent, rows[0].retransmitted), (2000.0, 2.0));
        assert_eq!(rows[1].sent, 300.0);
        let cells = rows[0].cells();
        assert_eq!(cells[1], "bad?name");
        assert_eq!(cells[2], "0x11 RC RTS");
        assert_eq!(cells[3], "192.0.2.2 0x7");
        assert_eq!(cells[4], "2.0 kB");
        assert_eq!(cells[9], "12.3 us");
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let now = survey(&[(0x11, 1000), (0x12, 5000), (0x13, 0)]);
        let all = rows(&Survey::default(), &now, Duration::from_secs(1));
        let qpns = |filter, column, reverse| -> Vec<u32> {
            let rows = select(all.clone(), filter, column, reverse);
            rows.iter().map(|row| row.qp.qpn).collect()
        };
        assert_eq!(qpns("", Column::Sent, false), [0x12, 0x11, 0x13]);
        assert_eq!(qpns("", Column::Sent, true), [0x13, 0x11, 0x12]);
        assert_eq!(qpns("", Column::Qp, false), [0x11, 0x12, 0x13]);
        assert_eq!(qpns("0x13", Column::Sent, false), [0x13]);
        assert_eq!(qpns("ETH0", Column::Qp, false), [0x11, 0x12, 0x13]);
        assert!(qpns("other", Column::Qp, false).is_empty());
    }

    #[test]
    fn columns_are_a_ring() {
        assert_eq!(Column::Pid.next(false), Column::RoundTrip);
        assert_eq!(Column::RoundTrip.next(true), Column::Pid);
    }

    #[test]
    fn amounts_have_a_prefix() {
        let amounts = [0.0, 999.0, 1500.0, 3.2e9].map(|value| amount(value, "B"));
        assert_eq!(amounts, ["0 B", "999 B", "1.5 kB", "3.2 GB"]);
    }
}
