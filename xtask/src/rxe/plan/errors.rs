//! Deliberate errors.

use super::{Group, Judge, both, clean};

const RECEIVING: &[&str] = &["send", "send-imm", "write-imm"];
const MEMORY: &[&str] = &["write", "write-imm", "read", "cas", "fadd"];

/// Errors, and the operations for which each one makes sense on a reliable connection.
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

/// The same for remote memory behind a window.
const WINDOW: &[(&str, &[&str])] = &[
    ("bad-rkey", MEMORY),
    ("out-of-bounds", MEMORY),
    ("no-permission", MEMORY),
    ("invalidated", MEMORY),
];

/// The same on an unreliable connection, where the peer's errors are silent.
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

/// All of them.
pub(super) fn errors(ip: &'static str) -> Group {
    let mut group = Group {
        judge: Judge::Reference,
        // They wait much and work little.
        lanes: 4,
        ..clean(
            "errors-v4",
            ip,
            "deliberate errors, as rxe to rxe shows them",
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
                // Where rxe never completes a request, there is no need to wait long.
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
