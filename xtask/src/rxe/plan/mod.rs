//! The matrix: the cells and their groups.
//!
//! A transport is a list of operations. Sizes, path MTUs, directions and link conditions vary in
//! the same way for all of them.

mod capture;
mod cm;
mod errors;
mod group;
mod impaired;
mod programs;
mod rsockets;
mod transfers;

pub(crate) use capture::to_capture;
use cm::{connections, ends, lossy_connections};
use errors::errors;
pub(crate) use group::{Cell, Expectation, Extent, Group, Kind, programs_between};
use impaired::{IMPAIRMENTS, impaired};
use programs::programs;
use rsockets::rsockets;
use transfers::{datagrams, reliable, unreliable, windows};

/// The group with the reference outcomes for [`Expectation::Reference`].
pub(crate) const REFERENCE: &str = "errors-rxe";

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
