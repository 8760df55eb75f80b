//! Unmodified programs.

use super::group::{Cell, Extent, Group, Kind, clean, serve};

/// Debian's programs.
pub(super) fn programs(name: &'static str, ip: &'static str, extent: Extent) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        ..clean(
            name,
            ip,
            "unmodified programs: rdma-core's examples and perftest",
        )
    };
    let mut add = |name: &str, command: &str| {
        serve(
            &mut group.cells,
            name,
            "1",
            command,
            &format!("{command} {{host}}"),
        );
    };
    for transport in ["rc", "uc", "ud", "srq"] {
        let program = format!("ibv_{transport}_pingpong");
        let command = format!("{program} -d {{device}} -g {{gid}}");
        add(&program, &command);
        // A datagram is at most as long as the MTU; ibv_srq_pingpong has 16 queue pairs.
        let size = if transport == "ud" { 1000 } else { 20_000 };
        let events = format!("{command} -e -s {size} -n 200");
        add(&format!("{program}-events"), &events);
    }
    for operation in ["write", "read", "send", "atomic"] {
        for form in ["bw", "lat"] {
            let program = format!("ib_{operation}_{form}");
            let command = format!("{program} -d {{device}} -x {{gid}} -F -n 500");
            add(&program, &command);
        }
    }
    for operation in ["write", "send"] {
        for form in ["bw", "lat"] {
            let program = format!("ib_{operation}_{form}");
            // UC does not retransmit packets dropped by a full queue, and the programs would wait
            // for them.
            let depth = if form == "bw" { " -t 16" } else { "" };
            let command =
                format!("{program} -d {{device}} -x {{gid}} -F -n 500 -c UC -s 4096{depth}");
            add(&format!("{program}-uc"), &command);
        }
    }
    for form in ["bw", "lat"] {
        let depth = if form == "bw" { " -t 16" } else { "" };
        let program = format!("ib_send_{form}");
        let command = format!("{program} -d {{device}} -x {{gid}} -F -n 500 -c UD -s 1024{depth}");
        add(&format!("{program}-ud"), &command);
    }
    for operation in ["write", "read", "send"] {
        let command = format!("ib_{operation}_bw -d {{device}} -x {{gid}} -F -a -n 5");
        add(&format!("ib_{operation}_bw-all-sizes"), &command);
    }
    let both_ways = "ib_write_bw -d {device} -x {gid} -F -b -n 200";
    add("ib_write_bw-both-ways", both_ways);
    add("ib_send_bw-both-ways", &both_ways.replace("write", "send"));
    if extent == Extent::Quick {
        const LONG: [&str; 3] = ["-events", "-all-sizes", "-both-ways"];
        let is_long = |cell: &Cell| LONG.iter().any(|word| cell.name.contains(word));
        group.cells.retain(|cell| !is_long(cell));
    }
    group
}
