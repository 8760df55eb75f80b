//! The pairs of programs to measure.

use super::{Cell, Part, Tool, Unit};
use crate::bench::veth::Link;

/// Returns the number of messages of a size for a run of about a second.
fn count(size: u64) -> u64 {
    ((2 << 30) / size).clamp(250, 200_000)
}

fn perftest(program: &str, size: u64) -> String {
    format!("{program} -s {size} -n {}", count(size))
}

/// Returns all cells of the chosen parts.
pub fn cells(chosen: &[Part]) -> Vec<Cell> {
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
        Part::Links => links(),
    }
}

pub(super) const OPERATIONS: [&str; 3] = ["write", "read", "send"];

/// A cell of the model with `memory` bytes for the payload: as much as the messages of the cells
/// with which it is compared. If `message` is not 0, the first packet of each `message` bytes is
/// longer.
fn model(part: Part, name: &str, memory: u64, message: u64) -> Cell {
    let words = format!("4096 {} {memory} {message}", 2_u64 << 30);
    Cell::new(part, name, Unit::MibPerSecond, Tool::Model, &words)
}

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
        model(Part::Goals, "model", size, 0),
        model(Part::Goals, "model, WRITEs", size, size),
        cell("TCP, iperf3", Tool::Iperf, "-l 1M -n 2G"),
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
    let mut cells = vec![
        model(Part::Bandwidth, "model, 1 MiB", 1 << 20, 0),
        model(Part::Bandwidth, "model, 8 MiB", 8 << 20, 0),
    ];
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
    let mut cells = vec![
        model(Part::Scale, "model, 64 KiB", 64 << 10, 0),
        // 4,000 messages of 64 KiB.
        model(Part::Scale, "model, 250 MiB", 250 << 20, 0),
    ];
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

/// The name of the cells of TCP that sends as many bytes with a call as a message of urxe has.
pub(super) const TCP_MESSAGES: &str = "TCP, 64 KiB a call";
/// The name of the cells of TCP with larger calls.
const TCP_LARGE: &str = "TCP, 1 MiB a call";

fn loaded() -> Vec<Cell> {
    let cell = |name: &str, unit, tool, words: &str| {
        let mut cell = Cell::new(Part::Loaded, name, unit, tool, words);
        cell.loops = 4;
        cell.link = Some(Link::default());
        cell
    };
    let tcp = |name, words: &str| cell(name, Unit::MibPerSecond, Tool::Iperf, words);
    let mut cells = vec![
        tcp(TCP_MESSAGES, "-l 64K -n 1G"),
        tcp(TCP_LARGE, "-l 1M -n 1G"),
    ];
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

/// The links of [`Part::Links`], with the number of busy loops beside the programs, and their
/// names.
fn named_links() -> impl Iterator<Item = (String, Link, usize)> {
    let links = [1500, 9000]
        .into_iter()
        .flat_map(|mtu| [false, true].map(|bridged| Link { mtu, bridged }));
    links.flat_map(|link| {
        [0, 4].map(|loops| {
            let bridge = if link.bridged { ", bridge" } else { "" };
            let load = if loops > 0 { ", busy loops" } else { "" };
            (format!("MTU {}{bridge}{load}", link.mtu), link, loops)
        })
    })
}

/// Returns the first part of the names of the cells of [`Part::Links`].
pub(super) fn link_names() -> impl Iterator<Item = String> {
    named_links().map(|(name, _, _)| name)
}

fn links() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (name, link, loops) in named_links() {
        let mut add = |program: &str, tool, words: &str| {
            let name = format!("{name}: {program}");
            let mut cell = Cell::new(Part::Links, name, Unit::MibPerSecond, tool, words);
            cell.link = Some(link);
            cell.loops = loops;
            cells.push(cell);
        };
        add(TCP_MESSAGES, Tool::Iperf, "-l 64K -n 1G");
        add(TCP_LARGE, Tool::Iperf, "-l 1M -n 1G");
        for operation in OPERATIONS {
            add(
                operation,
                Tool::Urxe,
                &format!("ib_{operation}_bw -s 65536 -n 16384"),
            );
        }
    }
    cells
}
