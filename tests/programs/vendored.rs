//! Programs with their own copy of libibverbs under another name, as `auditwheel` makes them for
//! Python packages.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::require::{DEVINFO, Need, require, search_path};
use crate::common::run::{Finished, run};
use crate::common::runner::{Directory, Runner};

const LIMIT: Duration = Duration::from_secs(60);
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

/// Copies the installed library, under the name that auditwheel gives it.
fn make_copy(directory: &Path) -> PathBuf {
    let copy = directory.join(COPY);
    std::fs::copy(system_library(&installed_program()), &copy).expect("own directory");
    patchelf(&["--set-soname", COPY], &copy);
    copy
}

fn installed_program() -> PathBuf {
    let mut found = search_path()
        .into_iter()
        .map(|path| path.join("ibv_devices"));
    found.find(|path| path.is_file()).expect("required")
}

/// Runs a program over urxe with these options of `urxe run`. It imports modules from `packages`.
fn over_urxe(options: &[&str], words: &[&OsStr], packages: &Path) -> Finished {
    let runner = Runner::here();
    let mut command = runner.urxe();
    command.env("PYTHONPATH", packages);
    command.arg("run").args(options).arg("--").args(words);
    run("urxe run", command, LIMIT)
}

/// Checks that the program uses its own copy where nothing is preloaded, and urxe by default.
fn check(words: &[&OsStr], packages: &Path) {
    let without = over_urxe(&["--preload=no"], words, packages);
    assert!(!without.stdout.contains("urxe_lo"), "{without}");
    for options in [
        &[][..],
        &["--preload"],
        &["--preload=auto", "--rsockets"],
        &["--preload=yes", "--sysfs=preload"],
    ] {
        let with = over_urxe(&[options, &["--devices", "*"]].concat(), words, packages).success();
        assert!(with.stdout.contains("urxe_lo"), "{with}");
        assert_eq!(with.stderr, "", "{with}");
    }
}

#[test]
fn vendored_library_is_replaced_by_preloading() {
    if !require(&[DEVINFO, Need::Program("patchelf", "patchelf")]) {
        return;
    }
    let directory = Directory::new();
    make_copy(directory.path());
    let program = directory.path().join("ibv_devices");
    std::fs::copy(installed_program(), &program).expect("own directory");
    patchelf(&["--replace-needed", "libibverbs.so.1", COPY], &program);
    // Unlike DT_RUNPATH, it precedes LD_LIBRARY_PATH.
    patchelf(&["--force-rpath", "--set-rpath", "$ORIGIN"], &program);
    check(&[program.as_os_str()], Path::new(""));
}

/// A copy with the usual name, which the program finds by its `DT_RPATH`.
#[test]
fn library_beside_the_program_is_replaced() {
    if !require(&[DEVINFO, Need::Program("patchelf", "patchelf")]) {
        return;
    }
    let directory = Directory::new();
    let program = directory.path().join("ibv_devices");
    let copy = directory.path().join("libibverbs.so.1");
    std::fs::copy(installed_program(), &program).expect("own directory");
    std::fs::copy(system_library(&installed_program()), &copy).expect("own directory");
    patchelf(&["--force-rpath", "--set-rpath", "$ORIGIN"], &program);
    check(&[program.as_os_str()], Path::new(""));
}

/// The extension module of a Python package, whose libraries auditwheel has moved to
/// `PACKAGE.libs`.
#[test]
fn python_package_with_its_own_copy_uses_urxe() {
    let programs = [
        DEVINFO,
        Need::Program("patchelf", "patchelf"),
        Need::Program("cc", "gcc"),
        Need::Program("python3", "python3"),
    ];
    if !require(&programs) {
        return;
    }
    let directory = Directory::new();
    let packages = directory.path().join("packages");
    let libraries = packages.join("nixl.libs");
    std::fs::create_dir_all(&libraries).expect("own directory");
    let copy = make_copy(&libraries);
    let extension = packages.join("extension.so");
    let source = directory.path().join("extension.c");
    let text = "#include <stdio.h>\n\
                struct ibv_device **ibv_get_device_list(int *);\n\
                const char *ibv_get_device_name(struct ibv_device *);\n\
                void show(void) {\n\
                    struct ibv_device **all = ibv_get_device_list(NULL);\n\
                    for (int i = 0; all && all[i]; i++) puts(ibv_get_device_name(all[i]));\n\
                    fflush(stdout);\n\
                }\n";
    std::fs::write(&source, text).expect("own directory");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/nixl.libs", "-o"]);
    compile.args([&extension, &source, &copy]);
    run("cc", compile, LIMIT).success();

    let mut found = search_path().into_iter().map(|path| path.join("python3"));
    let python = found.find(|path| path.is_file()).expect("required");
    let script = directory.path().join("tool");
    let text = format!(
        "#!/usr/bin/env python3\nimport ctypes\nctypes.CDLL({:?}).show()\n",
        extension.display().to_string()
    );
    std::fs::write(&script, text).expect("own directory");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("own file");
    check(&[script.as_os_str()], &packages);
    check(&[python.as_os_str(), script.as_os_str()], &packages);
}

#[test]
fn other_programs_preload_nothing() {
    let words = ["sh", "-c", "echo \"preloads:$LD_PRELOAD\""].map(OsStr::new);
    let finished = over_urxe(&["--sysfs=no"], &words, Path::new("")).success();
    assert_eq!(finished.stdout, "preloads:\n", "{finished}");
}
