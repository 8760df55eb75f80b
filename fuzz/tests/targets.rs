//! Runs each target without a fuzzer: on regression inputs, and on inputs from a seeded generator.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng as _, RngExt, SeedableRng};
use std::path::Path;
use urxe_fuzz::TARGETS;

#[test]
fn regression_inputs_pass() {
    for (name, check) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("regressions")
            .join(name);
        // Most targets have no regression inputs.
        for entry in std::fs::read_dir(directory).into_iter().flatten() {
            let path = entry.expect("a readable directory").path();
            println!("{}", path.display());
            check(&std::fs::read(path).expect("a readable file"));
        }
    }
}

#[test]
fn random_inputs_pass() {
    for (name, check) in TARGETS {
        for seed in 0..500 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut bytes = vec![0; rng.random_range(0..2000)];
            rng.fill_bytes(&mut bytes);
            println!("{name}, seed {seed}");
            check(&bytes);
        }
    }
}

#[test]
fn every_target_has_a_program() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let mut programs: Vec<String> = std::fs::read_dir(directory)
        .expect("the directory")
        .map(|entry| entry.expect("a readable directory").path())
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let mut targets: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    programs.sort_unstable();
    targets.sort_unstable();
    assert_eq!(programs, targets);
}
