//! Programs that connect, accept, reject, disconnect, forget and crash at random, over a network that
//! loses, duplicates, delays and reorders their messages, with virtual time. Each attempt must come
//! to the end that fits, at both sides, and nothing may be left behind.

mod host;
mod record;
#[path = "../seeds/mod.rs"]
mod seeds;
mod world;

/// Seeds in an ordinary run.
const SEEDS: u64 = if cfg!(debug_assertions) {
    2_000
} else {
    20_000
};

#[test]
fn every_attempt_comes_to_its_right_end_at_both_sides_and_leaves_nothing() {
    let Some((seeds, total)) = seeds::run_all("cm_simulator", SEEDS, world::run) else {
        return;
    };
    if seeds >= 100 {
        // All of it happened, or nothing was shown.
        assert!(total.established > 0 && total.rejected > 0 && total.timed_out > 0);
        assert!(total.crashes > 0 && total.stale > 0 && total.resolved > 0);
        assert!(total.duplicates > 0 && total.repeated > 0 && total.over_backlog > 0);
        assert!(total.delayed > 0 && total.abandoned > 0 && total.taken_back > 0);
    }
}
