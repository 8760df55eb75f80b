//! The command `rdma` of iproute2 under `urxe run`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::{Pingpong, exclusive};
use crate::common::require::{IP, Need, PINGPONG, require};
use crate::common::run::{Finished, POLL_INTERVAL, run};
use crate::common::runner::{Directory, Runner};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `rdma` with these space-separated arguments, without another `rdma` in `PATH`.
fn rdma(runner: &Runner, words: &str) -> Finished {
    rdma_beside(None, runner, words)
}

/// Runs `rdma` with these space-separated arguments. `other` has the only other `rdma` in `PATH`.
fn rdma_beside(other: Option<&Directory>, runner: &Runner, words: &str) -> Finished {
    let path = env::join_paths(other.map(Directory::path)).expect("no colon in it");
    // Not for the programs of the command prefix.
    let runner = runner.through([
        OsStr::new("env"),
        &[OsStr::new("PATH="), &path].join(OsStr::new("")),
    ]);
    let mut command = runner.verbs("rdma");
    command.args(words.split_whitespace());
    run(&format!("rdma {words}"), command, LIMIT)
}

/// Returns the output of a command that succeeds without a message.
#[track_caller]
fn quiet(finished: Finished) -> String {
    let finished = finished.success();
    assert_eq!(finished.stderr, "", "{finished}");
    finished.stdout
}

#[track_caller]
fn parsed(finished: Finished) -> Value {
    let text = quiet(finished);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the index of a network interface.
fn index(runner: &Runner, interface: &str) -> u64 {
    let mut command = runner.command("ip");
    command.args(["-j", "link", "show", interface]);
    parsed(run("ip", command, LIMIT))[0]["ifindex"]
        .as_u64()
        .expect("a number")
}

/// Returns a command for a shell script over urxe.
fn script(runner: &Runner, options: &[&str], script: &str) -> Command {
    let mut command = runner.urxe();
    command.arg("run").args(options);
    command.args(["--", "sh", "-c", script]);
    command
}

#[test]
fn links_have_the_fields_of_iproute2() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    cable.a.ip("link set lo up");
    let runner = &cable.a.runner().through(["env", "URXE_DEVICES=*"]);
    let link = |interface: &str| {
        let index = index(runner, interface);
        json!({
            "ifindex": index,
            "ifname": format!("urxe_{interface}"),
            "port": 1,
            "state": "ACTIVE",
            "physical_state": "LINK_UP",
            "netdev": interface,
            "netdev_index": index,
        })
    };
    let both = json!([link("va"), link("lo")]);
    for words in ["link show -j", "-j link", "link list -jp"] {
        assert_eq!(parsed(rdma(runner, words)), both, "{words}");
    }
    let one = parsed(rdma(runner, "link show urxe_va/1 --json"));
    assert_eq!(one, json!([link("va")]));

    let text = quiet(rdma(runner, "link"));
    let line = "state ACTIVE physical_state LINK_UP netdev";
    assert_eq!(
        text,
        format!("link urxe_va/1 {line} va \nlink urxe_lo/1 {line} lo \n")
    );
    let text = quiet(rdma(runner, "link show -d urxe_va/1"));
    let index = index(runner, "va");
    assert_eq!(
        text,
        format!("link urxe_va/1 {line} va netdev_index {index} \n")
    );
}

#[test]
fn devices_are_those_of_verbs() {
    if !require(&[
        Need::Program("ibv_devices", "ibverbs-utils"),
        IP,
        Need::NetworkNamespaces,
    ]) {
        return;
    }
    let runner = Runner::alone();
    let verbs = quiet(run("ibv_devices", runner.verbs("ibv_devices"), LIMIT));
    let devices = parsed(rdma(&runner, "dev show -j"));
    let devices = devices.as_array().expect("a list");
    let shown: Vec<_> = devices
        .iter()
        .map(|device| {
            let guid = device["node_guid"].as_str().expect("a text");
            assert_eq!(device["sys_image_guid"], guid);
            assert_eq!(
                (&device["node_type"], &device["protocol"]),
                (&"ca".into(), &"roce".into())
            );
            let name = device["ifname"].as_str().expect("a text");
            vec![name.to_owned(), guid.replace(':', "")]
        })
        .collect();
    let listed: Vec<_> = verbs
        .lines()
        // Two lines of headings.
        .skip(2)
        .map(|line| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(shown, listed);
    let text = quiet(rdma(&runner, "dev"));
    let line = format!(
        "{}: urxe_lo: node_type ca protocol roce fw ",
        index(&runner, "lo")
    );
    assert!(text.starts_with(&line), "{text}");
}

/// As the tests of rdma-core 56 and later do.
#[test]
fn rdma_core_finds_the_interface_of_a_device() {
    if !require(&[
        Need::Program("python3", "python3"),
        IP,
        Need::NetworkNamespaces,
    ]) {
        return;
    }
    let runner = Runner::alone();
    let mut command = runner.verbs("python3");
    command.args([
        "-c",
        "import json, subprocess\n\
         rows = json.loads(subprocess.check_output(['rdma', 'link', 'show', '-j']).decode())\n\
         print([r['netdev'] for r in rows if r['ifname'] == 'urxe_lo' and r['port'] == 1])",
    ]);
    assert_eq!(quiet(run("python3", command, LIMIT)), "['lo']\n");
}

/// Makes a directory with an `rdma` that shows a device `rxe0`, and prints its arguments if it is
/// asked for anything else. It finds itself in `PATH`, and no other.
fn with_a_kernel_device() -> Directory {
    let directory = Directory::new();
    let file = directory.path().join("rdma");
    let text = "#!/bin/sh\n\
                case \"$*\" in\n\
                'link show') echo 'link rxe0/1 state ACTIVE ' ;;\n\
                'link show -j') echo '[{\"ifname\":\"rxe0\",\"new_field\":[1]}]' ;;\n\
                'link show rxe0/1') echo \"only rxe0 $PATH\" ;;\n\
                *) echo \"arguments: $*\"; exit 7 ;;\n\
                esac\n";
    fs::write(&file, text).expect("own directory");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("own file");
    directory
}

#[test]
fn the_kernels_devices_follow() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let (runner, kernel) = (Runner::alone(), with_a_kernel_device());
    let ask = |words: &str| rdma_beside(Some(&kernel), &runner, words);
    let text = quiet(ask("link show"));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("link urxe_lo/1 "), "{text}");
    assert_eq!(lines[1], "link rxe0/1 state ACTIVE ");
    let rows = parsed(ask("link show -j"));
    assert_eq!(rows.as_array().map(Vec::len), Some(2), "{rows}");
    assert_eq!(rows[0]["ifname"], "urxe_lo");
    assert_eq!(rows[1], json!({"ifname": "rxe0", "new_field": [1]}));
    let path = kernel.path().display();
    assert_eq!(
        quiet(ask("link show rxe0/1")),
        format!("only rxe0 {path}\n")
    );
    assert!(quiet(ask("link show urxe_lo/1")).starts_with("link urxe_lo/1 "));
}

#[test]
fn other_requests_reach_iproute2() {
    let (runner, kernel) = (Runner::here(), with_a_kernel_device());
    for words in [
        "link add rxe0 type rxe netdev eth0",
        "system show",
        "resource show qp",
        "resource show nothing",
        "-V",
    ] {
        let finished = rdma_beside(Some(&kernel), &runner, words);
        assert_eq!(finished.status.code(), Some(7), "{finished}");
        assert_eq!(finished.stdout, format!("arguments: {words}\n"));
        assert_eq!(finished.stderr, "", "{finished}");
    }
    let finished = rdma(&runner, "link add rxe0 type rxe netdev eth0");
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    assert!(finished.stderr.contains("iproute2"), "{finished}");
}

#[test]
fn unknown_devices_are_errors() {
    let runner = Runner::here();
    for (words, message) in [
        ("link show urxe_none/1", "Wrong device name\n"),
        ("link show urxe_lo/2", "Wrong device name\n"),
        ("link show urxe_lo", "Wrong device name\n"),
        ("dev show urxe_none", "Wrong device name - urxe_none\n"),
        ("statistic show link urxe_none", "Wrong device name\n"),
    ] {
        let finished = rdma(&runner, words);
        assert_eq!(finished.status.code(), Some(1), "{finished}");
        assert_eq!(finished.stderr, message, "{finished}");
        assert_eq!(finished.stdout, "", "{finished}");
    }
}

/// Two versions of `urxe` put their links before each other's.
#[test]
fn runs_may_be_nested() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let runner = Runner::alone();
    let other = runner.unprivileged();
    let [one, two] = [&runner, &other].map(|runner| {
        let command = runner.urxe();
        let last = command.get_args().last().unwrap_or(command.get_program());
        last.to_owned()
    });
    let [run_word, end] = ["run", "--"].map(OsString::from);
    let mut command = runner.urxe();
    for urxe in [&two, &one, &two] {
        command.args([&run_word, &end, urxe]);
    }
    command.args(["run", "--", "rdma", "link"]);
    let text = run("urxe run", command, LIMIT).success().stdout;
    // The kernel may have devices as well.
    let ours = text.matches("link urxe_lo/1 ");
    assert_eq!(ours.count(), 1, "{text}");
}

#[test]
fn resources_are_counted_while_they_exist() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    let counts = || parsed(rdma(runner, "resource show urxe_lo -j"))[0].clone();
    let expected = |each: u64, ids: u64| {
        json!({
            "ifindex": 1,
            "ifname": "urxe_lo",
            "pd": each, "cq": each, "qp": each, "cm_id": ids, "mr": each, "ctx": each, "srq": 0,
        })
    };
    assert_eq!(counts(), expected(0, 0));
    let mut pair = Pingpong::over_loopback(runner)
        .options("-e")
        .iterations(1_000_000_000)
        .start();
    let deadline = Instant::now() + LIMIT;
    while counts() != expected(2, 0) {
        assert!(
            pair.is_running() && Instant::now() < deadline,
            "{}",
            counts()
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    let text = quiet(rdma(runner, "resource"));
    assert_eq!(
        text,
        "1: urxe_lo: pd 2 cq 2 qp 2 cm_id 0 mr 2 ctx 2 srq 0 \n"
    );
    drop(pair);
    while counts() != expected(0, 0) {
        assert!(Instant::now() < deadline, "{}", counts());
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[test]
fn statistics_include_ended_processes() {
    if !require(&[PINGPONG, IP, Need::NetworkNamespaces]) {
        return;
    }
    let _exclusive = exclusive();
    let namespace = Namespace::new(&Runner::here()).loopback_up();
    let runner = namespace.runner();
    let transfer = "ibv_rc_pingpong -d urxe_lo -g 0 > /dev/null &\n\
                    until ibv_rc_pingpong -d urxe_lo -g 0 127.0.0.1 > /dev/null 2>&1; do\n\
                    sleep 0.05; done; wait\n";
    for view in ["yes", "preload"] {
        let options = ["--sysfs", view];
        // The counters of a process arrive after its end.
        let wait = "tries=0\n\
                    until rdma statistic -j | grep -q '\"rdma_recvs\":2000'; do\n\
                    tries=$((tries + 1)); test $tries -lt 100 || exit 9; sleep 0.05; done\n";
        let text = format!("{transfer}{wait}rdma -j statistic show link urxe_lo/1");
        let rows = parsed(run("sh", script(runner, &options, &text), LIMIT));
        assert_eq!(
            (&rows[0]["ifname"], &rows[0]["port"]),
            (&"urxe_lo".into(), &1.into())
        );
        assert_eq!(rows[0]["rdma_sends"], 2000, "{rows}");
        assert_eq!(rows[0]["retry_exceeded_err"], 0, "{rows}");
    }
    let text = quiet(run(
        "sh",
        script(runner, &["--sysfs", "no"], "rdma statistic"),
        LIMIT,
    ));
    assert!(text.starts_with("link urxe_lo/1 \n    "), "{text}");
    assert!(text.contains("\n    sent_pkts 0 \n"), "{text}");
}
