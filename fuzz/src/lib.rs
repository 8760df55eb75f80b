//! Fuzz targets: inputs derived from arbitrary bytes, and harnesses that check urxe's behaviour.
//!
//! A target is a file in `fuzz_targets` that names a function here. `cargo xtask fuzz` and
//! cargo-fuzz build with `--cfg fuzzing`, so that libFuzzer calls the function. Without it, the
//! same program replays the files on its command line, so a finding can be debugged without a
//! fuzzer: `cargo run -p urxe-fuzz --bin TARGET FILE`.

pub mod abi;
pub mod cm;
pub mod host;
pub mod icrc;
pub mod packet;
pub mod pair;
pub mod queue_pair;
pub mod sharing;
mod target;

// Some inputs send datagrams and bind addresses. They run in a network namespace of their own.
#[path = "../../tests/common/own_network.rs"]
mod own_network;

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. Each panics when urxe violates a rule.
pub const TARGETS: &[Target] = &[
    ("abi", abi::check),
    ("packet", packet::check),
    ("icrc", icrc::check),
    ("queue_pair", queue_pair::check),
    ("pair", pair::check),
    ("cm", cm::check),
    ("sharing", sharing::check),
];

/// Defines the program of a target.
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

/// Runs `check` on each file that the command line names.
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
        println!("{}: passed", file.display());
    }
    std::process::ExitCode::SUCCESS
}
