//! Random work over links that lose, duplicate, reorder, delay and damage, with virtual time.

mod seeds;
mod sim;

/// Seeds in an ordinary run.
const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };

#[test]
fn every_operation_takes_effect_once_and_in_order_over_bad_links() {
    let Some((seeds, total)) = seeds::run_all("simulator", SEEDS, sim::run) else {
        return;
    };
    if seeds >= 100 {
        // The links were bad indeed, or nothing was shown.
        assert!(total.retransmitted > 0 && total.duplicates > 0 && total.timeouts > 0);
        assert!(total.sequence_naks > 0 && total.rnr_naks > 0 && total.responses_lost > 0);
        assert!(total.bad_icrc > 0 && total.drains > 0 && total.xrc_operations > 0);
        // One damaged packet in 2^16 has a right ICRC.
        assert!(total.undetected <= 3 + total.damaged / 10_000);
    }
}
