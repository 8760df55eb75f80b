//! The sysfs view of `urxe run`.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::common::devices::DeviceInfo;
use crate::common::namespace::Namespace;
use crate::common::pingpong::{Pingpong, exclusive};
use crate::common::require::{DEVINFO, IP, Need, PINGPONG, require};
use crate::common::run::{POLL_INTERVAL, run};
use crate::common::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);
const PORT: &str = "/sys/class/infiniband/urxe_lo/ports/1";

/// Returns the output of a shell script in the view.
fn shell(runner: &Runner, script: &str) -> String {
    let mut command = runner.urxe();
    command.args(["run", "--sysfs", "yes", "--", "bash", "-c", script]);
    run(script, command, LIMIT).success().stdout
}

fn line(runner: &Runner, path: &str) -> String {
    shell(runner, &format!("cat {path}")).trim().to_owned()
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn sysfs_agrees_with_verbs() {
    if !require(&[DEVINFO, Need::NetworkNamespaces]) {
        return;
    }
    let runner = Runner::here();
    let info = DeviceInfo::query(&runner, "urxe_lo");
    let device = "/sys/class/infiniband/urxe_lo";
    for (file, name) in [
        ("node_guid", "node_guid"),
        ("sys_image_guid", "sys_image_guid"),
        ("fw_ver", "fw_ver"),
        ("ports/1/link_layer", "link_layer"),
    ] {
        let shown = info.value(name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(line(&runner, &format!("{device}/{file}")), shown, "{file}");
    }
    assert_eq!(line(&runner, &format!("{PORT}/state")), "4: ACTIVE");
    assert_eq!(info.value("state"), Some("PORT_ACTIVE (4)"));
    assert_eq!(line(&runner, &format!("{PORT}/phys_state")), "5: LinkUp");
    assert_eq!(info.value("phys_state"), Some("LINK_UP (5)"));
    assert_eq!(line(&runner, &format!("{PORT}/rate")), "40 Gb/sec (4X QDR)");
    assert_eq!(info.value("active_width"), Some("4X (2)"));
    assert_eq!(info.value("active_speed"), Some("10.0 Gbps (4)"));
    let capabilities = info.value("port_cap_flags").expect("shown");
    assert_eq!(line(&runner, &format!("{PORT}/cap_mask")), capabilities);
    for (index, gid) in info.gids() {
        let shown = line(&runner, &format!("{PORT}/gids/{index}"));
        assert_eq!(shown.parse(), Ok(gid));
        let attribute = |name| line(&runner, &format!("{PORT}/gid_attrs/{name}/{index}"));
        assert_eq!(
            (attribute("types"), attribute("ndevs")),
            ("RoCE v2".to_owned(), "lo".to_owned())
        );
    }
    assert_eq!(shell(&runner, &format!("ls {device}/device/net")), "lo\n");
    assert_eq!(line(&runner, &format!("{device}/device/numa_node")), "-1");
    let verbs = "/sys/class/infiniband_verbs/urxe_lo";
    assert_eq!(line(&runner, &format!("{verbs}/ibdev")), "urxe_lo");
    assert_eq!(shell(&runner, &format!("ls {verbs}/device/net")), "lo\n");
}

/// hwloc lists only devices with a link to a parent that is not virtual.
#[test]
fn hwloc_finds_the_devices() {
    let lstopo = Need::Program("lstopo-no-graphics", "hwloc-nox");
    if !require(&[lstopo, Need::NetworkNamespaces]) {
        return;
    }
    let runner = Runner::here();
    for view in ["yes", "preload"] {
        let mut command = runner.urxe();
        command.args(["run", "--sysfs", view, "--devices", "*"]);
        command.args(["--", "lstopo-no-graphics", "--of", "console"]);
        let shown = run("lstopo", command, LIMIT).success().stdout;
        assert!(shown.contains("OpenFabrics \"urxe_lo\""), "{view}: {shown}");
    }
}

#[test]
fn kernel_classes_remain_visible() {
    if !require(&[Need::NetworkNamespaces]) {
        return;
    }
    let list = |directory: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect("sysfs").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    let runner = Runner::here();
    let classes = shell(&runner, "ls /sys/class");
    for class in list("/sys/class") {
        assert!(
            lines(&classes).contains(&*class),
            "{class} is not in {classes}"
        );
        let shown = shell(&runner, &format!("ls /sys/class/{class}"));
        let before = list(&format!("/sys/class/{class}"));
        let missing: Vec<_> = before
            .iter()
            .filter(|name| !lines(&shown).contains(&***name))
            .collect();
        assert!(missing.is_empty(), "{class}: {missing:?}");
    }
    let mtu = fs::read_to_string("/sys/class/net/lo/mtu").expect("readable");
    assert_eq!(line(&runner, "/sys/class/net/lo/mtu"), mtu.trim());
    // Other processes do not see the devices.
    assert!(!fs::exists("/sys/class/infiniband/urxe_lo").expect("readable"));
}

#[test]
fn devices_of_the_kernel_stay_in_dev() {
    if !require(&[Need::NetworkNamespaces]) {
        return;
    }
    let runner = Runner::here();
    let nodes = fs::read_dir("/dev").expect("readable").flatten();
    let before: BTreeSet<String> = nodes
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let shown = shell(&runner, "ls /dev");
    // Other processes may add and remove entries between the two listings.
    let missing: Vec<_> = before
        .iter()
        .filter(|name| !lines(&shown).contains(&***name))
        .filter(|name| fs::exists(format!("/dev/{name}")).unwrap_or(false))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let script = "echo x > /dev/null && head -c 3 /dev/zero | wc -c && df /dev/shm | tail -n 1";
    let used = shell(&runner, script);
    let same = run(
        "df",
        {
            let mut command = runner.command("sh");
            command.args(["-c", script]);
            command
        },
        LIMIT,
    );
    assert_eq!(used.split_whitespace().next(), Some("3"));
    assert_eq!(
        used.split_whitespace().last(),
        same.success().stdout.split_whitespace().last()
    );
}

#[test]
fn ucx_finds_the_devices() {
    if !require(&[
        Need::Program("ucx_info", "ucx-utils"),
        IP,
        Need::NetworkNamespaces,
    ]) {
        return;
    }
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let shown = shell(namespace.runner(), "ucx_info -d 2>&1");
    let transports: Vec<_> = shown
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("_verbs") || line.ends_with("Device: urxe_lo:1"))
        .collect();
    assert!(
        transports.iter().any(|line| line.contains("rc_verbs")),
        "{shown}"
    );
    assert!(
        transports.iter().any(|line| line.contains("urxe_lo:1")),
        "{shown}"
    );
}

#[test]
fn unprivileged_user_sees_the_devices_and_keeps_its_ids() {
    if !require(&[Need::UserNamespaces]) {
        return;
    }
    let runner = Runner::here().unprivileged();
    let id = run("id", runner.command("id"), LIMIT).success().stdout;
    let shown = shell(&runner, &format!("id -u; id -g; cat {PORT}/state"));
    let shown: Vec<_> = shown.lines().collect();
    assert!(
        id.starts_with(&format!("uid={}", shown[0])),
        "{id} {shown:?}"
    );
    assert!(id.contains(&format!("gid={}", shown[1])), "{id} {shown:?}");
    assert_eq!(shown[2], "4: ACTIVE");
}

#[test]
fn view_is_absent_when_disabled() {
    let mut command = Runner::here().urxe();
    command.args([
        "run",
        "--sysfs",
        "no",
        "--",
        "ls",
        "/sys/class/infiniband/urxe_lo",
    ]);
    let finished = run("ls", command, LIMIT);
    assert!(!finished.status.success(), "{finished}");
}

#[test]
fn counters_are_current_and_persist_after_programs_end() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    // The pingpong runs outside `urxe run`: the view has the counters of all processes of the user.
    let script = format!(
        "cat {PORT}/hw_counters/rdma_recvs; echo ready > $0; \
         until [ $(cat {PORT}/hw_counters/rdma_recvs) -ge 2000 ]; do sleep 0.01; done; \
         cat {PORT}/hw_counters/rdma_sends; grep -rh . {PORT}/counters/port_rcv_data; sleep 0.5; \
         cat {PORT}/hw_counters/rdma_recvs"
    );
    let directory = crate::common::runner::Directory::new();
    let ready = directory.path().join("ready");
    let mut command = namespace.runner().urxe();
    command
        .args(["run", "--sysfs", "yes", "--", "bash", "-c", &script])
        .arg(&ready);
    let reader = crate::common::run::Running::start("reader", command);
    let deadline = Instant::now() + LIMIT;
    while !ready.exists() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
    Pingpong::over_loopback(namespace.runner())
        .start()
        .finish()
        .success();
    let shown = reader.finish(LIMIT).success().stdout;
    let shown: Vec<u64> = shown
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    // A thousand messages each way, with both ends on this host.
    assert_eq!((shown[0], shown[1], shown[3]), (0, 2000, 2000), "{shown:?}");
    let bytes = shown[2] * 4;
    assert!(bytes >= 2000 * 4096, "{shown:?}");
}

#[test]
fn counter_service_ends_with_the_last_user_of_its_view() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let own = shell(&Runner::here(), "readlink /proc/self/ns/mnt");
    let deadline = Instant::now() + LIMIT;
    let is_used = || {
        fs::read_dir("/proc")
            .expect("proc")
            .flatten()
            .any(|process| {
                let link = fs::read_link(process.path().join("ns/mnt"));
                link.is_ok_and(|link| link.to_string_lossy() == own.trim())
            })
    };
    while is_used() {
        assert!(Instant::now() < deadline, "a process remains in {own}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
