//! Deliberate errors, compared with the outcome between two rxe devices.

use super::group::{Expectation, Group, both, clean};

const RECEIVING: &[&str] = &["send", "send-imm", "write-imm"];
const MEMORY: &[&str] = &["write", "write-imm", "read", "cas", "fadd"];

/// The errors with their operations on a reliable connection.
const RELIABLE: &[(&str, &[&str])] = &[
    ("no-receive", RECEIVING),
    ("late-receive", RECEIVING),
    ("short-receive", &["send", "send-imm"]),
    ("bad-receive-key", &["send", "send-imm"]),
    ("bad-rkey", MEMORY),
    ("bad-rkey-empty", &["write", "read"]),
    ("out-of-bounds", MEMORY),
    ("no-permission", MEMORY),
    ("qp-no-permission", MEMORY),
    ("wrong-pd", MEMORY),
    ("misaligned", &["cas", "fadd"]),
    ("peer-gone", &["send", "write", "read", "fadd"]),
    ("peer-in-error", &["send", "write", "read", "fadd"]),
    ("destroyed-in-flight", &["send", "write", "read"]),
    ("bad-lkey", &["send", "write", "read", "fadd"]),
    ("local-out-of-bounds", &["send", "write", "read"]),
    ("local-no-write", &["read", "fadd"]),
];

/// The errors of remote memory behind a memory window.
const WINDOW: &[(&str, &[&str])] = &[
    ("bad-rkey", MEMORY),
    ("out-of-bounds", MEMORY),
    ("no-permission", MEMORY),
    ("invalidated", MEMORY),
];

/// The errors on an unreliable connection, where the peer does not report errors.
const UNRELIABLE: &[(&str, &[&str])] = &[
    ("no-receive", RECEIVING),
    ("short-receive", &["send", "send-imm"]),
    ("bad-receive-key", &["send", "send-imm"]),
    ("bad-rkey", &["write", "write-imm"]),
    ("out-of-bounds", &["write", "write-imm"]),
    ("no-permission", &["write", "write-imm"]),
    ("qp-no-permission", &["write", "write-imm"]),
    ("wrong-pd", &["write", "write-imm"]),
    ("peer-gone", &["send", "write"]),
    ("peer-in-error", &["send", "write"]),
    ("bad-lkey", &["send", "write"]),
    ("local-out-of-bounds", &["send", "write"]),
];

/// Returns the group of all errors.
pub(super) fn errors(ip: &'static str) -> Group {
    let mut group = Group {
        expectation: Expectation::Reference,
        // The cells mostly wait, so several run concurrently.
        lanes: 4,
        ..clean(
            "errors-v4",
            ip,
            "deliberate errors, compared with rxe to rxe",
        )
    };
    add(&mut group, "", RELIABLE, "");
    add(&mut group, "window/", WINDOW, " window=2");
    add(&mut group, "uc/", UNRELIABLE, " transport=uc");
    group
}

fn add(group: &mut Group, prefix: &str, kinds: &[(&str, &[&str])], more: &str) {
    for (error, operations) in kinds {
        for op in *operations {
            // A message of one packet, and one of four.
            let sizes: &[usize] = match *op {
                "cas" | "fadd" => &[8],
                _ if *error == "destroyed-in-flight" => &[40_000_000],
                _ => &[100, 4000],
            };
            for size in sizes {
                let name = format!("{prefix}{error}/{op}/{size}");
                // rxe does not complete some requests, for which a short limit is sufficient.
                let limit = if error.contains("local") || error.contains("lkey") {
                    3
                } else {
                    10
                };
                let arguments =
                    format!("op={op} size={size} mtu=1024 error={error} limit={limit}{more}");
                both(&mut group.cells, &name, &arguments);
            }
        }
    }
}
