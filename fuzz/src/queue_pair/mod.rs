//! A queue pair whose application and peer take any action.
//!
//! The packets of the peer are well-formed and mostly near the expected PSNs, because others do not
//! get past the first check. The `packet` target covers arbitrary bytes.

mod generate;
mod harness;
mod input;
mod send_quantum;

use harness::Harness;
pub use input::Input;

/// Runs the input that `bytes` encode.
///
/// # Panics
/// If a rule is violated.
pub fn check(bytes: &[u8]) {
    crate::target::with_input(bytes, |input: Input| input.run());
}

impl Input {
    fn run(&self) {
        let mut harness = Harness::new(self);
        // This bit is not part of the attribute, so it can select the mode.
        if self.start.min_rnr_timer & 0x20 != 0 {
            harness.require_quanta();
        }
        for _ in 0..3 {
            harness.advance(self.start.in_range());
        }
        for step in &self.steps {
            harness.step(step, self.start.in_range());
            harness.check();
        }
        harness.end();
    }
}
