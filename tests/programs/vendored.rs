//! Programs with their own copy of libibverbs under another name, as `auditwheel` makes them for
//! Python packages.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::place::{Directory, Place};
use crate::common::require::{DEVINFO, Need, require, search_path};
use crate::common::run::run;

const LIMIT: Duration = Duration::from_secs(20);
/// The name of the copy.
const COPY: &str = "libibverbs-1de1263b.so";

fn patchelf(arguments: &[&str], file: &Path) {
    let mut command = Command::new("patchelf");
    command.args(arguments).arg(file);
    run("patchelf", command, LIMIT).success();
}

/// Returns the library that a program of this host is linked with.
fn system_library(program: &Path) -> String {
    let mut command = Command::new("ldd");
    command.arg(program).env_remove("LD_LIBRARY_PATH");
    let linked = run("ldd", command, LIMIT).success().stdout;
    let mut words = linked
        .lines()
        .filter_map(|line| line.trim().strip_prefix("libibverbs.so.1 => "));
    let path = words.next().and_then(|rest| rest.split(' ').next());
    path.expect("it is a verbs program").to_owned()
}

#[test]
fn vendored_library_is_replaced_by_preloading() {
    if !require(&[DEVINFO, Need::Program("patchelf", "patchelf")]) {
        return;
    }
    let directory = Directory::new();
    let mut found = search_path()
        .into_iter()
        .map(|path| path.join("ibv_devices"));
    let installed = found.find(|path| path.is_file()).expect("required");
    let program = directory.path().join("ibv_devices");
    let copy = directory.path().join(COPY);
    std::fs::copy(&installed, &program).expect("own directory");
    std::fs::copy(system_library(&installed), &copy).expect("own directory");
    patchelf(&["--set-soname", COPY], &copy);
    patchelf(&["--replace-needed", "libibverbs.so.1", COPY], &program);
    // Unlike DT_RUNPATH, it precedes LD_LIBRARY_PATH.
    patchelf(&["--force-rpath", "--set-rpath", "$ORIGIN"], &program);

    let place = Place::here();
    let listed = |options: &[&str]| {
        let mut command = place.urxe();
        command.arg("run").args(options).arg("--").arg(&program);
        run("ibv_devices", command, LIMIT)
    };
    // The condition of the test: the program uses its own copy otherwise.
    let without = listed(&[]);
    assert!(!without.stdout.contains("urxe_lo"), "{without}");
    for options in [&["--preload"][..], &["--preload", "--rsockets"]] {
        let with = listed(options).success();
        assert!(with.stdout.contains("urxe_lo"), "{with}");
        assert_eq!(with.stderr, "", "{with}");
    }
}
