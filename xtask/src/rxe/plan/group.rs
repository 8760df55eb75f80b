//! Groups of cells, and the cells.

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

const SIDES: [&str; 2] = ["rxe", "urxe"];

/// The operations of a reliable connection that transfer data.
pub(super) const RC: [&str; 5] = ["send", "send-imm", "write", "write-imm", "read"];

/// The requesting side: the agents' letter, and the part of the cell's name.
const REQUESTERS: [(char, &str); 2] = [('a', "rxe-requests"), ('b', "urxe-requests")];

/// Returns a group without cells, between rxe and urxe on a clean link.
pub(super) fn clean(name: &'static str, ip: &'static str, about: &'static str) -> Group {
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
pub(super) fn both(cells: &mut Vec<Cell>, name: &str, arguments: &str) {
    for (requester, word) in REQUESTERS {
        one(cells, &format!("{name}/{word}"), requester, arguments);
    }
}

/// Adds a cell for either side as the server. `form` is the number of concurrent clients, followed
/// by `+` if the server does not end by itself.
pub(super) fn serve(cells: &mut Vec<Cell>, name: &str, form: &str, server: &str, client: &str) {
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

/// Adds a cell with this requester.
pub(super) fn one(cells: &mut Vec<Cell>, name: &str, requester: char, arguments: &str) {
    cells.push(Cell {
        name: name.to_owned(),
        line: format!("{name} requester={requester} {arguments}"),
    });
}
