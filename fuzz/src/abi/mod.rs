//! The C ABI under a program that calls verbs in any order with any arguments.
//!
//! The program keeps the duties of a C program: a pointer is null or points to the right type, a
//! destroyed object is not used, and a lock that a call takes is released.
//!
//! The rules: a call fails with an expected errno and never panics. An object can be destroyed
//! unless another object uses it. A work request completes once. Only bytes of writable regions
//! change. At the end every object can be destroyed.

mod change;
mod create;
mod harness;
mod query;
mod values;
mod work;

use arbitrary::Arbitrary;
use harness::Harness;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// Runs the input that `bytes` encode.
///
/// # Panics
/// If a rule is violated.
pub fn check(bytes: &[u8]) {
    crate::target::with_input(bytes, |input: Input| input.run());
}

/// The steps of the program.
#[derive(Arbitrary, Debug)]
pub struct Input {
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Create(create::Create),
    /// Two connected queue pairs with everything they need.
    Pair(create::Pair),
    Destroy {
        kind: u8,
        which: u8,
    },
    Change(change::Change),
    Query(query::Query),
    Work(work::Work),
}

/// Serializes inputs, which share the network state of the process.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// Whether a call has panicked. The ABI reports a panic only as an errno.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Silences failed calls, and records panics.
fn install_hooks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that it is set already.
        let _ = tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::new());
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, Ordering::Relaxed);
            default_hook(info);
        }));
    });
}

impl Input {
    fn run(&self) {
        install_hooks();
        let _exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut harness = Harness::new();
        for step in &self.steps {
            match step {
                Step::Create(create) => create.run(&mut harness),
                Step::Pair(pair) => pair.run(&mut harness),
                Step::Destroy { kind, which } => harness.destroy(*kind, *which),
                Step::Change(change) => change.run(&mut harness),
                Step::Query(query) => query.run(&harness),
                Step::Work(work) => work.run(&mut harness),
            }
        }
        harness.end();
        assert!(!PANICKED.load(Ordering::Relaxed), "a call panicked");
    }
}
