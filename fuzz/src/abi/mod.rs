//! The story of a C program that calls the verbs in any order, with attributes, lists of work requests and flags
//! of any contents. It keeps a C program's duties: a pointer is null or points at something of the right type,
//! an object that is gone is not used, a lock that a call takes is given back.
//!
//! What must hold: a call fails with an errno that fits, and never for a panic; what uses an object keeps it from
//! being destroyed, and nothing else does; a work request completes once; no byte changes that is in no region
//! for writing; and what was made can be destroyed in the end.

mod ask;
mod change;
mod make;
mod values;
mod work;
mod world;

use arbitrary::Arbitrary;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use world::World;

/// Tells the story that `bytes` make.
///
/// # Panics
/// When a rule is broken.
pub fn check(bytes: &[u8]) {
    crate::told(bytes, |story: Story| story.tell());
}

/// What happens.
#[derive(Arbitrary, Debug)]
pub struct Story {
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Make(make::Make),
    /// All that two queue pairs need to work with each other.
    Pair(make::Pair),
    Destroy {
        kind: u8,
        which: u8,
    },
    Change(change::Change),
    Ask(ask::Ask),
    Work(work::Work),
}

/// Stories take turns: what they do to the network is the process's.
static TURN: Mutex<()> = Mutex::new(());

/// Whether some call panicked, which the caller is told as an errno only.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Says nothing of calls that fail, and takes note of those that panic.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Nobody else has, in a program of this package.
        let _ = tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::new());
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            PANICKED.store(true, Ordering::Relaxed);
            usual(what);
        }));
    });
}

impl Story {
    fn tell(&self) {
        listen();
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut world = World::new();
        for step in &self.steps {
            match step {
                Step::Make(make) => make.tell(&mut world),
                Step::Pair(pair) => pair.tell(&mut world),
                Step::Destroy { kind, which } => world.destroy(*kind, *which),
                Step::Change(change) => change.tell(&mut world),
                Step::Ask(ask) => ask.tell(&world),
                Step::Work(work) => work.tell(&mut world),
            }
        }
        world.end();
        assert!(!PANICKED.load(Ordering::Relaxed), "a call panicked");
    }
}
