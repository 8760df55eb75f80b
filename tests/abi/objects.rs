//! The objects behind the C ABI, by a C program: compiled with our headers and with rdma-core's, run
//! with our library.

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
fn queries_answer_within_their_tables_and_refuse_beyond() {
    passes("queries");
}

#[test]
fn memory_is_registered_only_where_it_is_and_keeps_its_domain() {
    passes("memory");
}

#[test]
fn objects_that_cannot_be_are_refused_and_those_in_use_are_kept() {
    passes("creation");
}

#[test]
fn refused_transitions_change_nothing() {
    passes("transitions");
}

#[test]
fn posting_stops_at_the_request_that_is_wrong() {
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
fn forked_child_leaves_its_parent_s_connections_alone_and_makes_its_own() {
    passes("forks");
}

#[test]
fn threads_share_a_queue_pair_and_its_completion_queue() {
    passes("threads");
}

#[test]
fn messages_say_what_is_wrong_unless_they_are_turned_off() {
    let Some([program, _]) = PROGRAM.compiled() else {
        return;
    };
    let said = |log: Option<&str>| {
        let mut command = Command::new(&program);
        command
            .arg("creation")
            .env("LD_LIBRARY_PATH", library::under_both_names())
            .env_remove("URXE_LOG");
        if let Some(log) = log {
            command.env("URXE_LOG", log);
        }
        let output = command.output().expect("the program runs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let usual = said(None);
    assert!(
        usual.contains("urxe: queue pair: vendor-specific queue pairs are not supported"),
        "{usual}"
    );
    assert_eq!(said(Some("off")), "");
    assert!(said(Some("urxe=loud")).contains("URXE_LOG"));
}
