//! `urxe stat`: shows the counters of this user's urxe processes.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use urxe_driver::stat::{self, Counts, Process, Survey};

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
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Prints the counters.
pub fn stat(arguments: &Arguments) -> ExitCode {
    let survey = match stat::survey(RESPONSE_TIMEOUT) {
        Ok(survey) => select(survey, arguments),
        Err(error) => {
            eprintln!(
                "urxe stat: cannot query the processes: {error}; the query needs Unix sockets, \
                 `urxe doctor` checks them"
            );
            return ExitCode::FAILURE;
        }
    };
    let text = match arguments.json {
        true => json(&survey),
        false => describe(&survey),
    };
    // A failed write means that the reader closed the pipe, which is no error.
    let _ = io::stdout().write_all(text.as_bytes());
    if !arguments.json {
        eprint!("{}", remarks(&survey, arguments));
    }
    ExitCode::SUCCESS
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
        text += &match &arguments.device {
            Some(device) => format!(
                "urxe stat: no urxe process of this user uses the device {device}; `urxe stat` \
                 shows those of all devices, `urxe devices` the names\n"
            ),
            None => "urxe stat: no urxe process of this user in this network namespace; programs \
                     appear here while they use a device\n"
                .to_owned(),
        };
    }
    if survey.silent > 0 {
        text += &format!("urxe stat: {}\n", explain_silent(survey.silent));
    }
    text
}

/// Explains why processes that own a slot did not respond.
pub fn explain_silent(count: usize) -> String {
    let processes = if count == 1 { "process" } else { "processes" };
    format!(
        "{count} urxe {processes} did not respond: owned by another user, stopped, or of an older \
         version; run this command as their user, or continue them with `kill -CONT`"
    )
}

/// Formats the counters as a table.
fn describe(survey: &Survey) -> String {
    let mut text = String::new();
    for process in &survey.processes {
        text += &format!("{} {}\n", process.pid, printable(&process.report.program));
        for (name, device) in &process.report.devices {
            text += &format!("  {}\n", printable(name));
            let groups = device.groups().into_iter();
            let rows: Vec<_> = groups
                .flat_map(|(group, counts)| rows(group, counts))
                .collect();
            text += &table(&rows);
        }
        text += &table(&rows(PROCESS, &process.report.process));
    }
    text
}

/// Returns rows of group, counter and value.
fn rows(group: &str, counts: &Counts) -> Vec<Vec<String>> {
    let mut heading = group;
    let row = |(name, count): (&String, &u64)| {
        let group = std::mem::take(&mut heading).to_owned();
        vec![group, printable(name), count.to_string()]
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
    use urxe_driver::stat::{DeviceReport, Report};

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
                    ..Report::default()
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
        }
    }

    #[test]
    fn zero_counters_are_shown_only_with_all() {
        let few = describe(&select(survey(5), &arguments(None, false)));
        assert!(few.contains("port_rcv_packets") && !few.contains("symbol_error"));
        let all = describe(&select(survey(5), &arguments(None, true)));
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
        let text = describe(&survey(5));
        assert!(text.contains("7 bad?name"), "{text}");
    }
}
