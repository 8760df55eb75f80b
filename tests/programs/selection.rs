//! The devices that `urxe run --devices` and `URXE_DEVICES` select.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::namespace::VethPair;
use crate::common::pingpong::exclusive;
use crate::common::require::{DEVINFO, IP, Need, require};
use crate::common::run::{Finished, POLL_INTERVAL, Running, run};
use crate::common::runner::Runner;
use crate::connection_manager::{self, Server, TCP};
use crate::rsockets::{self, wait_for_port};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns a network with the interfaces `va`, which has no route to the Internet, and `lo`.
fn two_interfaces(needs: &[Need]) -> Option<VethPair> {
    let all = [&[DEVINFO, IP, Need::NetworkNamespaces], needs].concat();
    require(&all).then(|| {
        let cable = VethPair::new(&Runner::here(), 1500);
        cable.a.ip("link set lo up");
        cable
    })
}

/// Runs a shell script over urxe with these options.
fn script(runner: &Runner, options: &[&str], text: &str) -> Finished {
    let mut command = runner.urxe();
    command.arg("run").args(options);
    command.args(["--", "sh", "-c", text]);
    run(text, command, LIMIT)
}

/// Returns the first words with a device's prefix, one for each line.
fn devices(text: &str) -> Vec<&str> {
    let words = text.lines().filter_map(|line| {
        let mut words = line.split(['/', ' ', '\t']);
        words.find(|word| word.starts_with("urxe_"))
    });
    words.collect()
}

#[test]
fn selection_determines_the_devices_and_their_order() {
    let Some(cable) = two_interfaces(&[]) else {
        return;
    };
    let runner = cable.a.runner();
    for (list, expected) in [
        ("*", &["urxe_va", "urxe_lo"][..]),
        ("lo,va", &["urxe_lo", "urxe_va"]),
        ("urxe_lo", &["urxe_lo"]),
        ("^lo", &["urxe_va"]),
        ("*,^v*", &["urxe_lo"]),
    ] {
        for view in ["yes", "preload"] {
            let options = ["--devices", list, "--sysfs", view];
            for text in ["ibv_devices", "rdma link"] {
                let shown = script(runner, &options, text).success();
                assert_eq!(devices(&shown.stdout), expected, "{list}: {shown}");
                assert_eq!(shown.stderr, "", "{list}: {shown}");
            }
            let text = "ls /sys/class/infiniband /sys/class/infiniband_verbs";
            let shown = script(runner, &options, text).success();
            let names: BTreeSet<_> = devices(&shown.stdout).into_iter().collect();
            assert_eq!(names, expected.iter().copied().collect(), "{list}: {shown}");
        }
        let mut command = runner.urxe();
        command.arg("devices").env("URXE_DEVICES", list);
        let shown = run("urxe devices", command, LIMIT).success();
        assert_eq!(devices(&shown.stdout), expected, "{list}: {shown}");
        let hidden = ["va", "lo"].map(|name| (name, expected.contains(&&*format!("urxe_{name}"))));
        for (name, _) in hidden.iter().filter(|(_, shown)| !shown) {
            let line = format!("  {name}: URXE_DEVICES leaves it out\n");
            assert!(shown.stderr.contains(&line), "{list}: {shown}");
        }
    }
}

/// Both hosts have a loopback device with the same addresses, which programs that use all devices
/// would connect to each other.
#[test]
fn loopback_device_is_in_the_default_only_without_another() {
    let Some(cable) = two_interfaces(&[]) else {
        return;
    };
    let runner = cable.a.runner();
    let check = |expected: &[&str]| {
        for view in ["yes", "preload"] {
            for text in ["ibv_devices", "rdma link", "ls /sys/class/infiniband"] {
                let shown = script(runner, &["--sysfs", view], text).success();
                let found: BTreeSet<_> = match text.starts_with("ls") {
                    true => shown.stdout.lines().collect(),
                    false => devices(&shown.stdout).into_iter().collect(),
                };
                assert_eq!(found, expected.iter().copied().collect(), "{shown}");
                assert_eq!(shown.stderr, "", "{shown}");
            }
        }
    };
    check(&["urxe_va"]);
    let mut command = runner.urxe();
    command.arg("devices");
    let shown = run("urxe devices", command, LIMIT).success();
    assert_eq!(devices(&shown.stdout), ["urxe_va"], "{shown}");
    let why = "  lo: it connects to no other host (`URXE_DEVICES=*` includes it)\n";
    assert!(shown.stderr.contains(why), "{shown}");
    // Without a peer the interface has no carrier, so its device is not active.
    cable.b.ip("link set vb down");
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut command = runner.command("ip");
        command.args(["link", "show", "va"]);
        let shown = run("ip link show", command, LIMIT).success();
        if shown.stdout.contains("NO-CARRIER") {
            break;
        }
        assert!(Instant::now() < deadline, "{shown}");
        std::thread::sleep(POLL_INTERVAL);
    }
    check(&["urxe_va", "urxe_lo"]);
}

/// Verbs, sysfs and `rdma` show the same name and the same speed.
#[test]
fn device_has_the_name_and_speed_that_are_given_to_it() {
    let Some(cable) = two_interfaces(&[]) else {
        return;
    };
    let runner = cable.a.runner();
    for view in ["yes", "preload"] {
        let shown = |list: &str, text: &str| {
            let shown = script(runner, &["--sysfs", view, "--devices", list], text).success();
            assert_eq!(shown.stderr, "", "{shown}");
            shown.stdout
        };
        let named = "va=mlx5_0@100G,lo";
        let listed = shown(named, "ibv_devices");
        let names: Vec<_> = listed
            .lines()
            .skip(2)
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(names, ["mlx5_0", "urxe_lo"]);
        let text = shown(named, "ibv_devinfo -v -d mlx5_0");
        // Four lanes of EDR.
        for line in ["4X (2)", "25.0 Gbps (32)"] {
            assert!(text.contains(line), "{text}");
        }
        let text = shown(
            named,
            "cat /sys/class/infiniband/mlx5_0/ports/1/rate /sys/class/infiniband_verbs/mlx5_0/ibdev \
             /sys/class/infiniband/urxe_lo/ports/1/rate; test -e /dev/infiniband/mlx5_0",
        );
        let rates = "100 Gb/sec (4X EDR)\nmlx5_0\n40 Gb/sec (4X QDR)\n";
        assert_eq!(text, rates);
        let text = shown(named, "rdma link");
        assert!(text.starts_with("link mlx5_0/1 "), "{text}");
        let text = shown("*@10G", "ibv_devinfo -v -d urxe_va");
        assert!(text.contains("1X (1)"), "{text}");
    }
}

#[test]
fn list_that_is_not_understood_is_an_error() {
    let runner = Runner::here();
    let mut command = runner.urxe();
    command.args(["run", "--devices", "^lo,eth0", "--", "true"]);
    let finished = run("urxe run", command, LIMIT);
    assert_eq!(finished.status.code(), Some(125), "{finished}");
    assert!(finished.stderr.contains("as in `^lo,^eth0`"), "{finished}");

    if !require(&[DEVINFO]) {
        return;
    }
    for program in ["ibv_devices", "ibv_devinfo"] {
        let mut command = runner.verbs(program);
        command.env("URXE_DEVICES", "eth0,,lo");
        let finished = run(program, command, LIMIT);
        assert!(!finished.status.success(), "{finished}");
        let messages = finished
            .stderr
            .matches("URXE_DEVICES: `eth0,,lo` has an empty name");
        assert_eq!(messages.count(), 1, "{finished}");
    }
    let mut command = runner.urxe();
    command.arg("devices").env("URXE_DEVICES", "eth0,,lo");
    let finished = run("urxe devices", command, LIMIT);
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    assert!(
        finished.stderr.contains("URXE_DEVICES: `eth0,,lo`"),
        "{finished}"
    );
}

#[test]
fn selection_of_nothing_is_reported_with_the_choice() {
    let Some(cable) = two_interfaces(&[Need::Program("rping", "rdmacm-utils")]) else {
        return;
    };
    let message = "URXE_DEVICES=eth9 selects none of the usable interfaces, which are va, lo:";
    let runner = cable.a.runner();
    let mut list = runner.urxe();
    list.arg("devices").env("URXE_DEVICES", "eth9");
    let mut commands = vec![list];
    for words in ["ibv_devinfo", "rping -s -a 127.0.0.1"] {
        let mut command = runner.urxe();
        command
            .args(["run", "--devices", "eth9", "--"])
            .args(words.split(' '));
        commands.push(command);
    }
    for command in commands {
        let finished = run("with eth9", command, LIMIT);
        assert!(!finished.status.success(), "{finished}");
        assert_eq!(finished.stderr.matches(message).count(), 1, "{finished}");
    }
}

/// Starts a program with only the device `urxe_va`, so that none has a loopback address.
fn start_without_lo(cable: &VethPair, command: &str) -> Running {
    let runner = cable.a.runner().through(["env", "URXE_DEVICES=^lo"]);
    connection_manager::start(&runner, command)
}

#[test]
fn connections_to_loopback_addresses_need_no_loopback_device() {
    let Some(cable) = two_interfaces(&[Need::Program("rping", "rdmacm-utils")]) else {
        return;
    };
    let _exclusive = exclusive();
    let runner = cable.a.runner().through(["env", "URXE_DEVICES=^lo"]);
    let server = Server::start(&runner, "rping -s -C 20 -v", TCP | 7174);
    let client = start_without_lo(&cable, "rping -c -a 127.0.0.1 -C 20 -v").finish(LIMIT);
    client.success();
    server.finish().success();
}

/// A datagram socket on a loopback address uses the loopback interface, and needs to agree with a
/// peer that selects other devices.
#[test]
fn datagrams_to_loopback_addresses_need_no_loopback_device() {
    let Some(cable) = two_interfaces(&[rsockets::RSTREAM]) else {
        return;
    };
    let _exclusive = exclusive();
    for address in ["127.0.0.1", "::1"] {
        let server = start_without_lo(&cable, &format!("udpong -b {address}"));
        wait_for_port(cable.a.runner(), "udp", 7174);
        let client = format!("udpong -s {address} -C 50 -S 1000 -T a");
        for running in [
            start_without_lo(&cable, &client),
            connection_manager::start(cable.a.runner(), &client),
        ] {
            let finished = running.finish(connection_manager::LIMIT).success();
            assert!(finished.stdout.contains("custom    1000"), "{finished}");
        }
        drop(server);
    }
}
