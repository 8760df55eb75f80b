//! The matrix: the cells and their groups.
//!
//! A transport is a list of operations. Sizes, path MTUs, directions and link conditions vary in
//! the same way for all of them.

mod capture;
mod cm;
mod errors;
mod impaired;
mod programs;
mod rsockets;
mod transfers;

pub(crate) use capture::to_capture;
use cm::{connections, ends, lossy_connections};
use errors::errors;
use impaired::{IMPAIRMENTS, impaired};
use programs::programs;
use rsockets::rsockets;
use transfers::{datagrams, reliable, unreliable, windows};

/// A test with one verdict.
pub(crate) struct Cell {
    /// The name, unique in the group.
    pub(crate) name: String,
    /// The line in the plan, which the guest's job reads.
    pub(crate) line: String,
}

/// The way in which the cells of a group run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By the agents, one on each side, in lockstep.
    Agents,
    /// As unmodified programs, a server and a client.
    Programs,
}

/// The expectation for a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// Each cell checks its own result, and rxe's counters must not show faults.
    Strict,
    /// Each cell checks its own result; the link loses packets, so counters are ignored.
    Lossy,
    /// The outcome must equal that of the reference group, which runs rxe to rxe.
    Reference,
    /// None: this group is the reference.
    Measured,
}

/// Cells that run one after another between the same two sides.
pub(crate) struct Group {
    /// The first part of the cells' full names.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) expectation: Expectation,
    /// The two sides, as the job's script names them.
    pub(crate) sides: [&'static str; 2],
    /// The kind of GID: `v4` or `v6`.
    pub(crate) ip: &'static str,
    /// The arguments of netem for both directions; empty for a clean link.
    pub(crate) netem: &'static str,
    /// The number of pairs of agents that share the cells concurrently.
    pub(crate) lanes: usize,
    /// The line in the summary.
    pub(crate) about: &'static str,
    pub(crate) cells: Vec<Cell>,
}

/// The part of the matrix to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// A few minutes' worth.
    Quick,
    /// Everything.
    Full,
}

/// The group with the reference outcomes for [`Expectation::Reference`].
pub(crate) const REFERENCE: &str = "errors-rxe";

const SIDES: [&str; 2] = ["rxe", "urxe"];

/// The operations of a reliable connection that transfer data.
const RC: [&str; 5] = ["send", "send-imm", "write", "write-imm", "read"];

/// The requesting side: the agents' letter, and the part of the cell's name.
const REQUESTERS: [(char, &str); 2] = [('a', "rxe-requests"), ('b', "urxe-requests")];

/// Returns the groups of this extent.
pub(crate) fn groups(extent: Extent) -> Vec<Group> {
    let mut groups = vec![
        reliable("rc-v4", "v4", extent),
        reliable("rc-v6", "v6", extent),
        unreliable("uc-v4", "v4", extent),
        datagrams("ud-v4", "v4"),
        windows("windows-v4", "v4"),
        Group {
            name: REFERENCE,
            expectation: Expectation::Measured,
            sides: ["rxe1", "rxe2"],
            // Within one kernel a response arrives before the request's post returns, which is not
            // so between machines. The delay avoids that.
            netem: "delay 2ms",
            about: "rxe to rxe: the outcomes of errors on both sides",
            ..errors("v4")
        },
        errors("v4"),
    ];
    if extent == Extent::Quick {
        // Of messages of one and of four packets, keeps those of four.
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
    for (name, netem, about) in IMPAIRMENTS {
        if extent == Extent::Full || name == "loss" {
            groups.push(impaired(name, netem, about, extent));
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
        expectation: Expectation::Strict,
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

/// Adds a cell for either side as the server. `form` is the number of concurrent clients, followed
/// by `+` if the server does not end by itself.
fn serve(cells: &mut Vec<Cell>, name: &str, form: &str, server: &str, client: &str) {
    for (a, b, roles) in [("a", "b", "rxe-serves"), ("b", "a", "urxe-serves")] {
        cells.push(programs_between(
            format!("{name}/{roles}"),
            [a, b],
            form,
            server,
            client,
        ));
    }
}

/// Returns a cell of programs between two sides, the server's side first.
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
