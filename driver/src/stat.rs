//! The counters of the urxe processes of this user, for `urxe stat` and for the files that
//! `urxe run` shows as sysfs.
//!
//! A process reports its counters as JSON, so that a command of another version can read them.

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

/// The counters of one process since it started.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct Report {
    /// The program's name.
    pub program: String,
    /// A random number of the process. Process IDs do not distinguish processes of other PID
    /// namespaces: those that cannot be seen are all 0.
    #[serde(default)]
    pub instance: u64,
    /// The counters of each device, by its name.
    pub devices: BTreeMap<String, DeviceReport>,
    /// Counters that belong to no device: system calls, port sharing, injected faults.
    pub process: Counts,
}

/// The counters of one device in one process. A device that the process never used has no entry.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(default)]
pub struct DeviceReport {
    /// The counters below `ports/1/counters` in sysfs.
    pub port: Counts,
    /// Counters by the names of the kernel's rxe.
    pub hw: Counts,
    /// Counters by the names of NIC vendors' diagnostics.
    pub diagnostic: Counts,
    /// Counters by urxe's own names.
    pub transport: Counts,
}

impl DeviceReport {
    /// Returns the groups, each with its name.
    pub fn groups(&self) -> [(&'static str, &Counts); 4] {
        [
            ("port", &self.port),
            ("hw", &self.hw),
            ("diagnostic", &self.diagnostic),
            ("transport", &self.transport),
        ]
    }

    /// Adds the counters of another process. Sums wrap around.
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

    /// Returns the report of a device for which nothing was counted: all counters are 0.
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

/// A process that reported its counters.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Process {
    /// The process ID; 0 if the process is in a PID namespace that cannot be seen from here.
    pub pid: u32,
    /// The report of the process.
    #[serde(flatten)]
    pub report: Report,
}

/// The answers of all processes to one request for their counters.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Survey {
    /// The processes that answered, ordered by process ID.
    pub processes: Vec<Process>,
    /// The number of processes that did not answer: those of another user, stopped ones, or those
    /// with a version of urxe that cannot answer.
    pub silent: usize,
}

/// Requests the counters of all urxe processes of this user in this network namespace. Waits for
/// answers for `patience` at most.
///
/// # Errors
/// The system's error when a Unix socket cannot be created.
pub fn survey(patience: Duration) -> io::Result<Survey> {
    let answers = urxe_net::query(patience)?;
    let mut survey = Survey {
        processes: Vec::new(),
        silent: answers.unanswered,
    };
    for answer in answers.received {
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

/// Receives the counters of processes of this user when they end.
#[derive(Debug)]
pub struct Farewells(urxe_net::Listener);

impl Farewells {
    /// Creates a receiver. `None` when too many exist.
    ///
    /// # Errors
    /// The system's error when a Unix socket cannot be created.
    pub fn listen() -> io::Result<Option<Farewells>> {
        Ok(urxe_net::Listener::new()?.map(Farewells))
    }

    /// Returns a descriptor that is readable when a process has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Returns processes that have ended, with their counters; more may be pending.
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

/// Sends the counters of this process, which is about to end, to all [`Farewells`].
///
/// The process may end in the handler of a signal that interrupted a thread with locks of urxe. So
/// another thread adds the counters up, and this one waits for it for 100 ms at most.
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
    if let Err(error) = urxe_net::send_to_listeners(from_another_thread) {
        tracing::debug!(%error, "nobody is told what was counted");
    }
}

/// Returns the counters of this process.
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

/// Returns the counters of this process as JSON, the answer to a request of another process.
pub(crate) fn answer() -> Vec<u8> {
    serde_json::to_vec(&report()).expect("names and numbers are JSON")
}

fn counts(readings: Readings) -> Counts {
    let own = |(name, count): (&str, u64)| (name.to_owned(), count);
    readings.into_iter().map(own).collect()
}

/// Returns the name under which this program was started.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
