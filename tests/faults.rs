//! Reliable connections over a network that loses, duplicates, reorders and corrupts: `urxe demo`,
//! whose two processes verify every byte and every atomic, with faults in what both of them send.

use std::process::{Command, Output, Stdio};

/// The five operations that carry messages, as the demo names them.
const MESSAGES: [&str; 5] = [
    "send",
    "send with immediate",
    "write",
    "write with immediate",
    "read",
];
/// The two that work on a word.
const ATOMICS: [&str; 2] = ["compare and swap", "fetch and add"];

fn demo(faults: &str, options: &[&str]) -> Output {
    let output = Command::new(urxe_tests::built("urxe"))
        .args(["demo", "--skip-pingpong"])
        .args(options)
        .env("URXE_FAULTS", faults)
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null())
        .output();
    output.expect("the command was built with this test")
}

/// Checks that the demo did all of it, with `messages` and `atomics` as its table shows them.
#[track_caller]
fn verified(output: &Output, messages: &str, atomics: &str) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = format!("{}\n{stdout}{stderr}", output.status);
    assert!(output.status.success(), "{said}");
    // Each of the two processes says that it injects faults: without them the test shows nothing.
    assert_eq!(stderr.matches("URXE_FAULTS is set").count(), 2, "{said}");
    let expected = MESSAGES.map(|name| (name, messages)).into_iter();
    for (name, amount) in expected.chain(ATOMICS.map(|name| (name, atomics))) {
        let row = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with("  ") && rest.trim_start().starts_with(amount))
        };
        assert!(
            stdout.lines().any(|line| row(&line)),
            "{name}, {amount}: {said}"
        );
    }
}

#[test]
fn quarter_of_a_gibibyte_of_each_operation_is_exact_under_loss_duplication_and_reordering() {
    let output = demo(
        "drop=2%,dup=2%,reorder=2%,seed=1",
        &[
            "--transfer",
            "256MiB",
            "--atomics",
            "20000",
            "--round-trips",
            "300",
        ],
    );
    verified(&output, "256 MiB", "20000 times");
}

#[test]
fn corrupted_packets_are_not_taken() {
    let output = demo(
        "corrupt=2%,seed=2",
        &[
            "--transfer",
            "16MiB",
            "--atomics",
            "2000",
            "--round-trips",
            "100",
        ],
    );
    verified(&output, "16 MiB", "2000 times");
}

#[test]
fn messages_of_odd_lengths_are_exact_with_small_packets() {
    // More packets a message than the window takes at once, and a last one that needs a pad.
    let output = demo(
        "drop=2%,dup=2%,reorder=2%,seed=3",
        &[
            "--size",
            "100003",
            "--iterations",
            "100",
            "--mtu",
            "256",
            "--atomics",
            "500",
            "--round-trips",
            "50",
        ],
    );
    verified(&output, "9.5 MiB", "500 times");
}

#[test]
fn acknowledgements_may_be_lost_as_requests_may() {
    // Faults in both directions of both processes: each packet goes through them twice.
    let output = demo(
        "drop=3%,dup=3%,reorder=3%,dir=both,seed=4",
        &[
            "--transfer",
            "8MiB",
            "--size",
            "64KiB",
            "--atomics",
            "2000",
            "--round-trips",
            "100",
        ],
    );
    verified(&output, "8 MiB", "2000 times");
}
