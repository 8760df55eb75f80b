//! Transfers over impaired links.

use super::group::{Expectation, Extent, Group, RC, both, clean, one};

/// The impairments of the link: name, netem arguments, description.
pub(super) const IMPAIRMENTS: [(&str, &str, &str); 6] = [
    ("loss", "loss 1%", "1% of packets lost"),
    (
        "reorder",
        "delay 3ms reorder 25%",
        "packets delayed by 3 ms, and overtaken by a quarter of them",
    ),
    ("duplicate", "duplicate 5%", "5% of packets sent twice"),
    ("corrupt", "corrupt 1%", "one bit wrong in 1% of packets"),
    ("delay", "delay 20ms", "20 ms of delay each way"),
    (
        "storm",
        "delay 20ms 5ms loss 1% duplicate 1% corrupt 1% reorder 5%",
        "all of these together",
    ),
];

/// Returns the group of an impaired link.
pub(super) fn impaired(
    name: &'static str,
    netem: &'static str,
    about: &'static str,
    extent: Extent,
) -> Group {
    let mut group = Group {
        expectation: Expectation::Lossy,
        netem,
        // The cells mostly wait, so several run concurrently.
        lanes: 4,
        ..clean(name, "v4", about)
    };
    let cells = &mut group.cells;
    for op in RC {
        for (size, count) in [(1, 50), (1025, 50), (64 << 10, 10), (1 << 20, 1)] {
            if extent == Extent::Quick && size > 64 << 10 {
                continue;
            }
            // Each loss costs rxe a round trip and its timeout, so this takes minutes.
            let arguments = format!("op={op} mtu=1024 size={size} count={count} depth=8 limit=270");
            both(cells, &format!("{op}/{size}"), &arguments);
        }
        let arguments = format!("op={op} mtu=1024 size=20000 count=20 depth=8 limit=120");
        one(cells, &format!("{op}/both-ways/20000"), '2', &arguments);
    }
    for op in ["cas", "fadd"] {
        let arguments = format!("op={op} mtu=1024 size=8 count=100 depth=8 limit=120");
        both(cells, op, &arguments);
    }
    group
}
