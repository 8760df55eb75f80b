//! The sysfs view without mounts: by an object that programs preload.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::namespace::Namespace;
use crate::common::require::{IP, Need, require};
use crate::common::run::{POLL_INTERVAL, run};
use crate::common::runner::{Directory, Runner};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: &str = "/sys/class/infiniband/urxe_lo/ports/1";
/// The environment variable with the root of the view.
const ROOT: &str = "URXE_SYSFS_ROOT";

/// Returns the output of a program that preloads the object.
fn preloaded(runner: &Runner, words: &[&str]) -> String {
    let mut command = runner.urxe();
    command
        .args(["run", "--sysfs", "preload", "--"])
        .args(words);
    run(words[0], command, LIMIT).success().stdout
}

fn shell(runner: &Runner, script: &str) -> String {
    preloaded(runner, &["bash", "-c", script])
}

/// Compiles a C program.
fn compile(directory: &Path, source: &str, flags: &[&str]) -> String {
    let program = directory.join("program");
    let mut command = Command::new("cc");
    command.args(flags).arg("-o").arg(&program);
    command.arg(urxe_tests::workspace().join(source));
    run("cc", command, LIMIT).success();
    program.to_str().expect("a plain path").to_owned()
}

#[test]
fn every_kind_of_call_sees_the_devices() {
    if !require(&[Need::Program("cc", "gcc")]) {
        return;
    }
    let directory = Directory::new();
    // Fortified programs call other functions.
    for flags in [
        &["-Wall"][..],
        &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"],
        &["-D_FILE_OFFSET_BITS=64"],
    ] {
        let program = compile(directory.path(), "tests/programs/preload.c", flags);
        let printed = preloaded(&Runner::here(), &[&program]);
        assert_eq!(printed, "all paths are visible\n", "{flags:?}");
    }
}

#[test]
fn common_tools_see_the_devices() {
    let runner = Runner::here();
    let listed = shell(
        &runner,
        "ls /sys/class/infiniband /sys/class/infiniband_verbs",
    );
    assert!(
        listed.lines().filter(|line| *line == "urxe_lo").count() == 2,
        "{listed}"
    );
    let long = shell(&runner, "ls -l /sys/class/infiniband/ /dev/infiniband");
    assert!(long.contains("urxe_lo"), "{long}");
    assert_eq!(shell(&runner, &format!("cat {PORT}/state")), "4: ACTIVE\n");
    assert_eq!(
        shell(&runner, &format!("cat < {PORT}/state")),
        "4: ACTIVE\n"
    );
    assert_eq!(
        shell(
            &runner,
            "cd /sys/class/infiniband/urxe_lo && cat ports/*/link_layer && /bin/pwd"
        ),
        "Ethernet\n/sys/class/infiniband/urxe_lo\n"
    );
    let found = shell(&runner, "find /sys/class/infiniband/urxe_lo/ -name state");
    assert_eq!(found, format!("{PORT}/state\n"));
    let matched = shell(
        &runner,
        "grep -rl ACTIVE /sys/class/infiniband/urxe_lo/ports",
    );
    assert_eq!(matched, format!("{PORT}/state\n"));
    let tested = shell(
        &runner,
        "test -d /sys/class/infiniband/urxe_lo && echo there",
    );
    assert_eq!(tested, "there\n");
}

#[test]
fn mounted_and_preloaded_views_are_equal() {
    if !require(&[Need::NetworkNamespaces]) {
        return;
    }
    let runner = Runner::here();
    let script = "cd /sys/class/infiniband && find urxe_lo -type f ! -path '*counters*' \
                  | sort | xargs grep -H .; find urxe_lo | sort";
    let mut command = runner.urxe();
    command.args(["run", "--sysfs", "yes", "--", "bash", "-c", script]);
    let mounted = run("mounted", command, LIMIT).success().stdout;
    assert!(
        mounted.contains("urxe_lo/ports/1/state:4: ACTIVE"),
        "{mounted}"
    );
    assert_eq!(shell(&runner, script), mounted);
}

#[test]
fn python_sees_the_devices() {
    if !require(&[Need::Program("python3", "python3")]) {
        return;
    }
    let script = "import glob, os, pathlib\n\
         c = '/sys/class/infiniband'\n\
         assert 'urxe_lo' in os.listdir(c)\n\
         assert 'urxe_lo' in [e.name for e in os.scandir(c) if e.is_dir()]\n\
         assert os.listdir(c + '/urxe_lo/device/net') == ['lo']\n\
         assert open(c + '/urxe_lo/ports/1/state').read() == '4: ACTIVE\\n'\n\
         assert glob.glob(c + '/urxe_l*/ports/*') == [c + '/urxe_lo/ports/1']\n\
         assert os.path.realpath(c + '/urxe_lo') == c + '/urxe_lo'\n\
         assert c in [str(p.parent) for p in pathlib.Path(c).iterdir()]\n\
         print('seen')";
    assert_eq!(
        preloaded(&Runner::here(), &["python3", "-c", script]),
        "seen\n"
    );
}

#[test]
fn ucx_finds_the_devices_of_the_preloaded_view() {
    let ucx = Need::Program("ucx_info", "ucx-utils");
    if !require(&[ucx, IP, Need::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let shown = shell(namespace.runner(), "ucx_info -d 2>&1");
    assert!(shown.contains("rc_verbs"), "{shown}");
    assert!(shown.contains("urxe_lo:1"), "{shown}");
}

#[test]
fn other_paths_are_unchanged() {
    let runner = Runner::here();
    let script = "ls /sys/class; cat /sys/class/net/lo/mtu; readlink /proc/self/cwd; ls /dev/null";
    let mut command = runner.command("bash");
    command.args(["-c", script]);
    let before = run("bash", command, LIMIT).success().stdout;
    assert_eq!(shell(&runner, script), before);
}

#[test]
fn object_that_cannot_be_written_is_reported() {
    let directory = Directory::new();
    let runner = Runner::here();
    let script = "cp $(dirname \"$0\")/urxe $(dirname \"$0\")/liburxe.so \"$1\"";
    let urxe = runner.urxe().get_program().to_owned();
    let mut copy = Command::new("bash");
    copy.args(["-c", script]).arg(&urxe).arg(directory.path());
    run("cp", copy, LIMIT).success();
    let mut command = Command::new(directory.path().join("urxe"));
    let runtime = directory.path().join("runtime");
    fs::create_dir(&runtime).expect("own directory");
    // The command contains the object that is not beside it, and needs a directory for it.
    command
        .args(["run", "--sysfs", "preload", "--", "true"])
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("XDG_CACHE_HOME", "/proc/none")
        .env("TMPDIR", "/proc/none");
    let finished = run("urxe run", command, LIMIT);
    assert_eq!(finished.status.code(), Some(125), "{finished}");
    let wanted = "cannot write liburxe_preload.so to /proc/none";
    assert!(finished.stderr.contains(wanted), "{finished}");
}

#[test]
fn view_is_removed_with_its_last_user() {
    let runner = Runner::here();
    // The child outlives the program and repeatedly executes other programs.
    let script = format!(
        "export END=$(($(date +%s) + 4)) \
         CHILD='[ $(date +%s) -lt $END ] && exec bash -c \"$CHILD\"; cat {PORT}/state > ${ROOT}.seen'
         setsid -f bash -c \"$CHILD\" > /dev/null; echo ${ROOT}"
    );
    let root = shell(&runner, &script);
    let root = Path::new(root.trim());
    assert!(root.is_absolute());
    let seen = root.with_extension("seen");
    let deadline = Instant::now() + LIMIT;
    while root.exists() {
        assert!(Instant::now() < deadline, "{} stays", root.display());
        std::thread::sleep(POLL_INTERVAL);
    }
    let printed = fs::read_to_string(&seen);
    // The file does not exist if nothing was written.
    let _ = fs::remove_file(&seen);
    assert_eq!(printed.ok().as_deref(), Some("4: ACTIVE\n"));
}
