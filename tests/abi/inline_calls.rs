//! The inline functions of urxe's headers against those of rdma-core's: one program, compiled
//! twice.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::require::{SYSTEM_HEADER, have_file, have_program};

fn output(name: &str, include: Option<&Path>) -> String {
    let binary = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    // With optimization, as in programs, the headers detect access flags that are constant.
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]);
    if let Some(include) = include {
        compiler.arg("-I").arg(include);
    }
    let compiled = compiler
        .arg(urxe_tests::workspace().join("tests/abi/inline_calls.c"))
        .arg("-o")
        .arg(&binary)
        .output();
    let compiled = compiled.expect("cc runs");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let ran = Command::new(&binary).output().expect("the program runs");
    assert!(ran.status.success(), "{name}: {}", ran.status);
    String::from_utf8(ran.stdout).expect("the program prints ASCII")
}

#[test]
fn inline_functions_match_those_of_rdma_core() {
    if !have_program("cc", "gcc") || !have_file(SYSTEM_HEADER, "libibverbs-dev") {
        return;
    }
    let include = urxe_tests::workspace().join("include");
    let (urxe, rdma_core) = (
        output("inline_ours", Some(&include)),
        output("inline_theirs", None),
    );
    let first = urxe
        .lines()
        .zip(rdma_core.lines())
        .find(|(urxe, rdma_core)| urxe != rdma_core);
    assert_eq!(first, None, "(urxe, rdma_core)");
    assert_eq!(urxe.lines().count(), rdma_core.lines().count());
    assert!(
        urxe.lines().count() > 1000,
        "the program called next to nothing"
    );
}
