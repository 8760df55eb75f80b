//! The story of one queue pair: what its program does, and what its peer sends, which may be anything.
//!
//! The peer is the fuzzer. Its packets are well-formed and mostly near the PSNs that the queue pair
//! expects, or else they would hardly get past the first check; bytes of any kind are the business
//! of the `packet` target, whose findings are the same for all services.

mod grants;
mod making;
mod scene;
mod story;

use scene::Scene;
pub use story::Story;
use urxe_proto::ids::{QKey, Qpn};

const QKEY: QKey = QKey(0x1111_1111);
const OWN_QPN: Qpn = Qpn::new(0x11);
const PEER_QPN: Qpn = Qpn::new(0x22);

/// Tells the story that `bytes` make.
///
/// # Panics
/// When a rule is broken.
pub fn check(bytes: &[u8]) {
    crate::told(bytes, |story: Story| story.tell());
}

impl Story {
    fn tell(&self) {
        let mut scene = Scene::new(self);
        // A bit that the attribute does not take.
        if self.start.min_rnr_timer & 0x20 != 0 {
            scene.require_grants();
        }
        for _ in 0..3 {
            scene.advance(self.start.tamed());
        }
        for step in &self.steps {
            scene.step(step, self.start.tamed());
            scene.check();
        }
        scene.end();
    }
}
