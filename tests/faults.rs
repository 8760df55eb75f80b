//! Reliable connections over a network that loses, duplicates, reorders and corrupts packets: `urxe
//! demo`, which verifies every byte and every atomic, with faults at both ends.

use std::process::{Command, Output, Stdio};

/// The demo's names of the operations with messages.
const MESSAGES: [&str; 5] = [
    "send",
    "send with immediate",
    "write",
    "write with immediate",
    "read",
];
/// The demo's names of the atomic operations.
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

/// Checks that the demo's table has these amounts of `messages` and `atomics`.
#[track_caller]
fn verified(output: &Output, messages: &str, atomics: &str) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report = format!("{}\n{stdout}{stderr}", output.status);
    assert!(output.status.success(), "{report}");
    // Both processes must report that they inject faults.
    assert_eq!(stderr.matches("URXE_FAULTS is set").count(), 2, "{report}");
    let expected = MESSAGES.map(|name| (name, messages)).into_iter();
    for (name, amount) in expected.chain(ATOMICS.map(|name| (name, atomics))) {
        let row = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with("  ") && rest.trim_start().starts_with(amount))
        };
        assert!(
            stdout.lines().any(|line| row(&line)),
            "{name}, {amount}: {report}"
        );
    }
}

#[test]
fn transfers_are_exact_under_loss_duplication_and_reordering() {
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
fn corrupted_packets_are_dropped() {
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
    // More packets per message than the window, and a last packet that needs padding.
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
fn lost_acknowledgements_are_recovered() {
    // Faults in both directions of both processes: each packet is subject to them twice.
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
