//! The measurements: [`cells()`] lists them, and [`goals()`] what they have to reach.

mod cells;
mod goals;

use super::veth::Link;
pub(super) use cells::cells;
pub(super) use goals::{Goal, goals};

/// A measured program, by the tool that runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tool {
    /// perftest over urxe: average bandwidth, or median latency.
    Urxe,
    /// perftest over urxe: the 99th percentile of the latency.
    UrxeTail,
    /// `tests/rxe/udp/udp.c`.
    Udp,
    /// `tests/rxe/udp/udp.c`: half of the 99th percentile of its round trips.
    UdpTail,
    /// `benches/model.rs`.
    Model,
    /// iperf3.
    Iperf,
    /// ucx_perftest over TCP.
    Ucx,
}

impl Tool {
    /// Returns whether the program runs over urxe.
    pub(super) fn is_urxe(self) -> bool {
        matches!(self, Tool::Urxe | Tool::UrxeTail)
    }
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
    /// Bandwidth of 64 KiB messages, for which there are goals.
    Goals,
    /// Bandwidth by size and MTU.
    Bandwidth,
    /// Rate of small messages.
    Rate,
    /// Latency of small messages.
    Latency,
    /// Latency of large messages.
    Large,
    /// Many queue pairs, and many pairs of processes.
    Scale,
    /// Packet loss.
    Loss,
    /// A small receive buffer.
    Buffer,
    /// Programs that wait for completion events.
    Events,
    /// A target whose program is busy and does not call verbs.
    Busy,
    /// Two hosts, emulated by namespaces, with busy loops beside the programs.
    Loaded,
    /// Two hosts by the MTU of the link, with a bridge, and with busy loops.
    Links,
}

impl Part {
    /// All parts in their order.
    pub(super) const ALL: [Part; 12] = [
        Part::Goals,
        Part::Bandwidth,
        Part::Rate,
        Part::Latency,
        Part::Large,
        Part::Scale,
        Part::Loss,
        Part::Buffer,
        Part::Events,
        Part::Busy,
        Part::Loaded,
        Part::Links,
    ];

    /// Returns the heading.
    pub(super) fn title(self) -> &'static str {
        match self {
            Part::Goals => "64 KiB messages, one queue pair",
            Part::Bandwidth => "Bandwidth by size and MTU",
            Part::Rate => "Messages of 64 bytes a second",
            Part::Latency => "Latency of 64 bytes",
            Part::Large => "Latency of larger messages",
            Part::Scale => "Many queue pairs, many processes",
            Part::Loss => "Lost packets",
            Part::Buffer => "A receive buffer of 212,992 bytes",
            Part::Events => "Completion events instead of polling",
            Part::Busy => "A target that computes and never calls verbs",
            Part::Loaded => "Four busy loops beside two namespaces, over veth",
            Part::Links => "64 KiB messages between two namespaces",
        }
    }
}

/// The unit of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Bandwidth; higher is better.
    MibPerSecond,
    /// Message rate; higher is better.
    MillionPerSecond,
    /// Latency; lower is better.
    Microseconds,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Unit::MibPerSecond => "MiB/s",
            Unit::MillionPerSecond => "M/s",
            Unit::Microseconds => "us",
        }
    }

    /// Returns the ratio in which `value` is better than `other`.
    pub(super) fn ratio(self, value: f64, other: f64) -> f64 {
        match self {
            Unit::Microseconds => other / value,
            _ => value / other,
        }
    }
}

/// A pair of programs to measure.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) part: Part,
    /// The name in the table.
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) tool: Tool,
    /// The program, and options for both sides.
    pub(super) words: String,
    /// The environment of both sides.
    pub(super) environment: Vec<(&'static str, String)>,
    /// The number of pairs that run at the same time.
    pub(super) copies: usize,
    /// Whether the result is the bytes of all pairs over the time of the whole run, including
    /// start-up, instead of the program's own result.
    pub(super) aggregate: bool,
    /// The number of busy loops that run beside the server.
    pub(super) loops: usize,
    /// The link to the client, if that runs in a network namespace of its own.
    pub(super) link: Option<Link>,
}

impl Cell {
    fn new(part: Part, name: impl Into<String>, unit: Unit, tool: Tool, words: &str) -> Self {
        Cell {
            part,
            name: name.into(),
            unit,
            tool,
            words: words.to_owned(),
            environment: Vec::new(),
            copies: 1,
            aggregate: false,
            loops: 0,
            link: None,
        }
    }

    /// Returns the number of transferred bytes according to the options, if they define it.
    pub(super) fn bytes(&self) -> Option<u64> {
        let words: Vec<&str> = self.words.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let option = |name| number(words.iter().position(|word| *word == name)? + 1);
        let bytes = match self.tool {
            Tool::Urxe | Tool::UrxeTail | Tool::Ucx => {
                option("-s")? * option("-n")? * option("-q").unwrap_or(1)
            }
            Tool::Udp | Tool::UdpTail => number(1)? * number(2)?,
            Tool::Model => number(1)?,
            Tool::Iperf => words.last()?.strip_suffix('G')?.parse::<u64>().ok()? << 30,
        };
        Some(bytes * self.copies as u64)
    }

    fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_computed_from_the_options() {
        let bytes =
            |tool, words| Cell::new(Part::Goals, "", Unit::MibPerSecond, tool, words).bytes();
        assert_eq!(
            bytes(Tool::Urxe, "ib_write_bw -s 64 -n 10 -q 3"),
            Some(1920)
        );
        assert_eq!(bytes(Tool::Udp, "stream 65536 2"), Some(131_072));
        assert_eq!(bytes(Tool::Model, "4096 9999"), Some(9999));
        assert_eq!(bytes(Tool::Iperf, "-l 1M -n 2G"), Some(2 << 30));
        assert_eq!(bytes(Tool::Urxe, "ib_atomic_lat -n 20000"), None);
    }

    #[test]
    fn goals_refer_to_existing_cells() {
        let cells = cells(&[]);
        for goal in goals() {
            for name in [&goal.of, &goal.to] {
                let is_it = |cell: &Cell| cell.part == goal.part && cell.name == *name;
                assert!(cells.iter().any(is_it), "{name}");
            }
        }
    }
}
