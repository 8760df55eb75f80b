//! The counters of the urxe processes of this user, for `urxe stat` and for the files that
//! `urxe run` shows as sysfs.

use crate::path;
pub use crate::path::{Counts, DeviceReport, RESOURCES, Report};
pub use crate::queues::qp::QueuePairReport;
use serde::Serialize;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

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
/// answers for `timeout` at most.
///
/// # Errors
/// The system's error when a Unix socket cannot be created.
pub fn survey(timeout: Duration) -> io::Result<Survey> {
    let answers = urxe_net::query(timeout)?;
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
                tracing::debug!(pid = answer.pid, %error, "an answer is not a report");
                survey.silent += 1;
            }
        }
    }
    survey.processes.sort_by_key(|process| process.pid);
    Ok(survey)
}

/// Receives the counters of processes of this user when they end.
#[derive(Debug)]
pub struct FinalReports(urxe_net::Listener);

impl FinalReports {
    /// Creates a receiver. `None` when too many exist.
    ///
    /// # Errors
    /// The system's error when a Unix socket cannot be created.
    pub fn listen() -> io::Result<Option<FinalReports>> {
        Ok(urxe_net::Listener::new()?.map(FinalReports))
    }

    /// Returns a descriptor that is readable when a process has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Returns processes that have ended, with their counters; more may be pending.
    pub fn take(&self) -> Vec<Process> {
        let reports = self.0.take().unwrap_or_default().into_iter();
        reports
            .filter_map(|answer| {
                let report = serde_json::from_slice(&answer.bytes).ok()?;
                let pid = answer.pid;
                Some(Process { pid, report })
            })
            .collect()
    }
}

/// Returns the counters of this process.
pub fn report() -> Report {
    path::get().report()
}
