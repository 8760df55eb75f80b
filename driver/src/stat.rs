//! What the urxe processes of this user counted, for whoever asks: `urxe stat`, and the files that
//! `urxe run` shows as sysfs.
//!
//! A process tells it as JSON, so that a command of another version can read it.

use crate::counters::Readings;
use crate::engine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::time::Duration;
use urxe_net::thread;

/// Counters by name.
pub type Counts = BTreeMap<String, u64>;

/// What one process counted since it started.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct Report {
    /// The program's name.
    pub program: String,
    /// A random number of the process. Process numbers do not tell processes of other PID
    /// namespaces apart: those that cannot be seen are all 0.
    #[serde(default)]
    pub instance: u64,
    /// By the name of the device.
    pub devices: BTreeMap<String, DeviceReport>,
    /// What belongs to no device: system calls, port sharing, injected faults.
    pub process: Counts,
}

/// What a process counted of one device. A device that it never used is not there.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(default)]
pub struct DeviceReport {
    /// As in sysfs, below `ports/1/counters`.
    pub port: Counts,
    /// By the names of the kernel's rxe.
    pub hw: Counts,
    /// By the names of NIC vendors' diagnostics.
    pub diagnostic: Counts,
    /// By urxe's own names.
    pub transport: Counts,
}

impl DeviceReport {
    /// The groups, with their names.
    pub fn groups(&self) -> [(&'static str, &Counts); 4] {
        [
            ("port", &self.port),
            ("hw", &self.hw),
            ("diagnostic", &self.diagnostic),
            ("transport", &self.transport),
        ]
    }

    /// Counts together with another process.
    pub fn add(&mut self, other: &DeviceReport) {
        let groups = [
            (&mut self.port, &other.port),
            (&mut self.hw, &other.hw),
            (&mut self.diagnostic, &other.diagnostic),
            (&mut self.transport, &other.transport),
        ];
        for (mine, others) in groups {
            for (name, count) in others {
                let mine = mine.entry(name.clone()).or_default();
                *mine = mine.wrapping_add(*count);
            }
        }
    }

    /// That of a device of which nobody has counted anything.
    pub fn zero() -> DeviceReport {
        crate::counters::DeviceCounters::default()
            .read(Default::default, 0)
            .into()
    }
}

impl From<crate::counters::DeviceReadings> for DeviceReport {
    fn from(readings: crate::counters::DeviceReadings) -> Self {
        DeviceReport {
            port: counts(readings.port),
            hw: counts(readings.hw),
            diagnostic: counts(readings.diagnostic),
            transport: counts(readings.transport),
        }
    }
}

/// A process that told what it counted.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Process {
    /// Its number; 0 if it is in a PID namespace that cannot be seen from here.
    pub pid: u32,
    /// What it told.
    #[serde(flatten)]
    pub report: Report,
}

/// What came of asking all processes.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Survey {
    /// Those that answered, by their numbers.
    pub processes: Vec<Process>,
    /// How many did not: they are another user's, stopped, or of a urxe that cannot.
    pub silent: usize,
}

/// Asks all urxe processes of this user in this network namespace. Those that have not answered
/// after `patience` are not waited for.
///
/// # Errors
/// When no Unix socket can be had.
pub fn survey(patience: Duration) -> io::Result<Survey> {
    let answers = urxe_net::ask(patience)?;
    let mut survey = Survey {
        processes: Vec::new(),
        silent: answers.silent,
    };
    for answer in answers.given {
        match serde_json::from_slice(&answer.bytes) {
            Ok(report) => survey.processes.push(Process {
                pid: answer.pid,
                report,
            }),
            Err(error) => {
                tracing::debug!(pid = answer.pid, %error, "an answer that makes no sense");
                survey.silent += 1;
            }
        }
    }
    survey.processes.sort_by_key(|process| process.pid);
    Ok(survey)
}

/// Hears what processes of this user counted that end.
#[derive(Debug)]
pub struct Farewells(urxe_net::Listener);

impl Farewells {
    /// Begins to listen. `None` when too many do.
    ///
    /// # Errors
    /// When no Unix socket can be had.
    pub fn listen() -> io::Result<Option<Farewells>> {
        Ok(urxe_net::Listener::new()?.map(Farewells))
    }

    /// Readable when one has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Processes that have ended, and what they counted; there may be more.
    pub fn take(&self) -> Vec<Process> {
        let told = self.0.take().unwrap_or_default().into_iter();
        told.filter_map(|answer| {
            let report = serde_json::from_slice(&answer.bytes).ok()?;
            let pid = answer.pid;
            Some(Process { pid, report })
        })
        .collect()
    }
}

/// This process ends: tells who listens what it counted.
///
/// It may end in the handler of a signal that interrupted a thread with our locks. So another
/// thread adds up, for which this one does not wait long.
pub(crate) fn say_farewell() {
    const PATIENCE: Duration = Duration::from_millis(100);
    let from_another_thread = || {
        let (tell, hear) = mpsc::channel();
        let adding = thread::spawn("urxe-farewell", move || {
            // The receiver is gone when this took longer than it waits.
            let _ = tell.send(answer());
        });
        adding.ok()?;
        hear.recv_timeout(PATIENCE).ok()
    };
    if let Err(error) = urxe_net::tell_listeners(from_another_thread) {
        tracing::debug!(%error, "nobody is told what was counted");
    }
}

/// What this process counted.
pub fn report() -> Report {
    let engine = engine::get();
    let devices = engine.read_devices().into_iter();
    Report {
        program: program(),
        instance: engine.instance(),
        devices: devices
            .map(|(name, readings)| (name, readings.into()))
            .collect(),
        process: counts(engine.read_process()),
    }
}

/// The answer to who asks this process.
pub(crate) fn answer() -> Vec<u8> {
    serde_json::to_vec(&report()).expect("names and numbers are JSON")
}

fn counts(readings: Readings) -> Counts {
    let own = |(name, count): (&str, u64)| (name.to_owned(), count);
    readings.into_iter().map(own).collect()
}

/// The name under which this program was started.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
