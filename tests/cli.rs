//! The `urxe` command: devices, programs over urxe, the demo, and errors. (For what `urxe run`
//! passes on, see `tests/programs/urxe_run.rs`.)

#[path = "common/skip_test.rs"]
mod skip_test;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use skip_test::skip_test;

fn urxe(arguments: &[&str]) -> Command {
    let mut command = Command::new(urxe_tests::built("urxe"));
    // Cargo's search path would hide a library that is not found.
    command
        .args(arguments)
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("URXE_FAULTS")
        .env_remove("URXE_LOG")
        .stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command
        .output()
        .expect("the command was built with this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A test's directory, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("urxe-cli-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("own directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves the directory among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn devices_shows_the_loopback_device_with_its_gids() {
    let mut command = urxe(&["devices"]);
    command.env("URXE_DEVICES", "*");
    let output = output(command);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    let lo = text.lines().find(|line| line.starts_with("urxe_lo "));
    let columns: Vec<_> = lo.expect("a loopback device").split_whitespace().collect();
    assert_eq!(columns[1..3], ["lo", "active"], "{text}");
    let mtu = fs::read_to_string("/sys/class/net/lo/mtu").expect("the kernel's own word");
    assert_eq!(columns[3], mtu.trim(), "{text}");
    // The loopback device is the last, so its GIDs end the table.
    let (_, gids) = text.split_once("urxe_lo ").expect("it is there");
    assert!(
        gids.contains("GID 0") && gids.contains("::ffff:127.0.0.1"),
        "{text}"
    );
}

#[test]
fn devices_explains_each_interface_without_one() {
    let text = {
        let output = output(urxe(&["devices"]));
        stdout(&output) + &stderr(&output)
    };
    for entry in fs::read_dir("/sys/class/net").expect("the kernel's own word") {
        let path = entry.expect("an interface").path();
        // Some entries are no interfaces, such as bonding_masters.
        if path.is_dir() {
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let device = format!("urxe_{name} ");
            let reason = format!("  {name}: ");
            let listed = text
                .lines()
                .any(|line| line.starts_with(&device) || line.starts_with(&reason));
            assert!(listed, "{name} is not in:\n{text}");
        }
    }
}

#[test]
fn options_after_the_program_belong_to_it() {
    let cases: [&[&str]; 2] = [
        &["run", "echo", "--help", "-x"],
        &["run", "--", "echo", "--help", "-x"],
    ];
    for arguments in cases {
        let output = output(urxe(arguments));
        assert!(output.status.success(), "{output:?}");
        // An external echo may interpret --help, but urxe must not.
        assert!(!stdout(&output).contains("urxe run"), "{output:?}");
    }
}

#[test]
fn existing_search_path_is_appended() {
    let mut command = urxe(&["run", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    command.env("LD_LIBRARY_PATH", "/opt/one:/opt/two");
    let text = stdout(&output(command));
    let (own, rest) = text.trim().split_once(':').expect("two parts");
    assert_eq!(rest, "/opt/one:/opt/two");
    assert!(Path::new(own).is_absolute(), "{text}");
}

#[test]
fn program_that_cannot_be_executed_has_its_own_exit_status() {
    let scratch = Scratch::new("not-executable");
    let script = scratch.0.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").expect("own directory");
    let name = script.to_str().expect("no odd characters");
    for mode in [0o644, 0o755] {
        fs::set_permissions(&script, fs::Permissions::from_mode(mode)).expect("own file");
        let output = output(urxe(&["run", name]));
        assert_eq!(output.status.code(), Some(126), "{output:?}");
        assert!(stderr(&output).contains(name), "{output:?}");
    }
    assert_eq!(
        output(urxe(&["run", "/no/such/program"])).status.code(),
        Some(127)
    );
}

#[test]
fn concurrent_first_starts_succeed() {
    let scratch = Scratch::new("at-once");
    let start = || {
        let mut command = urxe(&[
            "run",
            "sh",
            "-c",
            "test -e $LD_LIBRARY_PATH/libibverbs.so.1 && test -e $LD_LIBRARY_PATH/librdmacm.so.1",
        ]);
        command
            .env("TMPDIR", &scratch.0)
            .env_remove("XDG_RUNTIME_DIR");
        command
            .spawn()
            .expect("the command was built with this test")
    };
    let children: Vec<_> = (0..16).map(|_| start()).collect();
    for mut child in children {
        assert!(child.wait().expect("own child").success());
    }
    let directories = fs::read_dir(&scratch.0).expect("own directory");
    for directory in directories {
        let mode = directory
            .expect("an entry")
            .metadata()
            .expect("it stays")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn directory_writable_by_others_is_not_used() {
    let scratch = Scratch::new("writable");
    let user = rustix::process::geteuid().as_raw();
    let trap = scratch.0.join(format!("urxe-{user}"));
    fs::create_dir(&trap).expect("own directory");
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o777)).expect("own directory");
    let mut command = urxe(&["run", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    command
        .env("TMPDIR", &scratch.0)
        .env_remove("XDG_RUNTIME_DIR");
    let output = output(command);
    let used = stdout(&output);
    assert!(output.status.success() && !used.is_empty(), "{output:?}");
    assert!(!Path::new(used.trim()).starts_with(&trap), "{used}");
}

#[test]
fn demo_verifies_each_operation() {
    let output = output(urxe(&[
        "demo",
        "--skip-pingpong",
        "--size",
        "10001",
        "--iterations",
        "300",
        "--atomics",
        "200",
        "--round-trips",
        "20",
    ]));
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for operation in [
        "send ",
        "send with immediate",
        "write ",
        "write with immediate",
        "read ",
        "compare and swap",
        "fetch and add",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(operation)),
            "{operation}:\n{text}"
        );
    }
    assert!(text.contains("All bytes match"), "{text}");
}

#[test]
fn demo_and_devices_are_printed_as_json() {
    let json = |words: &[&str]| -> serde_json::Value {
        let mut command = urxe(words);
        command.env("URXE_DEVICES", "lo");
        let output = output(command);
        assert!(output.status.success(), "{output:?}");
        let text = stdout(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).expect("JSON")
    };
    let devices = json(&["devices", "--json"]);
    let device = &devices["devices"][0];
    assert_eq!(device["name"], "urxe_lo");
    assert_eq!(device["gids"][0]["address"], "127.0.0.1");

    let words = [
        "demo",
        "--json",
        "--size",
        "1000",
        "--iterations",
        "30",
        "--atomics",
        "20",
    ];
    let demo = json(&words);
    let operations = demo["operations"].as_array().expect("operations");
    let expect = |name: &str, requests: u64, bytes: u64| {
        let operation = operations.iter().find(|it| it["operation"] == name);
        let operation = operation.unwrap_or_else(|| panic!("{name}: {demo}"));
        assert_eq!(operation["requests"], requests, "{demo}");
        assert_eq!(operation["bytes"], bytes, "{demo}");
        assert!(
            operation["latency_us"]["p50"].as_f64() > Some(0.0),
            "{demo}"
        );
    };
    expect("send", 30, 30_000);
    expect("read", 30, 30_000);
    expect("fetch and add", 20, 160);
    assert_eq!(operations.len(), 7);
}

#[test]
fn demo_with_the_shortest_messages_over_ipv6() {
    let mut devices = urxe(&["devices"]);
    devices.env("URXE_DEVICES", "*");
    let devices = stdout(&output(devices));
    let row = devices.lines().find(|line| line.contains(" ::1 "));
    let Some(index) = row.and_then(|row| row.split_whitespace().nth(1)) else {
        skip_test("the loopback interface has no ::1: sysctl net.ipv6.conf.lo.disable_ipv6=0");
        return;
    };
    let output = output(urxe(&[
        "demo",
        "--skip-pingpong",
        "--device",
        "urxe_lo",
        "-g",
        index,
        "--mtu",
        "256",
        "--size",
        "1",
        "--iterations",
        "500",
        "--atomics",
        "100",
        "--round-trips",
        "20",
    ]));
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("(::1)"), "{output:?}");
}

#[test]
fn concurrent_demos_succeed() {
    let demos = (0..3).map(|_| {
        thread::spawn(|| {
            output(urxe(&[
                "demo",
                "--skip-pingpong",
                "--transfer",
                "8MiB",
                "--atomics",
                "500",
                "--round-trips",
                "20",
            ]))
        })
    });
    let demos: Vec<_> = demos.collect();
    for demo in demos {
        let output = demo.join().expect("no panic");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn demo_reports_invalid_arguments() {
    let cases: [(&[&str], &[&str]); 4] = [
        (
            &["--device", "urxe_nonesuch"],
            &["urxe_nonesuch", "urxe_lo"],
        ),
        (
            &["--device", "urxe_lo", "--gid-index", "200"],
            &["200", "0 (127.0.0.1)"],
        ),
        (&["--mtu", "1500"], &["1500", "1024"]),
        (&["--size", "2GiB"], &["1GiB"]),
    ];
    for (arguments, words) in cases {
        let mut all = vec!["demo"];
        all.extend(arguments);
        let output = output(urxe(&all));
        assert!(!output.status.success(), "{output:?}");
        for word in words {
            assert!(
                stderr(&output).contains(word),
                "no {word} in: {}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn demo_reports_why_it_cannot_connect() {
    let mut command = urxe(&["demo", "--skip-pingpong"]);
    command.env("URXE_FAULTS", "drop=lots");
    let output = output(command);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("URXE_FAULTS"), "{output:?}");
    assert!(stderr(&output).contains("both processes"), "{output:?}");
}

#[test]
fn invalid_log_filter_is_rejected() {
    // A program's own statuses are distinct from that of `urxe run`.
    for (words, status) in [(&["devices"][..], 1), (&["run", "--", "true"], 125)] {
        let mut command = urxe(words);
        command.env("URXE_LOG", "urxe=very-much");
        let output = output(command);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(stderr(&output).contains("URXE_LOG"), "{output:?}");
    }
}
