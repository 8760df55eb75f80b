//! What the measurements have to reach.

use super::Part;
use super::cells::{OPERATIONS, TCP_MESSAGES, link_names};

/// A goal for the ratio of two cells.
pub struct Goal {
    pub part: Part,
    pub of: String,
    pub to: String,
    /// The minimum of the ratio in which the first cell is better.
    pub at_least: f64,
}

fn goal(part: Part, of: &str, to: &str, at_least: f64) -> Goal {
    Goal {
        part,
        of: of.to_owned(),
        to: to.to_owned(),
        at_least,
    }
}

/// Returns the project's goals.
pub fn goals() -> Vec<Goal> {
    let mut goals = vec![
        goal(Part::Goals, "write", "model", 0.9),
        goal(Part::Goals, "read", "model", 0.9),
        goal(Part::Goals, "send", "model", 0.9),
        goal(Part::Goals, "write", "model, WRITEs", 0.9),
        goal(Part::Goals, "write", "UDP, GSO stream", 0.60),
        goal(Part::Goals, "read", "UDP, GSO stream", 0.50),
        goal(Part::Goals, "send", "UDP, GSO stream", 0.50),
        goal(Part::Goals, "write", "TCP, iperf3", 0.60),
        goal(Part::Goals, "write", "UCX over TCP", 1.5),
        goal(Part::Goals, "write, MTU 1024", "write", 0.75),
        goal(Part::Goals, "read, MTU 1024", "read", 0.75),
        goal(Part::Goals, "send, MTU 1024", "send", 0.75),
        goal(
            Part::Bandwidth,
            "write 4 KiB, MTU 1024",
            "send 4 KiB, MTU 1024",
            0.5,
        ),
        goal(
            Part::Bandwidth,
            "write 8 MiB, MTU 4096",
            "write 1 MiB, MTU 4096",
            1.0,
        ),
        goal(
            Part::Bandwidth,
            "read 8 MiB, MTU 4096",
            "read 1 MiB, MTU 4096",
            1.0,
        ),
        goal(
            Part::Bandwidth,
            "send 8 MiB, MTU 4096",
            "send 1 MiB, MTU 4096",
            1.0,
        ),
        // The bound of the three above: larger messages do not fit the caches.
        goal(Part::Bandwidth, "model, 8 MiB", "model, 1 MiB", 1.0),
        goal(Part::Latency, "send", "UDP ping-pong", 1.0 / 1.5),
        goal(Part::Latency, "write", "UDP ping-pong", 1.0 / 1.5),
        goal(Part::Latency, "send, 99%", "UDP ping-pong, 99%", 1.0 / 2.0),
        goal(Part::Latency, "write, 99%", "UDP ping-pong, 99%", 1.0 / 2.0),
        // The target of a WRITE polls its memory and does not call verbs.
        goal(Part::Latency, "write", "send", 1.0 / 3.0),
        goal(Part::Rate, "write, lists of 32", "UDP, a call each", 3.0),
        goal(Part::Rate, "write, one by one", "UDP, a call each", 1.5),
        goal(Part::Scale, "256 queue pairs", "1 queue pair", 0.85),
        goal(Part::Scale, "4000 queue pairs", "1 queue pair", 0.85),
        // The bound of the one above.
        goal(Part::Scale, "model, 250 MiB", "model, 64 KiB", 0.85),
        goal(Part::Loss, "write, 1% lost", "write, none lost", 0.3),
        goal(
            Part::Buffer,
            "write, small buffer",
            "write, large buffer",
            0.7,
        ),
        goal(
            Part::Buffer,
            "read, small buffer",
            "read, large buffer",
            0.7,
        ),
        goal(
            Part::Buffer,
            "send, small buffer",
            "send, large buffer",
            0.7,
        ),
        goal(Part::Events, "read, events", "read, polled", 0.8),
        goal(Part::Events, "send, events", "send, polled", 0.8),
        goal(
            Part::Events,
            "send latency, events",
            "UDP ping-pong, blocking",
            1.0 / 1.5,
        ),
        goal(Part::Loaded, "write", TCP_MESSAGES, 0.7),
        goal(Part::Loaded, "read", TCP_MESSAGES, 0.7),
        goal(Part::Loaded, "send", TCP_MESSAGES, 0.7),
        goal(Part::Loaded, "send latency", "UDP ping-pong, blocking", 1.0),
    ];
    for link in link_names() {
        for operation in OPERATIONS {
            let (of, to) = (
                format!("{link}: {operation}"),
                format!("{link}: {TCP_MESSAGES}"),
            );
            goals.push(goal(Part::Links, &of, &to, 1.0));
        }
    }
    goals
}
