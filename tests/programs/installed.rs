//! The command as `cargo install` installs it: alone, with the shared objects and headers inside.

use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::require::{DEVINFO, Need, require};
use crate::common::run::run;
use crate::common::runner::{Directory, Runner};

/// The build takes a few seconds if the workspace is built, and minutes if it is not.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the path of the command after `cargo install --path cli` to an empty directory.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let built = urxe_tests::built("urxe");
        let profile = built.parent().expect("the profile's directory");
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let _ = fs::remove_dir_all(&root);
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["install", "--quiet", "--locked", "--offline", "--no-track"])
            .arg("--path")
            .arg(urxe_tests::workspace().join("cli"))
            .arg("--root")
            .arg(&root)
            .arg("--target-dir")
            .arg(profile.parent().expect("the target directory"))
            .arg("--profile")
            .arg(match profile.file_name() {
                Some(name) if name == "debug" => "dev".as_ref(),
                name => name.expect("a profile"),
            });
        run("cargo install", cargo, BUILD_LIMIT).success();
        root.join("bin/urxe")
    })
}

/// Returns the command for a new user, who has an empty home directory.
fn urxe(runner: &Runner, home: &Directory) -> Command {
    let temporary = home.path().join("tmp");
    fs::create_dir_all(&temporary).expect("own directory");
    let mut command = runner.command(installed());
    command
        .env("HOME", home.path())
        .env("TMPDIR", temporary)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_RUNTIME_DIR");
    command
}

#[test]
fn command_without_its_libraries_runs_the_demo() {
    let home = Directory::new();
    let runner = Runner::alone();
    let mut demo = urxe(&runner, &home);
    demo.args(["demo", "--transfer", "1MiB", "--atomics", "100"]);
    let finished = run("urxe demo", demo, LIMIT).success();
    assert!(finished.stdout.contains("All bytes match"), "{finished}");

    let cache = home.path().join(".cache/urxe");
    for directory in [cache.clone(), only_entry(&cache)] {
        let mode = fs::metadata(&directory).expect("written").mode();
        assert_eq!(mode & 0o777, 0o700, "{}", directory.display());
    }
    assert!(only_entry(&cache).join("liburxe.so").is_file());
}

#[test]
fn command_without_its_libraries_runs_a_program_of_debian() {
    if !require(&[DEVINFO]) {
        return;
    }
    let home = Directory::new();
    let runner = Runner::alone();
    for view in ["--sysfs=auto", "--sysfs=preload"] {
        let mut devices = urxe(&runner, &home);
        devices.args(["run", view, "--", "ibv_devices"]);
        let finished = run("ibv_devices", devices, LIMIT).success();
        assert!(finished.stdout.contains("urxe_lo"), "{finished}");
    }
}

#[test]
fn programs_compile_against_the_headers_inside_the_command() {
    if !require(&[
        Need::Program("cc", "gcc"),
        Need::Program("pkg-config", "pkg-config"),
    ]) {
        return;
    }
    let home = Directory::new();
    fs::write(
        home.path().join("list.c"),
        "#include <infiniband/verbs.h>\n\
         int main(void) { int n; return ibv_get_device_list(&n) && n > 0 ? 0 : 1; }\n",
    )
    .expect("own directory");
    let runner = Runner::alone();
    let lines = run(
        "urxe env",
        {
            let mut command = urxe(&runner, &home);
            command.arg("env");
            command
        },
        LIMIT,
    )
    .success();
    let mut shell = runner.command("sh");
    shell.current_dir(home.path()).args([
        "-ec",
        &format!(
            "{}\ncc list.c $(pkg-config --cflags --libs libibverbs) -o list && ./list\n\
             case $(pkg-config --cflags libibverbs) in *{}*) ;; *) exit 1 ;; esac",
            lines.stdout,
            home.path().display(),
        ),
    ]);
    run("cc", shell, LIMIT).success();
}

#[test]
fn cache_of_another_user_is_not_used() {
    if !require(&[Need::Root]) {
        return;
    }
    const NOBODY: u32 = 65534;
    let home = Directory::new();
    let cache = home.path().join(".cache/urxe");
    fs::create_dir_all(&cache).expect("own directory");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).expect("own directory");
    chown(&cache, Some(NOBODY), Some(NOBODY)).expect("root may");
    let mut command = urxe(&Runner::here(), &home);
    command.args(["run", "--sysfs=no", "--", "sh", "-c"]);
    command.arg("readlink -f ${LD_LIBRARY_PATH%%:*}/libibverbs.so.1");
    let finished = run("urxe run", command, LIMIT).success();
    let used = Path::new(finished.stdout.trim());
    assert!(used.starts_with(home.path().join("tmp")), "{finished}");
    assert_eq!(fs::read_dir(&cache).expect("root may").count(), 0);
}

/// A file in place of a directory: not even root can create anything in it.
fn blocked(path: &Path) {
    fs::write(path, "").expect("own directory");
}

#[test]
fn libraries_are_written_elsewhere_if_the_cache_is_not_writable() {
    let home = Directory::new();
    blocked(&home.path().join(".cache"));
    let mut command = urxe(&Runner::here(), &home);
    command.args(["run", "--sysfs=no", "--", "sh", "-c"]);
    command.arg("readlink -f ${LD_LIBRARY_PATH%%:*}/libibverbs.so.1");
    let finished = run("urxe run", command, LIMIT).success();
    let used = Path::new(finished.stdout.trim());
    let temporary = home.path().join("tmp");
    assert!(used.starts_with(&temporary), "{finished}");
    let mode = fs::metadata(only_entry(&temporary))
        .expect("written")
        .mode();
    assert_eq!(mode & 0o777, 0o700, "{finished}");
}

#[test]
fn missing_directory_for_the_libraries_is_reported() {
    let home = Directory::new();
    let runtime = home.path().join("runtime");
    fs::create_dir(&runtime).expect("own directory");
    let mut command = urxe(&Runner::here(), &home);
    for name in [".cache", "file"] {
        blocked(&home.path().join(name));
    }
    // That for links to the libraries is usable.
    command
        .args(["run", "--sysfs=no", "--", "true"])
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("TMPDIR", home.path().join("file"));
    let finished = run("urxe run", command, LIMIT);
    assert_eq!(finished.status.code(), Some(125), "{finished}");
    let cause = format!("cannot write liburxe.so to {}", home.path().display());
    for part in [cause.as_str(), "set XDG_CACHE_HOME or TMPDIR"] {
        assert!(finished.stderr.contains(part), "{finished}");
    }
}

fn only_entry(directory: &Path) -> PathBuf {
    let mut entries = fs::read_dir(directory).expect("written");
    let path = entries.next().expect("an entry").expect("readable").path();
    assert!(entries.next().is_none(), "{}", directory.display());
    path
}
