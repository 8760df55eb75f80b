//! Unmodified programs.

use super::{Cell, Group, Kind, clean};

/// Debian's own programs.
pub(super) fn programs(name: &'static str, ip: &'static str) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        ..clean(
            name,
            ip,
            "unmodified programs: rdma-core's examples and perftest",
        )
    };
    let mut add = |name: &str, command: &str| {
        for (server, client, who) in [("a", "b", "rxe-serves"), ("b", "a", "urxe-serves")] {
            let name = format!("{name}/{who}");
            group.cells.push(Cell {
                line: format!("{name}\t{server}\t{client}\t{command}"),
                name,
            });
        }
    };
    add("ibv_rc_pingpong", "ibv_rc_pingpong -d {device} -g {gid}");
    add(
        "ibv_rc_pingpong-events",
        "ibv_rc_pingpong -d {device} -g {gid} -e -s 20000 -n 200",
    );
    for operation in ["write", "read", "send", "atomic"] {
        for (form, more) in [("bw", "-n 500"), ("lat", "-n 500")] {
            let command = format!("ib_{operation}_{form} -d {{device}} -x {{gid}} -F {more}");
            add(&format!("ib_{operation}_{form}"), &command);
        }
    }
    for operation in ["write", "read", "send"] {
        let command = format!("ib_{operation}_bw -d {{device}} -x {{gid}} -F -a -n 20");
        add(&format!("ib_{operation}_bw-all-sizes"), &command);
    }
    let both_ways = "ib_write_bw -d {device} -x {gid} -F -b -n 200";
    add("ib_write_bw-both-ways", both_ways);
    add("ib_send_bw-both-ways", &both_ways.replace("write", "send"));
    group
}
