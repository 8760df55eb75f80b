//! The objects behind the C ABI, by a C program: compiled with our headers and with rdma-core's,
//! run with our library.

use std::process::Command;

use super::c_program::CProgram;
use super::library;

/// The program of these tests.
const PROGRAM: CProgram = CProgram("objects");

#[track_caller]
fn passes(case: &str) {
    PROGRAM.passes(case);
}

#[test]
fn devices_outlive_the_list_while_they_are_open() {
    passes("devices");
}

#[test]
fn queries_check_their_table_index() {
    passes("queries");
}

#[test]
fn registration_needs_mapped_memory_and_pins_the_domain() {
    passes("memory");
}

#[test]
fn invalid_objects_are_refused_and_used_ones_are_busy() {
    passes("creation");
}

#[test]
fn refused_transitions_change_nothing() {
    passes("transitions");
}

#[test]
fn posting_stops_at_the_invalid_request() {
    passes("posting");
}

#[test]
fn built_requests_are_posted_all_or_none() {
    passes("builders");
}

#[test]
fn destruction_waits_for_events_to_be_acknowledged() {
    passes("notifications");
}

#[test]
fn address_handles_lead_back_to_the_sender() {
    passes("addresses");
}

#[test]
fn forked_child_does_not_affect_its_parents_connections() {
    passes("forks");
}

#[test]
fn threads_share_a_queue_pair_and_its_completion_queue() {
    passes("threads");
}

/// Returns what a case prints on standard error with this value of `URXE_LOG`; `None` without a
/// compiler.
fn messages(case: &str, log: Option<&str>) -> Option<String> {
    let [program, _] = PROGRAM.compiled()?;
    let mut command = Command::new(program);
    command
        .arg(case)
        .env("LD_LIBRARY_PATH", library::under_both_names())
        .env("URXE_DEVICES", "*")
        .env_remove("URXE_LOG");
    if let Some(log) = log {
        command.env("URXE_LOG", log);
    }
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn warnings_name_the_error_unless_disabled() {
    let Some(usual) = messages("creation", None) else {
        return;
    };
    assert!(
        usual.contains("urxe: queue pair: vendor-specific queue pairs are not supported"),
        "{usual}"
    );
    assert_eq!(messages("creation", Some("off")).unwrap_or_default(), "");
    let misspelt = messages("creation", Some("urxe=loud")).unwrap_or_default();
    assert!(misspelt.contains("URXE_LOG"), "{misspelt}");
}

#[test]
fn a_program_that_probes_for_limits_causes_no_message_and_a_repeated_mistake_one() {
    let Some(usual) = messages("probing", None) else {
        return;
    };
    assert_eq!(usual.lines().count(), 1, "{usual}");
    assert!(usual.contains("vendor-specific"), "{usual}");
    let all = messages("probing", Some("debug")).unwrap_or_default();
    let limits = all
        .lines()
        .filter(|line| line.contains("bytes of inline data"));
    assert!(limits.count() > 1, "{all}");
    let mistakes = all.lines().filter(|line| line.contains("vendor-specific"));
    assert_eq!(mistakes.count(), 40, "{all}");
}
