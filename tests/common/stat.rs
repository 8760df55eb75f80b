//! Runs `urxe stat`.

use std::time::Duration;

use serde_json::Value;

use super::run::run;
use super::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `urxe stat --json` with more arguments.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn stat(runner: &Runner, arguments: &[&str]) -> Value {
    let mut command = runner.urxe();
    command.args(["stat", "--json"]).args(arguments);
    let text = run("urxe stat", command, LIMIT).success().stdout;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the processes in a report.
pub fn processes(survey: &Value) -> &[Value] {
    survey["processes"].as_array().expect("a list")
}

/// Returns the number of messages that a process has received.
pub fn received(process: &Value) -> u64 {
    let count = &process["devices"]["urxe_lo"]["hw"]["rdma_recvs"];
    count.as_u64().unwrap_or(0)
}
