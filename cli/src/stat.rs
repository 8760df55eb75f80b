//! `urxe stat`: shows the counters of this user's urxe processes.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use urxe_driver::stat::{self, Counts, DeviceReport, Process, Survey};

use crate::devices::align;

/// The time to wait for a process's counters. A busy machine may delay an answer that usually takes
/// milliseconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The group of the counters that belong to no device.
const PROCESS: &str = "process";

/// Show the counters of this user's urxe processes
#[derive(clap::Args)]
#[command(
    after_help = "Counters start at zero with each process. Groups: port (as in sysfs), hw (named \
                  as in the kernel's rxe), diagnostic (vendor diagnostics), transport (urxe's \
                  own) and process. Only processes in this network namespace are shown."
)]
pub struct Arguments {
    /// Show only this device
    device: Option<String>,
    /// Include counters that are zero
    #[arg(long)]
    all: bool,
    /// Print one line of JSON per report
    #[arg(long)]
    json: bool,
    /// Repeat every SECONDS, with the rate per second
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "expected a number of seconds above 0, such as 0.5".to_owned())
}

/// Prints the counters, repeatedly with `--watch`.
pub fn stat(arguments: Arguments) -> ExitCode {
    let mut before = None;
    loop {
        let survey = match stat::survey(RESPONSE_TIMEOUT) {
            Ok(survey) => survey,
            Err(error) => {
                eprintln!("urxe stat: cannot query the processes: {error}");
                return ExitCode::FAILURE;
            }
        };
        let now = Instant::now();
        let survey = select(survey, &arguments);
        let text = match arguments.json {
            true => json(&survey),
            false => describe(&survey, before.as_ref()),
        };
        if show(&text, &arguments).is_err() {
            // A failed write means that the reader closed the pipe, which is no error.
            return ExitCode::SUCCESS;
        }
        if !arguments.json {
            eprint!("{}", remarks(&survey, &arguments));
        }
        let Some(pause) = arguments.watch else {
            return ExitCode::SUCCESS;
        };
        std::thread::sleep(pause);
        before = Some((survey, now));
    }
}

fn show(text: &str, arguments: &Arguments) -> io::Result<()> {
    /// Clears the terminal and moves the cursor to its first line.
    const CLEAR: &str = "\x1b[2J\x1b[H";
    let mut out = io::stdout().lock();
    if arguments.watch.is_some() && !arguments.json && out.is_terminal() {
        out.write_all(CLEAR.as_bytes())?;
    }
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Removes the devices and counters that were not requested.
fn select(mut survey: Survey, arguments: &Arguments) -> Survey {
    for process in &mut survey.processes {
        let report = &mut process.report;
        if let Some(wanted) = &arguments.device {
            report.devices.retain(|name, _| name == wanted);
        }
        if !arguments.all {
            let groups = report.devices.values_mut().flat_map(|device| {
                [
                    &mut device.port,
                    &mut device.hw,
                    &mut device.diagnostic,
                    &mut device.transport,
                ]
            });
            for counts in groups.chain([&mut report.process]) {
                counts.retain(|_, count| *count != 0);
            }
        }
    }
    if arguments.device.is_some() {
        let uses = |process: &Process| !process.report.devices.is_empty();
        survey.processes.retain(uses);
    }
    survey
}

fn json(survey: &Survey) -> String {
    let mut text = serde_json::to_string(survey).expect("names and numbers are JSON");
    text.push('\n');
    text
}

/// Returns the notes for standard error.
fn remarks(survey: &Survey, arguments: &Arguments) -> String {
    let mut text = String::new();
    if survey.processes.is_empty() {
        text += match arguments.device {
            Some(_) => "urxe stat: no urxe process of this user uses this device\n",
            None => "urxe stat: no urxe process of this user in this network namespace\n",
        };
    }
    if survey.silent > 0 {
        text += &format!(
            "urxe stat: {} urxe process(es) did not respond: owned by another user, stopped, or of \
             an older version\n",
            survey.silent
        );
    }
    text
}

/// Formats the counters as a table, with rates since `before`.
fn describe(survey: &Survey, before: Option<&(Survey, Instant)>) -> String {
    let mut text = String::new();
    for process in &survey.processes {
        let earlier = before.and_then(|(survey, at)| {
            let instance = process.report.instance;
            let same = |other: &&Process| other.report.instance == instance;
            Some((survey.processes.iter().find(same)?, at.elapsed()))
        });
        text += &format!("{} {}\n", process.pid, printable(&process.report.program));
        for (name, device) in &process.report.devices {
            text += &format!("  {}\n", printable(name));
            let earlier = earlier.map(|(process, elapsed)| {
                let device = process.report.devices.get(name);
                (device.cloned().unwrap_or_default(), elapsed)
            });
            text += &device_table(device, earlier.as_ref());
        }
        let earlier = earlier.map(|(process, elapsed)| (&process.report.process, elapsed));
        text += &table(&rows(PROCESS, &process.report.process, earlier));
    }
    text
}

fn device_table(device: &DeviceReport, earlier: Option<&(DeviceReport, Duration)>) -> String {
    let earlier = |index: usize| {
        earlier.map(|(device, elapsed)| {
            let (_, counts) = device.groups()[index];
            (counts, *elapsed)
        })
    };
    let groups = device.groups().into_iter().enumerate();
    let rows: Vec<_> = groups
        .flat_map(|(index, (group, counts))| rows(group, counts, earlier(index)))
        .collect();
    table(&rows)
}

/// Returns rows of group, counter, value and rate per second.
fn rows(group: &str, counts: &Counts, earlier: Option<(&Counts, Duration)>) -> Vec<Vec<String>> {
    let empty = BTreeMap::new();
    let (before, seconds) = match earlier {
        Some((counts, elapsed)) => (counts, Some(elapsed.as_secs_f64())),
        None => (&empty, None),
    };
    let mut heading = group;
    let row = |(name, count): (&String, &u64)| {
        let came = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        let rate = match seconds {
            Some(seconds) if came > 0 => format!("+{:.0}/s", came as f64 / seconds),
            _ => String::new(),
        };
        let group = std::mem::take(&mut heading).to_owned();
        vec![group, printable(name), count.to_string(), rate]
    };
    counts.iter().map(row).collect()
}

fn table(rows: &[Vec<String>]) -> String {
    let line = |line: String| format!("    {line}\n");
    align(rows).into_iter().map(line).collect()
}

/// Replaces control characters, so that names from other processes cannot control the terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_driver::stat::Report;

    fn counts(list: &[(&str, u64)]) -> Counts {
        let own = |(name, count): &(&str, u64)| ((*name).to_owned(), *count);
        list.iter().map(own).collect()
    }

    fn survey(received: u64) -> Survey {
        let device = DeviceReport {
            port: counts(&[("port_rcv_packets", received), ("symbol_error", 0)]),
            ..DeviceReport::default()
        };
        Survey {
            processes: vec![Process {
                pid: 7,
                report: Report {
                    program: "bad\x1bname".into(),
                    instance: 1,
                    devices: [("urxe_lo".to_owned(), device)].into(),
                    process: counts(&[("wakeups", 3)]),
                },
            }],
            silent: 0,
        }
    }

    fn arguments(device: Option<&str>, all: bool) -> Arguments {
        Arguments {
            device: device.map(str::to_owned),
            all,
            json: false,
            watch: None,
        }
    }

    #[test]
    fn zero_counters_are_shown_only_with_all() {
        let few = describe(&select(survey(5), &arguments(None, false)), None);
        assert!(few.contains("port_rcv_packets") && !few.contains("symbol_error"));
        let all = describe(&select(survey(5), &arguments(None, true)), None);
        assert!(all.contains("symbol_error"));
    }

    #[test]
    fn processes_that_do_not_use_the_device_are_left_out() {
        let none = select(survey(5), &arguments(Some("urxe_eth0"), true));
        assert!(none.processes.is_empty());
        let one = select(survey(5), &arguments(Some("urxe_lo"), true));
        assert_eq!(one.processes.len(), 1);
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        let text = describe(&survey(5), None);
        assert!(text.contains("7 bad?name"), "{text}");
    }

    #[test]
    fn rate_is_the_difference_per_second() {
        let rows = rows(
            "hw",
            &counts(&[("sent_pkts", 300)]),
            Some((&counts(&[("sent_pkts", 100)]), Duration::from_secs(2))),
        );
        assert_eq!(
            rows,
            [["hw", "sent_pkts", "300", "+100/s"]
                .map(String::from)
                .to_vec()]
        );
    }
}
