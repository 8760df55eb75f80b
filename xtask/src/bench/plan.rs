//! The measurements, their comparisons and goals.

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
}

impl Part {
    /// All parts in their order.
    pub(super) const ALL: [Part; 11] = [
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
    /// Whether the client runs in a network namespace of its own.
    pub(super) two_hosts: bool,
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
            two_hosts: false,
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
            Tool::Iperf => self.words.strip_suffix('G')?.parse::<u64>().ok()? << 30,
        };
        Some(bytes * self.copies as u64)
    }

    fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }
}

/// A goal for the ratio of two cells.
pub(super) struct Goal {
    pub(super) part: Part,
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    /// The minimum of the ratio in which the first cell is better.
    pub(super) at_least: f64,
}

const fn goal(part: Part, of: &'static str, to: &'static str, at_least: f64) -> Goal {
    Goal {
        part,
        of,
        to,
        at_least,
    }
}

/// The project's goals.
pub(super) const GOALS: &[Goal] = &[
    goal(Part::Goals, "write", "model", 0.9),
    goal(Part::Goals, "read", "model", 0.9),
    goal(Part::Goals, "send", "model", 0.9),
    goal(Part::Goals, "write", "UDP, GSO stream", 0.60),
    goal(Part::Goals, "read", "UDP, GSO stream", 0.50),
    goal(Part::Goals, "send", "UDP, GSO stream", 0.50),
    goal(Part::Goals, "write", "TCP, iperf3", 0.60),
    goal(Part::Goals, "write", "UCX over TCP", 1.5),
    goal(Part::Goals, "write, MTU 1024", "write", 0.75),
    goal(Part::Goals, "read, MTU 1024", "read", 0.75),
    goal(Part::Goals, "send, MTU 1024", "send", 0.75),
    goal(
        Part::Bandwidth,
        "write 4 KiB, MTU 1024",
        "send 4 KiB, MTU 1024",
        0.5,
    ),
    goal(
        Part::Bandwidth,
        "write 8 MiB, MTU 4096",
        "write 1 MiB, MTU 4096",
        1.0,
    ),
    goal(
        Part::Bandwidth,
        "read 8 MiB, MTU 4096",
        "read 1 MiB, MTU 4096",
        1.0,
    ),
    goal(
        Part::Bandwidth,
        "send 8 MiB, MTU 4096",
        "send 1 MiB, MTU 4096",
        1.0,
    ),
    goal(Part::Latency, "send", "UDP ping-pong", 1.0 / 1.5),
    goal(Part::Latency, "write", "UDP ping-pong", 1.0 / 1.5),
    goal(Part::Latency, "send, 99%", "UDP ping-pong, 99%", 1.0 / 2.0),
    goal(Part::Latency, "write, 99%", "UDP ping-pong, 99%", 1.0 / 2.0),
    // The target of a WRITE polls its memory and does not call verbs.
    goal(Part::Latency, "write", "send", 1.0 / 3.0),
    goal(Part::Rate, "write, lists of 32", "UDP, a call each", 3.0),
    goal(Part::Rate, "write, one by one", "UDP, a call each", 1.5),
    goal(Part::Scale, "256 queue pairs", "1 queue pair", 0.85),
    goal(Part::Scale, "4000 queue pairs", "1 queue pair", 0.85),
    goal(Part::Loss, "write, 1% lost", "write, none lost", 0.3),
    goal(
        Part::Buffer,
        "write, small buffer",
        "write, large buffer",
        0.7,
    ),
    goal(
        Part::Buffer,
        "read, small buffer",
        "read, large buffer",
        0.7,
    ),
    goal(
        Part::Buffer,
        "send, small buffer",
        "send, large buffer",
        0.7,
    ),
    goal(Part::Events, "read, events", "read, polled", 0.8),
    goal(Part::Events, "send, events", "send, polled", 0.8),
    goal(
        Part::Events,
        "send latency, events",
        "UDP ping-pong, blocking",
        1.0 / 1.5,
    ),
    goal(Part::Loaded, "write", "TCP, iperf3", 0.7),
    goal(Part::Loaded, "read", "TCP, iperf3", 0.7),
    goal(Part::Loaded, "send", "TCP, iperf3", 0.7),
    goal(Part::Loaded, "send latency", "UDP ping-pong, blocking", 1.0),
];

/// Returns the number of messages of a size for a run of about a second.
fn count(size: u64) -> u64 {
    ((2 << 30) / size).clamp(250, 200_000)
}

fn perftest(program: &str, size: u64) -> String {
    format!("{program} -s {size} -n {}", count(size))
}

/// Returns all cells of the chosen parts.
pub(super) fn cells(chosen: &[Part]) -> Vec<Cell> {
    let parts = Part::ALL
        .into_iter()
        .filter(|part| chosen.is_empty() || chosen.contains(part));
    parts.flat_map(part_cells).collect()
}

fn part_cells(part: Part) -> Vec<Cell> {
    match part {
        Part::Goals => goals(),
        Part::Bandwidth => bandwidth(),
        Part::Rate => rate(),
        Part::Latency => latency(),
        Part::Large => large(),
        Part::Scale => scale(),
        Part::Loss => loss(),
        Part::Buffer => buffer(),
        Part::Events => events(),
        Part::Busy => busy(),
        Part::Loaded => loaded(),
    }
}

const OPERATIONS: [&str; 3] = ["write", "read", "send"];

fn goals() -> Vec<Cell> {
    let cell = |name: &str, tool, words: &str| {
        Cell::new(Part::Goals, name, Unit::MibPerSecond, tool, words)
    };
    let size = 65_536;
    let mut cells = vec![
        cell(
            "UDP, GSO stream",
            Tool::Udp,
            &format!("stream {size} {}", count(size)),
        ),
        cell("model", Tool::Model, &format!("4096 {}", 2_u64 << 30)),
        cell("TCP, iperf3", Tool::Iperf, "2G"),
        cell(
            "UCX over TCP",
            Tool::Ucx,
            &format!("tag_bw -s {size} -n {}", count(size) / 2),
        ),
    ];
    for operation in OPERATIONS {
        let words = perftest(&format!("ib_{operation}_bw"), size);
        cells.push(cell(operation, Tool::Urxe, &words));
        let name = format!("{operation}, MTU 1024");
        cells.push(cell(&name, Tool::Urxe, &format!("{words} -m 1024")));
    }
    cells
}

fn bandwidth() -> Vec<Cell> {
    let mut cells = Vec::new();
    for operation in OPERATIONS {
        for mtu in [4096, 1024] {
            for (size, title) in [
                (64, "64 B"),
                (512, "512 B"),
                (4096, "4 KiB"),
                (65_536, "64 KiB"),
                (1 << 20, "1 MiB"),
                (8 << 20, "8 MiB"),
            ] {
                let words = format!("{} -m {mtu}", perftest(&format!("ib_{operation}_bw"), size));
                let name = format!("{operation} {title}, MTU {mtu}");
                cells.push(Cell::new(
                    Part::Bandwidth,
                    name,
                    Unit::MibPerSecond,
                    Tool::Urxe,
                    &words,
                ));
            }
        }
    }
    cells
}

fn rate() -> Vec<Cell> {
    let cell = |name: &str, tool, words: &str| {
        Cell::new(Part::Rate, name, Unit::MillionPerSecond, tool, words)
    };
    vec![
        cell("UDP, a call each", Tool::Udp, "calls 64 500000"),
        cell(
            "write, one by one",
            Tool::Urxe,
            "ib_write_bw -s 64 -n 300000",
        ),
        cell(
            "write, lists of 32",
            Tool::Urxe,
            "ib_write_bw -s 64 -n 320000 -l 32",
        ),
        cell("send, one by one", Tool::Urxe, "ib_send_bw -s 64 -n 200000"),
        cell("read, one by one", Tool::Urxe, "ib_read_bw -s 64 -n 200000"),
    ]
}

fn latency() -> Vec<Cell> {
    let cell = |name: &str, tool, words: &str| {
        Cell::new(Part::Latency, name, Unit::Microseconds, tool, words)
    };
    let mut cells = vec![
        cell("UDP ping-pong", Tool::Udp, "pingpong 64 20000"),
        cell("UDP ping-pong, 99%", Tool::UdpTail, "pingpong 64 20000"),
        cell("UCX over TCP", Tool::Ucx, "tag_lat -s 64 -n 10000"),
    ];
    for operation in ["send", "write", "read"] {
        let words = format!("ib_{operation}_lat -s 64 -n 20000");
        cells.push(cell(operation, Tool::Urxe, &words));
        cells.push(cell(&format!("{operation}, 99%"), Tool::UrxeTail, &words));
    }
    cells.push(cell("atomic", Tool::Urxe, "ib_atomic_lat -n 20000"));
    cells
}

fn large() -> Vec<Cell> {
    let cell = |name: &str, tool, words: &str| {
        Cell::new(Part::Large, name, Unit::Microseconds, tool, words)
    };
    let mut cells = Vec::new();
    for (size, count, title) in [
        (4096, 10_000, "4 KiB"),
        (65_536, 5000, "64 KiB"),
        (1 << 20, 500, "1 MiB"),
    ] {
        for operation in OPERATIONS {
            let words = format!("ib_{operation}_lat -s {size} -n {count}");
            let name = format!("{operation} {title}");
            cells.push(cell(&name, Tool::Urxe, &words));
            cells.push(cell(&format!("{name}, 99%"), Tool::UrxeTail, &words));
        }
    }
    for operation in OPERATIONS {
        let words = format!("ib_{operation}_lat -s 65536 -n 2000");
        let name = format!("{operation} 64 KiB, 1% lost");
        for (name, tool) in [(name.clone(), Tool::Urxe), (name + ", 99%", Tool::UrxeTail)] {
            cells.push(cell(&name, tool, &words).env("URXE_FAULTS", "drop=1%,seed=7,dir=rx"));
        }
    }
    cells
}

fn scale() -> Vec<Cell> {
    let mut cells = Vec::new();
    for qps in [1_u32, 16, 256, 4000] {
        let name = format!("{qps} queue pair{}", if qps == 1 { "" } else { "s" });
        // perftest's queues have 128 entries by default. It hangs if the iterations of a queue pair
        // are fewer than that.
        let depth = (4096 / qps).clamp(1, 128);
        let each = (30_000 / qps).max(10).next_multiple_of(depth);
        let words = format!("ib_write_bw -s 65536 -q {qps} -n {each} -t {depth}");
        cells.push(Cell::new(
            Part::Scale,
            name,
            Unit::MibPerSecond,
            Tool::Urxe,
            &words,
        ));
    }
    // Long enough that connecting is a small part of the run. A single pair is the base of
    // comparison.
    for copies in [1, 2, 4, 8] {
        let words = format!("ib_write_bw -s 65536 -n {}", 160_000 / copies);
        let name = match copies {
            1 => "1 pair of processes, whole run".to_owned(),
            _ => format!("{copies} pairs of processes, whole run"),
        };
        let mut cell = Cell::new(Part::Scale, name, Unit::MibPerSecond, Tool::Urxe, &words);
        cell.copies = copies;
        cell.aggregate = true;
        cells.push(cell);
    }
    cells
}

fn loss() -> Vec<Cell> {
    let lost = [
        ("none lost", ""),
        // Dropped on receive, because dropping on send would split GSO batches.
        ("0.1% lost", "drop=0.1%,seed=7,dir=rx"),
        ("1% lost", "drop=1%,seed=7,dir=rx"),
    ];
    let mut cells = Vec::new();
    for operation in OPERATIONS {
        for (title, faults) in lost {
            let words = format!("ib_{operation}_bw -s 65536 -n 10000");
            let name = format!("{operation}, {title}");
            let cell = Cell::new(Part::Loss, name, Unit::MibPerSecond, Tool::Urxe, &words);
            cells.push(cell.env("URXE_FAULTS", faults));
        }
    }
    for (title, faults) in lost {
        let words = "ib_write_bw -s 65536 -n 10000";
        let name = format!("write, window by delay, {title}");
        let cell = Cell::new(Part::Loss, name, Unit::MibPerSecond, Tool::Urxe, words);
        let cell = cell.env("URXE_CONGESTION", "delay");
        cells.push(cell.env("URXE_FAULTS", faults));
    }
    cells
}

fn buffer() -> Vec<Cell> {
    let mut cells = Vec::new();
    for operation in OPERATIONS {
        for (title, bytes) in [("large buffer", ""), ("small buffer", "212992")] {
            let words = perftest(&format!("ib_{operation}_bw"), 65_536);
            let name = format!("{operation}, {title}");
            let cell = Cell::new(Part::Buffer, name, Unit::MibPerSecond, Tool::Urxe, &words);
            cells.push(cell.env("URXE_SOCKET_BUFFER", bytes));
        }
    }
    cells
}

fn events() -> Vec<Cell> {
    let cell =
        |name: &str, unit, tool, words: &str| Cell::new(Part::Events, name, unit, tool, words);
    let mut cells = Vec::new();
    for operation in ["read", "send"] {
        for (title, option) in [("polled", ""), ("events", " -e")] {
            let name = format!("{operation}, {title}");
            let words = format!("ib_{operation}_bw{option} -s 65536 -n 20000");
            cells.push(cell(&name, Unit::MibPerSecond, Tool::Urxe, &words));
        }
    }
    let latency = |name: &str, tool, words: &str| cell(name, Unit::Microseconds, tool, words);
    cells.push(latency(
        "UDP ping-pong, blocking",
        Tool::Udp,
        "blocking 64 10000",
    ));
    cells.push(latency(
        "send latency, events",
        Tool::Urxe,
        "ib_send_lat -e -s 64 -n 10000",
    ));
    cells
}

fn busy() -> Vec<Cell> {
    let size = 65_536;
    let mut cells = Vec::new();
    for operation in ["write", "read"] {
        for (title, busy) in [("idle target", false), ("busy target", true)] {
            let words = perftest(&format!("ib_{operation}_bw"), size);
            let name = format!("{operation}, {title}");
            let mut cell = Cell::new(Part::Busy, name, Unit::MibPerSecond, Tool::Urxe, &words);
            cell.loops = usize::from(busy);
            cells.push(cell);
        }
    }
    for (title, busy) in [("idle target", false), ("busy target", true)] {
        let name = format!("read latency, {title}");
        let words = "ib_read_lat -s 64 -n 10000";
        let mut cell = Cell::new(Part::Busy, name, Unit::Microseconds, Tool::Urxe, words);
        cell.loops = usize::from(busy);
        cells.push(cell);
    }
    cells
}

fn loaded() -> Vec<Cell> {
    let cell = |name: &str, unit, tool, words: &str| {
        let mut cell = Cell::new(Part::Loaded, name, unit, tool, words);
        cell.loops = 4;
        cell.two_hosts = true;
        cell
    };
    let mut cells = vec![cell("TCP, iperf3", Unit::MibPerSecond, Tool::Iperf, "1G")];
    for operation in OPERATIONS {
        let words = format!("ib_{operation}_bw -s 65536 -n 16384");
        cells.push(cell(operation, Unit::MibPerSecond, Tool::Urxe, &words));
    }
    let latency = |name: &str, tool, words: &str| cell(name, Unit::Microseconds, tool, words);
    cells.push(latency(
        "UDP ping-pong, blocking",
        Tool::Udp,
        "blocking 64 5000",
    ));
    for operation in OPERATIONS {
        let words = format!("ib_{operation}_lat -s 64 -n 5000");
        cells.push(latency(&format!("{operation} latency"), Tool::Urxe, &words));
    }
    cells
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
        assert_eq!(bytes(Tool::Iperf, "2G"), Some(2 << 30));
        assert_eq!(bytes(Tool::Urxe, "ib_atomic_lat -n 20000"), None);
    }

    #[test]
    fn goals_refer_to_existing_cells() {
        let cells = cells(&[]);
        for goal in GOALS {
            for name in [goal.of, goal.to] {
                let is_it = |cell: &Cell| cell.part == goal.part && cell.name == name;
                assert!(cells.iter().any(is_it), "{name}");
            }
        }
    }
}
