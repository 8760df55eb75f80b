//! `--bench`: rxe to rxe and urxe to urxe in one guest, the same perftest commands in turn.
//!
//! An emulated machine says little about absolute speed. The ratio of two things that it runs in turn
//! says more.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Result};
use super::plan::{Cell, Group, Judge, Kind};

/// How often each command runs with each provider; the median counts.
const ROUNDS: usize = 3;

/// The pairs of hosts, by the word in the cells' names.
const PAIRS: [(&str, [&str; 2]); 2] = [("rxe", ["rxe1", "rxe2"]), ("urxe", ["urxe1", "urxe2"])];

/// Program, size, iterations, and what is measured.
const COMMANDS: &[(&str, u32, u32, Measure)] = &[
    ("ib_write_bw", 64, 20_000, Measure::Rate),
    ("ib_write_bw", 4096, 5000, Measure::Bandwidth),
    ("ib_write_bw", 65_536, 1000, Measure::Bandwidth),
    ("ib_read_bw", 64, 10_000, Measure::Rate),
    ("ib_read_bw", 4096, 5000, Measure::Bandwidth),
    ("ib_read_bw", 65_536, 1000, Measure::Bandwidth),
    ("ib_send_bw", 64, 20_000, Measure::Rate),
    ("ib_send_bw", 4096, 5000, Measure::Bandwidth),
    ("ib_send_bw", 65_536, 1000, Measure::Bandwidth),
    ("ib_send_lat", 64, 3000, Measure::Latency),
    ("ib_write_lat", 64, 3000, Measure::Latency),
    ("ib_read_lat", 64, 3000, Measure::Latency),
    ("ib_atomic_lat", 8, 3000, Measure::Latency),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// MB/s, the fourth column of perftest's line.
    Bandwidth,
    /// Millions of messages a second, the fifth.
    Rate,
    /// The typical microseconds, the fifth.
    Latency,
}

impl Measure {
    fn column(self) -> usize {
        match self {
            Self::Bandwidth => 3,
            Self::Rate | Self::Latency => 4,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "MB/s",
            Self::Rate => "Mmsg/s",
            Self::Latency => "us",
        }
    }
}

fn name(program: &str, size: u32, pair: &str, round: usize) -> String {
    format!("{program}/{size}/{pair}/{round}")
}

/// What to run.
pub(crate) fn groups() -> Vec<Group> {
    let mut cells = Vec::new();
    for (program, size, iterations, _) in COMMANDS {
        for round in 0..ROUNDS {
            for (pair, [server, client]) in PAIRS {
                let name = name(program, *size, pair, round);
                let atomic = program.contains("atomic");
                let of_size = if atomic {
                    String::new()
                } else {
                    format!("-s {size}")
                };
                let command =
                    format!("{program} -d {{device}} -x {{gid}} -F -n {iterations} {of_size}");
                cells.push(Cell {
                    line: format!("{name}\t{server}\t{client}\t{command}"),
                    name,
                });
            }
        }
    }
    let raw = |name: &'static str, options: &str| Cell {
        name: name.into(),
        line: format!("{name}\turxe1\turxe2\tbash /tmp/raw.sh {options}"),
    };
    cells.push(raw("raw-udp", "udp"));
    cells.push(raw("raw-tcp", "tcp"));
    vec![Group {
        name: "bench",
        kind: Kind::Programs,
        judge: Judge::Measured,
        sides: ["rxe1", "urxe1"],
        ip: "v4",
        netem: "",
        lanes: 1,
        about: "perftest, rxe to rxe and urxe to urxe in turn",
        cells,
    }]
}

/// Prints what was measured.
pub(crate) fn print(results: &Path) -> Result<()> {
    let file = results.join("bench");
    let text = fs::read_to_string(&file).at(&file)?;
    let lines: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('\t');
            Some((fields.next()?, fields.nth(2)?))
        })
        .collect();
    println!(
        "\n{:<14} {:>6} {:>7} {:>10} {:>10} {:>6}",
        "program", "bytes", "unit", "rxe", "urxe", "ratio"
    );
    for (program, size, _, measure) in COMMANDS {
        let value = |pair: &str| {
            let values = (0..ROUNDS).filter_map(|round| {
                let line = lines.get(name(program, *size, pair, round).as_str())?;
                line.split_whitespace().nth(measure.column())?.parse().ok()
            });
            median(values.collect())
        };
        let (rxe, urxe) = (value("rxe"), value("urxe"));
        let show = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
        let ratio = rxe.zip(urxe).map(|(rxe, urxe)| match measure {
            Measure::Latency => rxe / urxe,
            Measure::Bandwidth | Measure::Rate => urxe / rxe,
        });
        println!(
            "{program:<14} {size:>6} {:>7} {:>10} {:>10} {:>6}",
            measure.unit(),
            show(rxe),
            show(urxe),
            ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
        );
    }
    for raw in ["raw-udp", "raw-tcp"] {
        println!("{raw}: {}", lines.get(raw).unwrap_or(&"-"));
    }
    println!("A ratio above 1 means that urxe is faster.");
    Ok(())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
