//! Transfers on a clean link, in all sizes and path MTUs.

use super::group::{Cell, Extent, Group, RC, both, clean, one};

const MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// The operations of an unreliable connection.
const UC: [&str; 4] = ["send", "send-imm", "write", "write-imm"];

/// Lost packets are not retransmitted, so the time limit is short.
const UNRELIABLE: &str = " transport=uc limit=15";

/// The operations of UD.
const UD: [&str; 2] = ["send", "send-imm"];

/// The operations that consume a receive.
const RECEIVING: [&str; 3] = ["send", "send-imm", "write-imm"];

/// Reliable connections: every operation and form.
pub(super) fn reliable(name: &'static str, ip: &'static str, extent: Extent) -> Group {
    let mut group = clean(name, ip, "RC: data on a clean link, compared byte for byte");
    let cells = &mut group.cells;
    for op in RC {
        messages(cells, op, "", |mtu, size| {
            let everyday = mtu == 1024 && size <= 64 << 10 || mtu == 4096 && size == 1 << 20;
            let sample = everyday && ip == "v4" || mtu == 1024 && size == mtu + 1;
            extent == Extent::Full || sample
        });
        forms(cells, op, "");
        for (size, mtu, count, depth) in [(64, 1024, 500, 100), (5000, 1024, 200, 64)] {
            let arguments = format!("op={op} mtu={mtu} size={size} count={count} depth={depth}");
            both(cells, &format!("{op}/in-flight-{depth}/{size}"), &arguments);
        }
        for size in [1, 3000, 100_000] {
            let arguments = format!("op={op} mtu=1024 size={size} count=50 depth=10");
            one(cells, &format!("{op}/both-ways/{size}"), '2', &arguments);
        }
    }
    for op in RECEIVING {
        for size in [0, 3000] {
            let arguments = format!("op={op} mtu=1024 size={size} count=20 depth=4 srq=1");
            both(cells, &format!("{op}/shared-receives/{size}"), &arguments);
        }
    }
    for op in ["cas", "fadd"] {
        for mtu in MTUS {
            for depth in [1, 32] {
                let arguments = format!("op={op} mtu={mtu} size=8 count=100 depth={depth}");
                both(
                    cells,
                    &format!("{op}/mtu-{mtu}/in-flight-{depth}"),
                    &arguments,
                );
            }
        }
        let arguments = format!("op={op} mtu=1024 size=8 count=200 depth=16");
        one(cells, &format!("{op}/both-ways"), '2', &arguments);
    }
    group
}

/// Memory windows: transfers through them, and SEND with invalidate.
pub(super) fn windows(name: &'static str, ip: &'static str) -> Group {
    let mut group = clean(
        name,
        ip,
        "memory windows: data through them, and invalidation",
    );
    let cells = &mut group.cells;
    for window in [1, 2] {
        for op in ["write", "write-imm", "read"] {
            for size in [1, 1025, 64 << 10] {
                let arguments =
                    format!("op={op} mtu=1024 size={size} count=4 depth=4 window={window}");
                both(cells, &format!("type-{window}/{op}/{size}"), &arguments);
            }
        }
        for op in ["cas", "fadd"] {
            let arguments = format!("op={op} mtu=1024 size=8 count=20 depth=4 window={window}");
            both(cells, &format!("type-{window}/{op}"), &arguments);
        }
    }
    for mtu in MTUS {
        for size in [0, mtu, mtu + 1] {
            let arguments = format!("op=send-inv mtu={mtu} size={size}");
            both(cells, &format!("send-inv/mtu-{mtu}/{size}"), &arguments);
        }
    }
    group
}

/// Unreliable connections.
pub(super) fn unreliable(name: &'static str, ip: &'static str, extent: Extent) -> Group {
    let mut group = clean(name, ip, "UC: data on a clean link, compared byte for byte");
    let cells = &mut group.cells;
    for op in UC {
        messages(cells, op, UNRELIABLE, |mtu, size| {
            extent == Extent::Full || mtu == 1024 && [1, 1025, 64 << 10].contains(&size)
        });
        forms(cells, op, UNRELIABLE);
        let arguments = format!("op={op} mtu=1024 size=3000 count=20 depth=4{UNRELIABLE}");
        one(cells, &format!("{op}/both-ways/3000"), '2', &arguments);
    }
    group
}

/// Datagrams, each answered through an address handle created from its completion.
pub(super) fn datagrams(name: &'static str, ip: &'static str) -> Group {
    let mut group = clean(
        name,
        ip,
        "UD: datagrams both ways, with their GRH; the wrong ones are not delivered",
    );
    let cells = &mut group.cells;
    for op in UD {
        for size in [0, 1, 3, 255, 1023, 1024, 1025, 4095, 4096] {
            let arguments = format!("transport=ud op={op} size={size} count=8 depth=4");
            both(cells, &format!("{op}/{size}"), &arguments);
        }
        let arguments = format!("transport=ud op={op} size=100 count=8 depth=4 srq=1");
        both(cells, &format!("{op}/shared-receives/100"), &arguments);
    }
    for error in ["wrong-qkey", "wrong-qpn", "longer-than-port-mtu"] {
        let arguments = format!("transport=ud op=send size=100 count=2 error={error}");
        both(cells, &format!("send/{error}"), &arguments);
    }
    group
}

/// Adds the cells of an operation for the sizes and path MTUs that are `wanted`.
fn messages(cells: &mut Vec<Cell>, op: &str, more: &str, wanted: impl Fn(usize, usize) -> bool) {
    for mtu in MTUS {
        for size in [0, 1, 3, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20, 16 << 20] {
            if !wanted(mtu, size) {
                continue;
            }
            let count = if size <= 64 << 10 { 4 } else { 1 };
            let arguments = format!("op={op} mtu={mtu} size={size} count={count} depth=4{more}");
            both(cells, &format!("{op}/mtu-{mtu}/{size}"), &arguments);
        }
    }
}

/// Adds the cells of an operation with several scatter/gather elements, and inline.
fn forms(cells: &mut Vec<Cell>, op: &str, more: &str) {
    let arguments = format!("op={op} mtu=1024 size=10000 count=4 depth=4 sges=4{more}");
    both(cells, &format!("{op}/scattered/10000"), &arguments);
    if op != "read" {
        let arguments = format!("op={op} mtu=1024 size=63 count=8 depth=4 inline=1{more}");
        both(cells, &format!("{op}/inline/63"), &arguments);
    }
}
