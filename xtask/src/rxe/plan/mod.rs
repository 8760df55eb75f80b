//! The matrix: which cells there are, and in which groups they run.
//!
//! A transport is a list of operations; what else varies - sizes, path MTUs, directions, the weather on
//! the link - is the same for all of them.

mod capture;
mod cm;
mod errors;
mod programs;
mod rsockets;
mod transfers;
mod weather;

pub(crate) use capture::to_capture;
use cm::{connections, ends, lossy_connections};
use errors::errors;
use programs::programs;
use rsockets::rsockets;
use transfers::{datagrams, reliable, unreliable, windows};
use weather::{WEATHERS, weather};

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
    /// How many pairs of agents share the cells, at the same time.
    pub(crate) lanes: usize,
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

const SIDES: [&str; 2] = ["rxe", "urxe"];

/// Operations of the reliable connection that move data.
const RC: [&str; 5] = ["send", "send-imm", "write", "write-imm", "read"];

/// Who requests: the agents' word for it, and the part of the cell's name.
const REQUESTERS: [(char, &str); 2] = [('a', "rxe-requests"), ('b', "urxe-requests")];

/// Everything that `extent` asks for.
pub(crate) fn groups(extent: Extent) -> Vec<Group> {
    let mut groups = vec![
        reliable("rc-v4", "v4", extent),
        reliable("rc-v6", "v6", extent),
        unreliable("uc-v4", "v4", extent),
        datagrams("ud-v4", "v4"),
        windows("windows-v4", "v4"),
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
        groups.push(unreliable("uc-v6", "v6", extent));
        groups.push(datagrams("ud-v6", "v6"));
        groups.push(windows("windows-v6", "v6"));
        groups.push(Group {
            name: "errors-v6",
            ..errors("v6")
        });
    }
    groups.push(programs("programs-v4", "v4", extent));
    groups.push(connections("cm-v4", "v4", extent));
    groups.push(rsockets("rsockets-v4", "v4", extent));
    if extent == Extent::Full {
        groups.push(programs("programs-v6", "v6", extent));
        groups.push(connections("cm-v6", "v6", extent));
        groups.push(rsockets("rsockets-v6", "v6", extent));
        groups.push(ends("ends-v4", "v4"));
        groups.push(ends("ends-v6", "v6"));
    }
    for (name, netem, about) in WEATHERS {
        if extent == Extent::Full || name == "loss" {
            groups.push(weather(name, netem, about, extent));
        }
    }
    if extent == Extent::Full {
        groups.push(lossy_connections("cm-loss-v4", "v4"));
        groups.push(lossy_connections("cm-loss-v6", "v6"));
    }
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
        lanes: 1,
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

/// Adds a cell for either side as the server of programs: `form` is how many clients there are at once, with
/// a `+` if the server does not end by itself.
fn serve(cells: &mut Vec<Cell>, name: &str, form: &str, server: &str, client: &str) {
    for (a, b, who) in [("a", "b", "rxe-serves"), ("b", "a", "urxe-serves")] {
        cells.push(programs_between(
            format!("{name}/{who}"),
            [a, b],
            form,
            server,
            client,
        ));
    }
}

/// A cell of programs between two sides, the server's first.
pub(crate) fn programs_between(
    name: String,
    [server_side, client_side]: [&str; 2],
    form: &str,
    server: &str,
    client: &str,
) -> Cell {
    Cell {
        line: format!("{name}\t{server_side}\t{client_side}\t{form}\t{server}\t{client}"),
        name,
    }
}

fn one(cells: &mut Vec<Cell>, name: &str, requester: char, arguments: &str) {
    cells.push(Cell {
        name: name.to_owned(),
        line: format!("{name} requester={requester} {arguments}"),
    });
}
