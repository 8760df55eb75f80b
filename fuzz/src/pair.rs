//! Two endpoints of a reliable connection, as in the simulator, whose network does what the fuzzer says.

use urxe_sim::connection::run_scripted;
use urxe_sim::limits::Limits;

/// Small enough that a run is quick.
const LIMITS: Limits = Limits {
    ops: 30,
    longest: 5000,
    without: Vec::new(),
};

/// The first eight bytes say what the endpoints are and do; the others what becomes of datagrams, by
/// turns in one and the other direction.
///
/// # Panics
/// When a rule is broken.
pub fn check(bytes: &[u8]) {
    let Some((seed, decisions)) = bytes.split_first_chunk() else {
        return;
    };
    let every_other = |from: usize| decisions.iter().skip(from).step_by(2).copied().collect();
    let scripts = [every_other(0), every_other(1)];
    run_scripted(u64::from_le_bytes(*seed), &LIMITS, scripts, false);
}
