//! What fuzzers try: stories made of arbitrary bytes, and hosts that watch what urxe does in them.
//!
//! A target is a file in `fuzz_targets` that names a function here. With `--cfg fuzzing`, as
//! `cargo xtask fuzz` and cargo-fuzz build it, libFuzzer calls that function; without, the same
//! program replays the files that it is given, so that a finding can be looked at without any fuzzer:
//! `cargo run -p urxe-fuzz --bin TARGET FILE`.

pub mod abi;
pub mod cm;
pub mod host;
pub mod icrc;
pub mod packet;
pub mod pair;
pub mod queue_pair;
pub mod sharing;

// Some stories send datagrams and take names: not in the host's network, where there can be another.
#[path = "../../tests/common/own_network.rs"]
mod own_network;

use arbitrary::{Arbitrary, Unstructured};

/// A target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target. Each panics when a rule is broken.
pub const TARGETS: &[Target] = &[
    ("abi", abi::check),
    ("packet", packet::check),
    ("icrc", icrc::check),
    ("queue_pair", queue_pair::check),
    ("pair", pair::check),
    ("cm", cm::check),
    ("sharing", sharing::check),
];

/// Makes the program of a target.
#[macro_export]
macro_rules! target {
    ($check:path) => {
        #[cfg(fuzzing)]
        ::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $check(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> ::std::process::ExitCode {
            $crate::replay($check)
        }
    };
}

/// Hands each file that the command line names to `check`.
pub fn replay(check: fn(&[u8])) -> std::process::ExitCode {
    for file in std::env::args_os().skip(1) {
        let file = std::path::PathBuf::from(file);
        match std::fs::read(&file) {
            Ok(bytes) => check(&bytes),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return std::process::ExitCode::FAILURE;
            }
        }
        println!("{}: nothing is wrong", file.display());
    }
    std::process::ExitCode::SUCCESS
}

/// Whether this program has a network that nobody else is in.
pub(crate) fn has_own_network() -> bool {
    std::env::var_os("TESTS_HAVE_THEIR_OWN_NETWORK").is_some()
}

/// Tells the story that `bytes` make, if they make one.
pub(crate) fn told<S: for<'a> Arbitrary<'a>>(bytes: &[u8], tell: impl FnOnce(S)) {
    if let Ok(story) = S::arbitrary_take_rest(Unstructured::new(bytes)) {
        tell(story);
    }
}
