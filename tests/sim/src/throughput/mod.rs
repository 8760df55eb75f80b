//! Link utilisation of connections: bulk transfer in virtual time, so that the figures are exact
//! and independent of the load of the machine.
//!
//! Requesters send WRITEs at full speed over one link to one host, or READs whose responses use
//! that link. The link has a rate and a queue, and drops packets that find the queue full. It
//! models a switch, or the receive buffer of a host that processes packets at that rate. The
//! packets of the other direction have a lossless link of their own.

mod case;
mod endpoint;
mod outcome;
mod world;

pub use case::{CASES, Case, MESSAGE, NIC, READS, Work};
pub use outcome::Outcome;

use case::TRANSFER_TIME;
use urxe_proto::rc::congestion::Algorithm;
use world::World;

/// The length of a short READ in bytes: one packet.
const SHORT: u32 = 4 << 10;

/// Writes two tables with a row per case. The columns are: for WRITEs, an algorithm and a kind of
/// responder; for READs, an algorithm and a length.
pub fn table(mut line: impl FnMut(String)) {
    line(format!(
        "{MESSAGE} bytes a WRITE, MTU 4096, {} ms; link utilization, retransmitted, longest gap, \
         queueing delay",
        TRANSFER_TIME.as_millis()
    ));
    let columns = Algorithm::ALL
        .map(|algorithm| [true, false].map(|keeps_out_of_order| (algorithm, keeps_out_of_order)));
    let columns = columns.as_flattened();
    let names = columns.iter().map(|&(algorithm, keeps_out_of_order)| {
        let peer = if keeps_out_of_order {
            "urxe"
        } else {
            "go-back-N"
        };
        format!("{algorithm}, peer {peer}")
    });
    let names: Vec<_> = names.collect();
    line(format!("| | {} |", names.join(" | ")));
    line(format!("|---|{}", "---|".repeat(names.len())));
    for case in CASES {
        let cells = columns.iter().map(|&(algorithm, keeps_out_of_order)| {
            run(&case, algorithm, keeps_out_of_order, Work::Write(MESSAGE)).to_string()
        });
        let cells: Vec<_> = cells.collect();
        line(format!("| {} | {} |", case.name, cells.join(" | ")));
    }
    line(format!(
        "READ, {READS} outstanding; the same figures of the responses"
    ));
    let columns = Algorithm::ALL.map(|algorithm| [MESSAGE, SHORT].map(|bytes| (algorithm, bytes)));
    let columns = columns.as_flattened();
    let names = columns
        .iter()
        .map(|(algorithm, bytes)| format!("{algorithm}, {} KiB", bytes >> 10));
    let names: Vec<_> = names.collect();
    line(format!("| | {} |", names.join(" | ")));
    line(format!("|---|{}", "---|".repeat(names.len())));
    for case in CASES {
        let cells = columns
            .iter()
            .map(|&(algorithm, bytes)| run(&case, algorithm, true, Work::Read(bytes)).to_string());
        let cells: Vec<_> = cells.collect();
        line(format!("| {} | {} |", case.name, cells.join(" | ")));
    }
}

/// Runs one transfer. With `keeps_out_of_order`, responders have an out-of-order queue; otherwise
/// they drop requests behind a gap.
pub fn run(case: &Case, algorithm: Algorithm, keeps_out_of_order: bool, work: Work) -> Outcome {
    let mut world = World::new(*case, algorithm, keeps_out_of_order, work);
    world.run();
    world.outcome()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn utilization(name: &str, algorithm: Algorithm) -> f64 {
        let case = CASES.into_iter().find(|case| case.name == name).unwrap();
        run(&case, algorithm, true, Work::Write(MESSAGE)).utilization
    }

    #[test]
    fn link_without_faults_is_used_fully() {
        for algorithm in Algorithm::ALL {
            assert!(
                utilization("25 Gbit/s, 60 us", algorithm) > 0.9,
                "{algorithm}"
            );
        }
    }

    #[test]
    fn delay_algorithm_tolerates_random_loss() {
        assert!(utilization("loss 1%", Algorithm::Delay) > 0.5);
        assert!(utilization("loss 1%", Algorithm::Loss) > 0.2);
    }

    #[test]
    fn small_queues_and_many_senders_do_not_collapse() {
        for name in [
            "the same, 16 senders",
            "switch queue of 20 packets",
            "the same, 8 senders",
        ] {
            assert!(utilization(name, Algorithm::default()) > 0.6, "{name}");
        }
    }

    /// A burst that overflows the queue loses its tail, which nothing reports.
    #[test]
    fn peer_that_goes_back_n_does_not_collapse_at_a_short_queue() {
        let name = "switch queue of 20 packets";
        let case = CASES.into_iter().find(|case| case.name == name).unwrap();
        let outcome = run(&case, Algorithm::Loss, false, Work::Write(MESSAGE));
        assert!(outcome.utilization > 0.47, "{outcome}");
        assert!(outcome.longest_gap < Duration::from_millis(2), "{outcome}");
    }
}
