//! Latencies: percentiles, and a histogram drawn in the terminal.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::devices::align;

/// The longest latency that is recorded, in nanoseconds: one minute. Longer ones are recorded as
/// this one.
const LONGEST: u64 = 60_000_000_000;
/// Significant decimal digits.
const DIGITS: u8 = 3;
/// The width of the longest bar.
const WIDTH: u64 = 40;
/// The bounds of the histogram's rows, in each power of ten.
const STEPS: [u64; 3] = [1, 2, 5];

/// The percentiles of the output, with their names.
pub const PERCENTILES: [(&str, f64); 5] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("max", 100.0),
];

/// Recorded latencies.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("valid bounds"))
    }

    pub fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST);
        self.0.saturating_record(nanos);
    }

    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.0.min())
    }

    /// The latency that `percent` per cent of the recorded ones do not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    /// Draws a row for each range from the shortest to the longest latency.
    pub fn draw(&self) -> String {
        let mut rows = Vec::new();
        let largest = self.ranges().map(|(_, _, count)| count).max().unwrap_or(0);
        let digits = largest.to_string().len();
        for (from, to, count) in self.ranges() {
            let eighths = (count * WIDTH * 8).div_ceil(largest.max(1));
            rows.push(vec![
                format!("{:>9}", show(Duration::from_nanos(from))),
                format!("{:>9}", show(Duration::from_nanos(to))),
                format!("{count:>digits$}"),
                bar(eighths),
            ]);
        }
        align(&rows).into_iter().map(|line| line + "\n").collect()
    }

    /// Iterates over the ranges from the shortest to the longest latency, each with its bounds in
    /// nanoseconds and its count. The bounds are 0, and powers of ten times 1, 2 and 5.
    fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let bounds = (2..12).flat_map(|power| STEPS.map(|step| step * 10_u64.pow(power)));
        let bounds: Vec<u64> = std::iter::once(0).chain(bounds).collect();
        let mut ranges: Vec<_> = bounds
            .windows(2)
            .map(|pair| (pair[0], pair[1], 0))
            .collect();
        // Each recorded value counts once, although its bucket may extend beyond a bound.
        for value in self.0.iter_recorded() {
            let after = bounds.partition_point(|bound| *bound <= value.value_iterated_to());
            ranges[after - 1].2 += value.count_at_value();
        }
        let first = ranges.iter().position(|range| range.2 > 0).unwrap_or(0);
        let last = ranges.iter().rposition(|range| range.2 > 0);
        let end = last.map_or(first, |last| last + 1);
        ranges.into_iter().take(end).skip(first)
    }
}

/// Returns a bar that is `eighths` eighths of a character long.
fn bar(eighths: u64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    "█".repeat((eighths / 8) as usize) + PARTS[(eighths % 8) as usize]
}

/// Formats a time with three digits and its unit.
pub fn show(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "us"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let decimals = match value {
        v if unit == "ns" || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(micros: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        for micros in micros {
            latencies.record(Duration::from_micros(micros));
        }
        latencies
    }

    #[test]
    fn percentiles_are_those_of_the_recorded_values() {
        let latencies = recorded(1..=1000);
        for (percent, micros) in [(50.0, 500), (99.0, 990), (100.0, 1000)] {
            let found = latencies.percentile(percent).as_micros() as i64;
            assert!((found - micros).abs() <= 1, "{percent}: {found}");
        }
        assert_eq!(latencies.min().as_micros(), 1);
    }

    #[test]
    fn histogram_has_a_row_for_each_range_up_to_the_longest() {
        let drawn = recorded([12, 12, 12, 12, 60]).draw();
        let rows: Vec<_> = drawn.lines().collect();
        assert_eq!(rows.len(), 3, "{drawn}");
        assert!(rows[0].contains("10.0 us") && rows[0].contains(&"█".repeat(40)));
        assert!(rows[1].trim_end().ends_with('0'), "{drawn}");
        assert!(rows[2].ends_with(&"█".repeat(10)), "{drawn}");
    }

    #[test]
    fn each_value_is_in_one_row_of_the_histogram() {
        // With three significant digits a bucket of such values is 8 ns wide and holds both.
        let mut latencies = recorded([60_000_000]);
        for nanos in 9_990..10_010 {
            latencies.record(Duration::from_nanos(nanos));
        }
        let counts = latencies.ranges().map(|(_, _, count)| count);
        assert_eq!(counts.sum::<u64>(), 21);
    }

    #[test]
    fn no_values_draw_nothing() {
        assert_eq!(recorded([]).draw(), "");
    }

    #[test]
    fn times_have_three_digits() {
        let shown = [999, 1_500, 23_456, 789_000, 2_000_000_000].map(Duration::from_nanos);
        let shown = shown.map(show);
        assert_eq!(shown, ["999 ns", "1.50 us", "23.5 us", "789 us", "2.00 s"]);
    }
}
