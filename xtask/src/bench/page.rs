//! Formats the results as text, as a page and as a chart.

use std::fmt::Write;
use std::fs;

use super::pair::Measured;
use super::plan::{Cell, Goal, Part, Unit, goals};

/// A cell with its results, one per round.
pub(super) struct Row {
    pub(super) cell: Cell,
    pub(super) runs: Vec<Option<Measured>>,
    /// The results of the build to compare with; empty without one.
    pub(super) before: Vec<Option<Measured>>,
}

impl Row {
    fn values(&self) -> Vec<f64> {
        values(&self.runs)
    }
}

fn values(runs: &[Option<Measured>]) -> Vec<f64> {
    runs.iter().flatten().map(|run| run.value).collect()
}

/// Returns the ratios of two cells by round, above 1 where the first is better. A disturbance of a
/// round affects both sides.
fn ratios(unit: Unit, of: &[Option<Measured>], to: &[Option<Measured>]) -> Option<Spread> {
    let ratio = |(of, to): (&Option<Measured>, &Option<Measured>)| {
        Some(unit.ratio(of.as_ref()?.value, to.as_ref()?.value))
    };
    Spread::of(of.iter().zip(to).filter_map(ratio).collect())
}

/// Splits the page at the lines around a generated part: the text before the first, the part, and
/// the text after the second.
pub(super) fn sections<'a>(
    page: &'a str,
    begin: &str,
    end: &str,
) -> Result<(&'a str, &'a str, &'a str), String> {
    let parts = page.split_once(begin).and_then(|(before, rest)| {
        let (part, after) = rest.split_once(end)?;
        Some((before, part, after))
    });
    parts.ok_or_else(|| format!("the page has no line \"{begin}\", or no end of that part"))
}

/// The median, minimum and maximum of some values.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Spread {
            median: f64::midpoint(
                *values.get(values.len().checked_sub(1)? / 2)?,
                *values.get(values.len() / 2)?,
            ),
            least: *values.first()?,
            most: *values.last()?,
        })
    }
}

fn shown(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

/// Returns the tables in Markdown.
pub(super) fn tables(rows: &[Row]) -> String {
    let mut page = String::new();
    for part in Part::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.cell.part == part).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(page, "\n## {}\n", part.title());
        let _ = writeln!(
            page,
            "| | median | range | CPU seconds, both ends | for each GB |\n|---|---|---|---|---|"
        );
        for row in &rows {
            let cpu = Spread::of(row.runs.iter().flatten().map(|run| run.cpu).collect());
            let (name, unit) = (&row.cell.name, row.cell.unit.name());
            let _ = match Spread::of(row.values()) {
                Some(v) => writeln!(
                    page,
                    "| {name} | {} {unit} | {} to {} | {} | {} |",
                    shown(v.median),
                    shown(v.least),
                    shown(v.most),
                    cpu.as_ref().map_or(String::new(), |cpu| shown(cpu.median)),
                    cpu_of_each_gb(&row.cell, cpu.as_ref()),
                ),
                None => writeln!(page, "| {name} | failed | | | |"),
            };
        }
        let goals: Vec<Goal> = goals()
            .into_iter()
            .filter(|goal| goal.part == part)
            .collect();
        if !goals.is_empty() {
            let _ = writeln!(
                page,
                "\n| ratio | median | range | goal | |\n|---|---|---|---|---|"
            );
        }
        for goal in goals {
            if let Some(line) = goal_line(&goal, &rows) {
                let _ = writeln!(page, "{line}");
            }
        }
    }
    page
}

/// Returns the CPU seconds of both ends per 10^9 bytes, for cells that transfer a known amount.
fn cpu_of_each_gb(cell: &Cell, cpu: Option<&Spread>) -> String {
    match (cell.unit, cell.bytes(), cpu) {
        (Unit::MibPerSecond, Some(bytes), Some(cpu)) => shown(cpu.median * 1e9 / bytes as f64),
        _ => String::new(),
    }
}

/// Returns the line of a goal.
fn goal_line(goal: &Goal, rows: &[&Row]) -> Option<String> {
    let find = |name: &str| rows.iter().find(|row| row.cell.name == name);
    let (of, to) = (find(&goal.of)?, find(&goal.to)?);
    let ratios = ratios(of.cell.unit, &of.runs, &to.runs)?;
    let met = if ratios.median >= goal.at_least {
        "met"
    } else {
        "short"
    };
    Some(format!(
        "| {} : {} | {:.2} | {:.2} to {:.2} | {:.2} | {met} |",
        goal.of, goal.to, ratios.median, ratios.least, ratios.most, goal.at_least
    ))
}

/// Returns the table that compares two builds.
///
/// A cell is worse if it is worse in each of at least three rounds; otherwise the difference is
/// within the noise.
pub(super) fn comparison(rows: &[Row]) -> String {
    let mut page =
        "## Compared with the build before\n\n| | before | after | better by | range | |\n\
                    |---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        let unit = row.cell.unit;
        let (Some(before), Some(after), Some(ratio)) = (
            Spread::of(values(&row.before)),
            Spread::of(row.values()),
            ratios(unit, &row.runs, &row.before),
        ) else {
            continue;
        };
        let verdict = match (ratio.least > 1.0, ratio.most < 1.0) {
            _ if row.runs.len() < 3 => "",
            (true, _) => "better",
            (_, true) => "worse",
            _ => "",
        };
        let _ = writeln!(
            page,
            "| {}: {} | {} {unit} | {} {unit} | {:.2} | {:.2} to {:.2} | {verdict} |",
            row.cell.part.title(),
            row.cell.name,
            shown(before.median),
            shown(after.median),
            ratio.median,
            ratio.least,
            ratio.most,
            unit = unit.name(),
        );
    }
    page
}

/// Describes the machine.
pub(super) fn machine() -> String {
    let first = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_default()
            .to_owned();
        line.split_once(':')
            .map_or(line.clone(), |(_, value)| value.trim().to_owned())
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "Linux {}, {}, {} processors, {} of memory; load when it began: {}.",
        kernel.trim(),
        first("/proc/cpuinfo", "model name"),
        std::thread::available_parallelism().map_or(0, usize::from),
        first("/proc/meminfo", "MemTotal"),
        load.split_whitespace()
            .take(3)
            .collect::<Vec<_>>()
            .join(" ")
    )
}

/// Returns a chart with the median of each cell of the parts on 64 KiB bandwidth and on latency.
pub(super) fn chart(rows: &[Row]) -> String {
    const BAR: f64 = 22.0;
    const LEFT: f64 = 190.0;
    const WIDTH: f64 = 420.0;
    let mut body = String::new();
    let mut y = 10.0;
    for part in [Part::Goals, Part::Rate, Part::Latency] {
        let medians: Vec<(&Row, f64)> = rows
            .iter()
            .filter(|row| row.cell.part == part)
            .filter_map(|row| Some((row, Spread::of(row.values())?.median)))
            .collect();
        let most = medians.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let Some((first, _)) = medians.first() else {
            continue;
        };
        let better = if first.cell.unit == Unit::Microseconds {
            "less"
        } else {
            "more"
        };
        y += BAR;
        let _ = writeln!(
            body,
            r#"<text x="10" y="{y}" font-weight="bold">{}, {} ({better} is better)</text>"#,
            part.title(),
            first.cell.unit.name()
        );
        y += BAR / 2.0;
        for (row, value) in medians {
            let width = WIDTH * value / most;
            let ours = row.cell.words.starts_with("ib_");
            let color = if ours { "#2b7a9b" } else { "#b8b8b8" };
            let middle = y + BAR * 0.65;
            let _ = writeln!(
                body,
                r#"<text x="{}" y="{middle}" text-anchor="end">{}</text><rect x="{LEFT}" y="{y}" width="{width:.1}" height="{}" fill="{color}"/><text x="{:.1}" y="{middle}">{}</text>"#,
                LEFT - 8.0,
                row.cell.name,
                BAR - 5.0,
                LEFT + width + 6.0,
                shown(value)
            );
            y += BAR;
        }
    }
    let (width, height) = (LEFT + WIDTH + 80.0, y + 15.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}
