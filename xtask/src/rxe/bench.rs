//! `--bench`: the same perftest commands over rxe and over urxe in one guest, in turn.
//!
//! Absolute speed in an emulated machine means little. The ratio of two programs that run in turn
//! is meaningful.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Result};
use super::plan::{Expectation, Group, Kind, programs_between};

/// The number of runs of each command with each provider; the median is reported.
const ROUNDS: usize = 3;

/// The measured providers, by their word in cell names, with their hosts.
const PAIRS: [(&str, [&str; 2]); 3] = [
    ("rxe", ["rxe1", "rxe2"]),
    ("urxe", ["urxe1", "urxe2"]),
    ("udp", ["urxe1", "urxe2"]),
];

/// Program, size, iterations, and measured quantity.
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
    ("ib_send_lat", 64, 3000, Measure::OneWay),
    ("ib_write_lat", 64, 3000, Measure::OneWay),
    ("ib_read_lat", 64, 3000, Measure::RoundTrip),
    ("ib_atomic_lat", 8, 3000, Measure::RoundTrip),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// Bandwidth in MB/s, column 4 of perftest's row.
    Bandwidth,
    /// Message rate in 10^6 per second, column 5.
    Rate,
    /// Median one-way latency of a ping-pong in microseconds, column 5.
    OneWay,
    /// Median round trip of a request in microseconds, column 5.
    RoundTrip,
}

impl Measure {
    fn column(self) -> usize {
        match self {
            Self::Bandwidth => 3,
            Self::Rate | Self::OneWay | Self::RoundTrip => 4,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "MiB/s",
            Self::Rate => "Mmsg/s",
            Self::OneWay | Self::RoundTrip => "us",
        }
    }

    /// Returns the ratio in which `value` is better than `other`.
    fn ratio(self, value: f64, other: f64) -> f64 {
        match self {
            Self::Bandwidth | Self::Rate => value / other,
            Self::OneWay | Self::RoundTrip => other / value,
        }
    }

    /// Returns the most similar UDP program.
    fn over_udp(self, size: u32, iterations: u32) -> String {
        match self {
            Self::Bandwidth | Self::Rate => format!("/tmp/udp stream {size} {iterations}"),
            Self::OneWay | Self::RoundTrip => format!("/tmp/udp pingpong {size} {iterations}"),
        }
    }
}

fn name(program: &str, size: u32, pair: &str, round: usize) -> String {
    format!("{program}/{size}/{pair}/{round}")
}

/// Returns the cells: each command in turn with each of [`PAIRS`].
pub(crate) fn groups() -> Vec<Group> {
    let mut cells = Vec::new();
    for (program, size, iterations, measure) in COMMANDS {
        for round in 0..ROUNDS {
            for (pair, [server, client]) in PAIRS {
                let name = name(program, *size, pair, round);
                let perftest = format!("{program} -d {{device}} -x {{gid}} -F -n {iterations}");
                let command = if pair == "udp" {
                    measure.over_udp(*size, *iterations)
                } else if program.contains("atomic") {
                    perftest
                } else {
                    format!("{perftest} -s {size}")
                };
                let ask = format!("{command} {{host}}");
                cells.push(programs_between(
                    name,
                    [server, client],
                    "1",
                    &command,
                    &ask,
                ));
            }
        }
    }
    vec![Group {
        name: "bench",
        kind: Kind::Programs,
        expectation: Expectation::Measured,
        sides: ["rxe1", "urxe1"],
        ip: "v4",
        netem: "",
        lanes: 1,
        about: "perftest, rxe to rxe and urxe to urxe in turn, and UDP alone",
        cells,
    }]
}

/// Prints the results.
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
        "\n{:<14} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "program", "bytes", "unit", "rxe", "urxe", "udp", "urxe:rxe", "urxe:udp"
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
        // The UDP ping-pong reports round trips.
        let udp = value("udp").map(|udp| match measure {
            Measure::OneWay => udp / 2.0,
            _ => udp,
        });
        let show = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
        let ratio = |other: Option<f64>| {
            let ratio = urxe
                .zip(other)
                .map(|(urxe, other)| measure.ratio(urxe, other));
            ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
        };
        println!(
            "{program:<14} {size:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
            measure.unit(),
            show(rxe),
            show(urxe),
            show(udp),
            ratio(rxe),
            ratio(udp)
        );
    }
    println!("A ratio above 1 means that urxe is faster. Latencies are medians.");
    Ok(())
}

/// Returns the median, or none if there are no values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
