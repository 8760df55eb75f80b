//! Two endpoints of a reliable connection in the simulator, over a network that the input controls.

use urxe_sim::connection::run_scripted;
use urxe_sim::limits::Limits;

/// Limits that keep a run short.
const LIMITS: Limits = Limits {
    ops: 30,
    longest: 5000,
    without: Vec::new(),
};

/// Runs the simulation that `bytes` encode.
///
/// The first eight bytes are the seed of the endpoints. The others decide the fate of each
/// datagram, alternating between the two directions.
///
/// # Panics
/// If a rule is violated.
pub fn check(bytes: &[u8]) {
    let Some((seed, decisions)) = bytes.split_first_chunk() else {
        return;
    };
    let every_other = |from: usize| decisions.iter().skip(from).step_by(2).copied().collect();
    let scripts = [every_other(0), every_other(1)];
    run_scripted(u64::from_le_bytes(*seed), &LIMITS, scripts, false);
}
