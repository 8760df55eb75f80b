//! Older kernels and containers, emulated by a seccomp filter (`restrict.c`) and a read-only root.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::exclusive;
use crate::common::require::{DEVINFO, IP, Need, require};
use crate::common::run::{Finished, Running, run};
use crate::common::runner::Runner;
use crate::connection_manager::RPING;

const LIMIT: Duration = Duration::from_secs(60);

/// The profiles of kernels, by what each lacks, the newest last. A kernel also lacks what the newer
/// ones in this list lack.
const KERNELS: [&str; 4] = ["4.18", "5.4", "5.10", "6.1"];

/// Returns the compiled `restrict.c`.
fn restrict() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("restrict");
        // Renamed when complete, because another test run may be executing the old file.
        let draft = program.with_extension(std::process::id().to_string());
        let mut compiler = Command::new("cc");
        compiler
            .args(["-Wall", "-Werror", "-o"])
            .arg(&draft)
            .arg(urxe_tests::workspace().join("tests/programs/restrict.c"));
        run("cc", compiler, LIMIT).success();
        fs::rename(&draft, &program).expect("own file");
        program.to_str().expect("a plain path").to_owned()
    })
}

/// Returns a runner in whose programs the calls of these profiles fail.
fn restricted(runner: &Runner, profiles: &[&str]) -> Runner {
    runner.through([&[restrict()], profiles, &["--"]].concat())
}

fn has_needs() -> bool {
    require(&[IP, Need::NetworkNamespaces, Need::Program("cc", "gcc")])
}

/// Runs transfers by all operations, and checks each byte.
fn demo(runner: &Runner) -> Finished {
    let mut command = runner.urxe();
    command
        .args(["demo", "--transfer", "1MiB", "--atomics", "100"])
        .args(["--round-trips", "100", "--skip-pingpong"]);
    let finished = run("urxe demo", command, LIMIT).success();
    assert!(finished.stdout.contains("All bytes match"), "{finished}");
    finished
}

/// Lists the devices that a program under `urxe run` finds in sysfs.
fn view(runner: &Runner) -> Finished {
    run(
        "ls",
        {
            let mut command = runner.verbs("ls");
            command.arg("/sys/class/infiniband");
            command
        },
        LIMIT,
    )
}

#[test]
fn older_kernels_suffice() {
    if !has_needs() {
        return;
    }
    let _exclusive = exclusive();
    let runner = Runner::alone();
    for oldest in 0..KERNELS.len() {
        demo(&restricted(&runner, &KERNELS[oldest..]));
    }
}

#[test]
fn older_kernel_joins_ipv6_groups() {
    if !has_needs() || !require(&[RPING]) {
        return;
    }
    let _exclusive = exclusive();
    let cable = VethPair::new(&Runner::here(), 1500);
    let mckey = |runner: &Runner, address: &str, more: &[&str]| {
        let mut command = restricted(runner, &KERNELS).verbs("mckey");
        command.args(["-m", "ff05::77", "-b", address, "-C", "5"]);
        command.args(more);
        command
    };
    let receiver = mckey(cable.a.runner(), VethPair::A6, &[]);
    let mut receiver = Running::start("mckey", receiver);
    // mckey reports its membership only at its end. Datagrams sent before are lost.
    let deadline = Instant::now() + LIMIT;
    while receiver.is_running() && Instant::now() < deadline {
        let sender = mckey(cable.b.runner(), VethPair::B6, &["-s"]);
        run("mckey -s", sender, LIMIT).success();
    }
    receiver.finish(LIMIT).success();
}

#[test]
fn policy_of_docker_suffices() {
    if !has_needs() {
        return;
    }
    let _exclusive = exclusive();
    let runner = Runner::alone();
    // Before Linux 5.3 the counter service of the view has no pidfd.
    for profiles in [&["docker"][..], &["docker", "4.18"]] {
        let container = restricted(&runner, profiles);
        demo(&container);
        let finished = view(&container).success();
        assert_eq!(finished.stdout, "urxe_lo\n", "{profiles:?}: {finished}");
        assert_eq!(finished.stderr, "", "{profiles:?}: {finished}");
    }
}

#[test]
fn neither_ipv6_nor_netlink_is_necessary() {
    if !has_needs() {
        return;
    }
    let _exclusive = exclusive();
    let runner = Runner::alone();
    demo(&restricted(&runner, &["no-ipv6"]));
    demo(&restricted(&runner, &["no-netlink"]));
}

#[test]
fn absence_of_unix_sockets_is_explained() {
    if !has_needs() {
        return;
    }
    let runner = restricted(&Runner::alone(), &["no-unix", "docker"]);
    let listener = run(
        "urxe ping",
        {
            let mut command = runner.urxe();
            command.args(["ping", "--listen"]);
            command
        },
        LIMIT,
    );
    assert_eq!(listener.status.code(), Some(1), "{listener}");
    assert!(listener.stderr.contains("Unix socket"), "{listener}");
    assert!(listener.stderr.contains("urxe doctor"), "{listener}");
    // The view needs the counter service, which cannot start.
    let finished = view(&runner);
    assert!(!finished.stderr.contains("ld.so"), "{finished}");
}

#[test]
fn absence_of_devices_is_explained() {
    if !has_needs() || !require(&[DEVINFO]) {
        return;
    }
    // The loopback interface is down.
    let namespace = Namespace::new(&Runner::here());
    let runner = namespace.runner();
    for words in [&["ping", "--listen"][..], &["perf", "127.0.0.1"], &["demo"]] {
        let mut command = runner.urxe();
        command.args(words);
        let finished = run("urxe", command, LIMIT);
        assert_eq!(finished.status.code(), Some(1), "{finished}");
        let remedy = "ip link set dev lo up";
        assert!(finished.stderr.contains(remedy), "{finished}");
    }
    let finished = run("ibv_devices", runner.verbs("ibv_devices"), LIMIT).success();
    let reason = "interface lo: it is down (`ip link set dev lo up`)";
    assert!(finished.stderr.contains(reason), "{finished}");
}

#[test]
fn root_may_be_read_only() {
    if !has_needs() || !require(&[Need::Root]) {
        return;
    }
    let _exclusive = exclusive();
    let read_only = |more: &str| {
        let script = format!("mount -o remount,bind,ro / && {more} exec \"$@\"");
        Runner::alone().through(["unshare", "--mount", "sh", "-c", &script, "sh"])
    };
    let with_tmpfs = read_only("mount -t tmpfs tmpfs /tmp &&");
    demo(&with_tmpfs);
    let finished = view(&with_tmpfs).success();
    assert_eq!(finished.stdout, "urxe_lo\n", "{finished}");

    let without_tmpfs = read_only("");
    let mut command = without_tmpfs.verbs("true");
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", "/usr");
    let finished = run("urxe run", command, LIMIT);
    assert_eq!(finished.status.code(), Some(125), "{finished}");
    assert!(finished.stderr.contains("set TMPDIR"), "{finished}");
}
