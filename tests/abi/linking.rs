//! Programs linked with one library run with the other: the same names, versions and headers.
//!
//! There is one limit. urxe's one file is both libraries, and the linker records for each symbol
//! the library that defined it. A program of both libraries that is linked with urxe resolves all
//! symbols in the first library. Programs of the CM that must run with both are linked with
//! rdma-core.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::library;
use super::require::{SYSTEM_HEADER, have_file, have_program};

/// Calls functions of several version nodes, with the same results from urxe and rdma-core. With
/// `CM` it calls both libraries.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <infiniband/verbs.h>
#ifdef CM
const char *rdma_event_str(int event);
#else
#define rdma_event_str(event) "RDMA_CM_EVENT_ESTABLISHED"
#endif
int main(void)
{
    struct ibv_mr *mr;
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (list)
        ibv_free_device_list(list);
    mr = ibv_import_mr ? NULL : (struct ibv_mr *)1;
    printf("%s, %d, %s, %p\n", ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR),
            ibv_rate_to_mbps(IBV_RATE_100_GBPS), rdma_event_str(9), (void *)mr);
    return 0;
}
"#;

const ANSWER: &str = "RNR retry counter exceeded, 103125, RDMA_CM_EVENT_ESTABLISHED, (nil)\n";

/// Compiles the program with these headers against these libraries.
fn link(name: &str, arguments: &[&OsStr]) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("linked.c"), directory.join(name));
    fs::write(&source, PROGRAM).expect("the target directory takes files");
    let linked = Command::new("cc")
        .arg(&source)
        .arg("-Wno-address")
        .arg("-o")
        .arg(&binary)
        .args(arguments)
        .output()
        .expect("cc runs");
    assert!(
        linked.status.success(),
        "{}",
        String::from_utf8_lossy(&linked.stderr)
    );
    binary
}

/// Returns the output of the program with the libraries of a directory, or of the system.
#[track_caller]
fn assert_answers(binary: &Path, libraries: Option<&Path>) {
    let mut command = Command::new(binary);
    command
        .env_remove("LD_LIBRARY_PATH")
        .env("LD_BIND_NOW", "1");
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let output = command.output().expect("the program runs");
    assert_eq!(
        (
            String::from_utf8_lossy(&output.stdout).as_ref(),
            output.status.success()
        ),
        (ANSWER, true),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn program_linked_with_either_library_runs_with_both() {
    if !have_program("cc", "gcc") || !have_file(SYSTEM_HEADER, "libibverbs-dev") {
        return;
    }
    let include = urxe_tests::workspace().join("include");
    let names = library::under_both_names();
    let (verbs, cm) = (
        OsStr::new("-l:libibverbs.so.1"),
        OsStr::new("-l:librdmacm.so.1"),
    );
    let include = [OsStr::new("-I"), include.as_os_str()];
    let libraries = [OsStr::new("-L"), names.as_os_str(), verbs];
    let urxe = link("linked_with_ours", &[&include[..], &libraries].concat());
    let rdma_core = link("linked_with_theirs", &[OsStr::new("-DCM"), verbs, cm]);
    for binary in [urxe, rdma_core] {
        assert_answers(&binary, Some(&names));
        assert_answers(&binary, None);
    }
}
