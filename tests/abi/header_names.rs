//! urxe's headers have every name of rdma-core's headers: those of the installed version, and those
//! that later versions added. The layout tests check the values and types behind the names.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::require::{SYSTEM_CM_HEADER, SYSTEM_HEADER, have_file, have_program};

/// Names added after the version of Debian 12, up to rdma-core 65, by header.
const NEWER: &str = include_str!("newer_names.txt");

const HEADERS: [&str; 6] = [
    "infiniband/verbs.h",
    "infiniband/sa.h",
    "infiniband/ib.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
];

/// The prefixes of the names of the API. Other names are of parameters and variables, on which no
/// program depends.
const PREFIXES: [&str; 13] = [
    "ibv_", "_ibv_", "__ibv_", "IBV_", "_IBV_", "verbs_", "mbps_", "mult_", "rdma_", "RDMA_",
    "IB_", "SOL_RDMA", "r",
];

/// Returns the names that a header, or a header of the same library that it includes, declares or
/// defines.
fn names(include: Option<&Path>, header: &str) -> BTreeSet<String> {
    let mut preprocessor = Command::new("cc");
    preprocessor.args(["-E", "-dD", "-D_GNU_SOURCE", "-x", "c"]);
    if let Some(include) = include {
        preprocessor.arg("-I").arg(include);
    }
    let mut running = preprocessor
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cc runs");
    writeln!(running.stdin.take().expect("a pipe"), "#include <{header}>").expect("cc reads");
    let output = running.wait_with_output().expect("cc runs");
    assert!(output.status.success(), "{header}");
    let text = String::from_utf8(output.stdout).expect("the headers are ASCII");

    let mut names = BTreeSet::new();
    let mut counts = false;
    for line in text.lines() {
        if let Some(mark) = line.strip_prefix("# ") {
            let file = mark.split('"').nth(1).unwrap_or_default();
            counts = is_of_library(file);
        } else if counts {
            let without_texts = line.split('"').step_by(2);
            let words = without_texts
                .flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
            names.extend(words.filter(|word| is_name(word)).map(str::to_owned));
        }
    }
    names
}

/// Returns whether a header belongs to rdma-core. The kernel's headers, of which rdma-core has
/// copies, do not.
fn is_of_library(file: &str) -> bool {
    let is_of_kernel = file.contains("_user_");
    !is_of_kernel && (file.contains("/infiniband/") || file.contains("/rdma/r"))
}

fn is_name(word: &str) -> bool {
    // The functions of rsocket.h are single words that begin with an r, as these words of C do.
    const WORDS: [&str; 6] = ["return", "restrict", "register", "ret", "rc", "res"];
    // Constants of the kernel's headers.
    let is_of_kernel = word.starts_with("IB_UVERBS_") || word.starts_with("RDMA_UAPI_");
    !is_of_kernel
        && PREFIXES.iter().any(|prefix| word.starts_with(prefix))
        && !WORDS.contains(&word)
}

fn urxe_names(header: &str) -> BTreeSet<String> {
    let include = urxe_tests::workspace().join("include");
    names(Some(&include), header)
}

#[test]
fn our_headers_have_all_names_of_those_installed() {
    let complete = have_program("cc", "gcc")
        && have_file(SYSTEM_HEADER, "libibverbs-dev")
        && have_file(SYSTEM_CM_HEADER, "librdmacm-dev");
    if !complete {
        return;
    }
    for header in HEADERS {
        let (rdma_core, urxe) = (names(None, header), urxe_names(header));
        let missing: Vec<_> = rdma_core.difference(&urxe).collect();
        assert!(missing.is_empty(), "{header}: {missing:?}");
        // The names of ib.h have none of the prefixes.
        let least = if header == "infiniband/ib.h" { 0 } else { 300 };
        assert!(rdma_core.len() >= least, "{header}: {}", rdma_core.len());
    }
}

#[test]
fn our_headers_have_the_names_of_the_newest_version() {
    if !have_program("cc", "gcc") {
        return;
    }
    let mut listed = 0;
    for header in HEADERS {
        let names = NEWER
            .lines()
            .filter_map(|line| line.strip_prefix(header)?.strip_prefix(' '));
        let urxe = urxe_names(header);
        let missing: Vec<_> = names
            .inspect(|_| listed += 1)
            .filter(|name| !urxe.contains(*name))
            .collect();
        assert!(missing.is_empty(), "{header}: {missing:?}");
    }
    assert!(listed > 50, "{listed}");
}
