//! The matrix: which cells there are, and in which groups they run.
//!
//! A transport is a list of operations (`RC`); what else varies - sizes, path MTUs, directions, the
//! weather on the link - is the same for all of them.

/// One thing to try, with one verdict.
pub(crate) struct Cell {
    /// Unique in its group.
    pub(crate) name: String,
    /// Its line in the plan, which the guest's job reads.
    pub(crate) line: String,
}

/// How the cells of a group run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By the agents, one on each side, in step.
    Agents,
    /// As unmodified programs, a server and a client.
    Programs,
}

/// What a group is held against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Each cell knows itself what is right, and rxe's counters must show no fault of ours.
    Strict,
    /// The same, on a link that loses packets: the counters say nothing.
    Lossy,
    /// The outcome of rxe to rxe, which another group finds out.
    Reference,
    /// Nothing: this is the reference.
    Measured,
}

/// Cells that run one after another between the same two sides.
pub(crate) struct Group {
    /// The first part of its cells' full names.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) judge: Judge,
    /// The two sides, as the job's script calls them.
    pub(crate) sides: [&'static str; 2],
    /// `v4` or `v6`: the kind of GID.
    pub(crate) ip: &'static str,
    /// Arguments of netem, in both directions; empty for a clean link.
    pub(crate) netem: &'static str,
    /// One line of the summary.
    pub(crate) about: &'static str,
    pub(crate) cells: Vec<Cell>,
}

/// How much of the matrix to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// A few minutes' worth.
    Quick,
    /// Everything.
    Full,
}

/// The group whose outcomes are the reference for those with [`Judge::Reference`].
pub(crate) const REFERENCE: &str = "errors-rxe";

const MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];
const SIDES: [&str; 2] = ["rxe", "urxe"];

/// Operations of the reliable connection that move data.
const RC: [&str; 5] = ["send", "send-imm", "write", "write-imm", "read"];

/// Who requests: the agents' word for it, and the part of the cell's name.
const REQUESTERS: [(char, &str); 2] = [('a', "rxe-requests"), ('b', "urxe-requests")];

/// Weathers of the link: name, netem, one line.
const WEATHERS: [(&str, &str, &str); 6] = [
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

/// Everything that `extent` asks for.
pub(crate) fn groups(extent: Extent) -> Vec<Group> {
    let mut groups = vec![
        transfers("v4", "v4", extent),
        transfers("v6", "v6", extent),
        Group {
            name: REFERENCE,
            judge: Judge::Measured,
            sides: ["rxe1", "rxe2"],
            // In one kernel an answer is there before the request has returned. Between machines,
            // and between rxe and a process, it is not.
            netem: "delay 2ms",
            about: "rxe to rxe: what both sides of an error see",
            ..errors("v4")
        },
        errors("v4"),
    ];
    if extent == Extent::Quick {
        // Of messages of one packet and of four, those of four.
        for group in groups
            .iter_mut()
            .filter(|group| group.name.contains("errors"))
        {
            group.cells.retain(|cell| !cell.name.contains("/100/"));
        }
    }
    if extent == Extent::Full {
        groups.push(Group {
            name: "errors-v6",
            ..errors("v6")
        });
    }
    for (name, netem, about) in WEATHERS {
        if extent == Extent::Full || name == "storm" {
            groups.push(weather(name, netem, about, extent));
        }
    }
    groups.push(programs("programs-v4", "v4"));
    if extent == Extent::Full {
        groups.push(programs("programs-v6", "v6"));
    }
    groups
}

/// What makes rxe send every packet that it has, to be captured.
pub(crate) fn to_capture() -> Vec<Group> {
    let mut groups = Vec::new();
    for (name, ip) in [("capture-v4", "v4"), ("capture-v6", "v6")] {
        let mut group = clean(name, ip, "rxe to rxe, one message of each kind");
        group.judge = Judge::Measured;
        group.sides = ["rxe1", "rxe2"];
        // One packet, and a first, a middle and a last one.
        for size in [0, 1, 601] {
            for (transport, operations) in [("rc", &RC[..]), ("uc", &RC[..4])] {
                for op in operations {
                    let name = format!("{transport}/{op}/{size}");
                    let arguments = format!("transport={transport} op={op} mtu=256 size={size}");
                    one(&mut group.cells, &name, 'a', &arguments);
                }
            }
            let arguments = format!("op=send-inv mtu=256 size={size}");
            one(
                &mut group.cells,
                &format!("rc/send-inv/{size}"),
                'a',
                &arguments,
            );
        }
        for op in ["cas", "fadd"] {
            let arguments = format!("op={op} mtu=256 size=8");
            one(&mut group.cells, &format!("rc/{op}"), 'a', &arguments);
        }
        for (error, op) in [
            ("no-receive", "send"),
            ("short-receive", "send"),
            ("bad-rkey", "write"),
            ("qp-no-permission", "write"),
        ] {
            let arguments = format!("op={op} mtu=256 size=100 error={error}");
            one(&mut group.cells, &format!("rc/{error}"), 'a', &arguments);
        }
        groups.push(group);
    }
    let mut lossy = clean(
        "capture-loss",
        "v4",
        "rxe to rxe over a link that loses packets",
    );
    lossy.judge = Judge::Measured;
    lossy.sides = ["rxe1", "rxe2"];
    lossy.netem = "loss 5%";
    let arguments = "op=write mtu=256 size=20000 count=10 depth=4";
    one(&mut lossy.cells, "rc/write", 'a', arguments);
    groups.push(lossy);
    let mut datagrams = clean("capture-ud", "v4", "rxe to rxe, datagrams");
    datagrams.kind = Kind::Programs;
    datagrams.judge = Judge::Measured;
    datagrams.sides = ["rxe1", "rxe2"];
    let command = "ibv_ud_pingpong -d {device} -g {gid} -s 65 -n 4";
    datagrams.cells.push(Cell {
        name: "ibv_ud_pingpong".into(),
        line: format!("ibv_ud_pingpong\trxe1\trxe2\t{command}"),
    });
    groups.push(datagrams);
    groups
}

fn clean(name: &'static str, ip: &'static str, about: &'static str) -> Group {
    Group {
        name,
        kind: Kind::Agents,
        judge: Judge::Strict,
        sides: SIDES,
        ip,
        netem: "",
        about,
        cells: Vec::new(),
    }
}

/// Adds a cell for either side as requester, with these arguments for the agents.
fn both(cells: &mut Vec<Cell>, name: &str, arguments: &str) {
    for (requester, word) in REQUESTERS {
        one(cells, &format!("{name}/{word}"), requester, arguments);
    }
}

fn one(cells: &mut Vec<Cell>, name: &str, requester: char, arguments: &str) {
    cells.push(Cell {
        name: name.to_owned(),
        line: format!("{name} requester={requester} {arguments}"),
    });
}

/// Every operation at every size and path MTU, and what else a clean link can show.
fn transfers(name: &'static str, ip: &'static str, extent: Extent) -> Group {
    let mut group = clean(name, ip, "data on a clean link, compared byte for byte");
    let cells = &mut group.cells;
    let full = extent == Extent::Full;
    for op in RC {
        for mtu in MTUS {
            for size in [0, 1, 3, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20, 16 << 20] {
                let everyday = mtu == 1024 && size <= 64 << 10 || mtu == 4096 && size == 1 << 20;
                let sample = everyday && ip == "v4" || mtu == 1024 && size == mtu + 1;
                if !full && !sample {
                    continue;
                }
                let count = if size <= 64 << 10 { 4 } else { 1 };
                let arguments = format!("op={op} mtu={mtu} size={size} count={count} depth=4");
                both(cells, &format!("{op}/mtu-{mtu}/{size}"), &arguments);
            }
        }
        for (size, mtu, count, depth) in [(64, 1024, 500, 100), (5000, 1024, 200, 64)] {
            let arguments = format!("op={op} mtu={mtu} size={size} count={count} depth={depth}");
            both(cells, &format!("{op}/in-flight-{depth}/{size}"), &arguments);
        }
        for size in [1, 3000, 100_000] {
            let arguments = format!("op={op} mtu=1024 size={size} count=50 depth=10");
            one(cells, &format!("{op}/both-ways/{size}"), '2', &arguments);
        }
        let arguments = format!("op={op} mtu=1024 size=10000 count=4 depth=4 sges=4");
        both(cells, &format!("{op}/scattered/10000"), &arguments);
        if op != "read" {
            let arguments = format!("op={op} mtu=1024 size=63 count=8 depth=4 inline=1");
            both(cells, &format!("{op}/inline/63"), &arguments);
        }
    }
    for mtu in MTUS {
        for size in [0, mtu, mtu + 1] {
            let arguments = format!("op=send-inv mtu={mtu} size={size}");
            both(cells, &format!("send-inv/mtu-{mtu}/{size}"), &arguments);
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

/// Deliberate errors: which ones make sense for which operations.
fn errors(ip: &'static str) -> Group {
    const RECEIVING: &[&str] = &["send", "send-imm", "write-imm"];
    const MEMORY: &[&str] = &["write", "write-imm", "read", "cas", "fadd"];
    const KINDS: &[(&str, &[&str])] = &[
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
    let mut group = Group {
        judge: Judge::Reference,
        ..clean(
            "errors-v4",
            ip,
            "deliberate errors, as rxe to rxe shows them",
        )
    };
    for (error, operations) in KINDS {
        for op in *operations {
            // A message of one packet, and one of four.
            let sizes: &[usize] = match *op {
                "cas" | "fadd" => &[8],
                _ if *error == "destroyed-in-flight" => &[40_000_000],
                _ => &[100, 4000],
            };
            for size in sizes {
                let name = format!("{error}/{op}/{size}");
                // Where rxe never completes a request, there is no need to wait long.
                let limit = if error.contains("local") || error.contains("lkey") {
                    3
                } else {
                    10
                };
                let arguments = format!("op={op} size={size} mtu=1024 error={error} limit={limit}");
                both(&mut group.cells, &name, &arguments);
            }
        }
    }
    group
}

/// Data over a bad link.
fn weather(name: &'static str, netem: &'static str, about: &'static str, extent: Extent) -> Group {
    let mut group = Group {
        judge: Judge::Lossy,
        netem,
        ..clean(name, "v4", about)
    };
    let cells = &mut group.cells;
    for op in RC {
        for (size, count) in [(1, 50), (1025, 50), (64 << 10, 10), (1 << 20, 2)] {
            if extent == Extent::Quick && size > 64 << 10 {
                continue;
            }
            let arguments = format!("op={op} mtu=1024 size={size} count={count} depth=8 limit=120");
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

/// Debian's own programs.
fn programs(name: &'static str, ip: &'static str) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        ..clean(
            name,
            ip,
            "unmodified programs: rdma-core's examples and perftest",
        )
    };
    let mut add = |name: &str, command: &str| {
        for (server, client) in [("rxe", "urxe"), ("urxe", "rxe")] {
            let name = format!("{name}/{server}-serves");
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
