//! Properties that `urxe run` preserves.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::run::{POLL_INTERVAL, Running, run};
use crate::common::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn exit_status_is_passed_on() {
    for status in [0, 1, 7, 255] {
        let mut command = Runner::here().verbs("sh");
        command.args(["-c", &format!("exit {status}")]);
        let finished = run("sh", command, LIMIT);
        assert_eq!(finished.status.code(), Some(status), "{finished}");
    }
}

#[test]
fn arguments_and_output_are_passed_on() {
    let mut command = Runner::here().verbs("printf");
    command.args(["%s|", "-x", "--", "two words", ""]);
    let finished = run("printf", command, LIMIT).success();
    assert_eq!(finished.stdout, "-x|--|two words||");
}

#[test]
fn signal_reaches_the_program() {
    for (signal, status) in [("TERM", 42), ("INT", 43), ("USR1", 44), ("HUP", 45)] {
        let directory = crate::common::runner::Directory::new();
        let ready = directory.path().join("ready");
        let script = format!(
            "trap 'exit {status}' {signal}; : > {}; while :; do sleep 0.05; done",
            ready.display()
        );
        // A background job may inherit an ignored SIGINT, which a shell cannot trap.
        let mut command = Runner::here().verbs("env");
        command.args(["--default-signal", "sh", "-c", &script]);
        let mut running = Running::start("sh", command);
        let deadline = Instant::now() + LIMIT;
        while !ready.exists() && running.is_running() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        running.signal(signal);
        let finished = running.finish(LIMIT);
        assert_eq!(finished.status.code(), Some(status), "{signal}: {finished}");
    }
}

#[test]
fn death_by_a_signal_is_passed_on() {
    let mut command = Runner::here().verbs("sh");
    command.args(["-c", "kill -s TERM $$"]);
    let finished = run("sh", command, LIMIT);
    let signal = std::os::unix::process::ExitStatusExt::signal(&finished.status);
    // As the signal itself, or in the form of shells.
    const SIGTERM: i32 = 15;
    assert!(
        signal == Some(SIGTERM) || finished.status.code() == Some(128 + SIGTERM),
        "{finished}"
    );
}

#[test]
fn missing_program_is_named() {
    let finished = run(
        "urxe run",
        Runner::here().verbs("no-such-program-xyz"),
        LIMIT,
    );
    // The status of shells and `env` for a missing program.
    assert_eq!(finished.status.code(), Some(127), "{finished}");
    assert!(
        finished.stderr.contains("no-such-program-xyz"),
        "{finished}"
    );
}

#[test]
fn both_libraries_resolve_to_urxe() {
    let mut command = Runner::here().verbs("sh");
    command.args([
        "-c",
        "IFS=:; for d in $LD_LIBRARY_PATH; do readlink -f $d/libibverbs.so.1 \
                         $d/librdmacm.so.1; done",
    ]);
    let finished = run("sh", command, LIMIT).success();
    let resolved: Vec<_> = finished.stdout.lines().take(2).collect();
    assert_eq!(resolved.len(), 2, "{finished}");
    assert!(
        resolved.iter().all(|path| path.ends_with("/liburxe.so")),
        "{finished}"
    );
}

#[test]
fn the_build_tree_needs_no_installation() {
    let mut command = std::process::Command::new(urxe_tests::built("urxe"));
    command
        .env_remove("LD_LIBRARY_PATH")
        .args(["run", "--", "true"]);
    run("urxe run", command, LIMIT).success();
}

#[test]
fn options_set_variables_of_the_program() {
    let mut command = Runner::here().urxe();
    command.args(["run", "--sysfs=no", "--pcap", "x%p.pcapng"]);
    command.args(["--faults", "drop=1%,seed=7", "--log", "urxe_driver=debug"]);
    command.args(["--", "env"]);
    let finished = run("env", command, LIMIT).success();
    for line in [
        "URXE_PCAP=x%p.pcapng",
        "URXE_FAULTS=drop=1%,seed=7",
        "URXE_LOG=urxe_driver=debug",
    ] {
        assert!(finished.stdout.lines().any(|l| l == line), "{finished}");
    }
}

#[test]
fn invalid_options_are_refused_before_the_program_starts() {
    for (option, value) in [
        ("--faults", "drop=often"),
        ("--log", "urxe=loud"),
        ("--log", "verbose"),
        ("--pcap", ""),
        ("--pcap", "/proc"),
        ("--pcap", "/nonexistent/out.pcapng"),
    ] {
        let mut command = Runner::here().urxe();
        command.args(["run", option, value, "--", "echo", "started"]);
        let finished = run("urxe run", command, LIMIT);
        assert_eq!(finished.status.code(), Some(125), "{finished}");
        assert!(finished.stderr.contains(option), "{finished}");
        assert!(!finished.stdout.contains("started"), "{finished}");
    }
}

#[test]
fn shell_has_the_libraries_and_the_headers() {
    let mut command = Runner::here().urxe();
    // `env` takes the place of the shell and prints what a shell would have.
    command.args(["shell", "--sysfs=no"]).env("SHELL", "env");
    let finished = run("urxe shell", command, LIMIT).success();
    let value = |name: &str| {
        let line = finished.stdout.lines().find(|line| line.starts_with(name));
        let (_, value) = line.and_then(|line| line.split_once('='))?;
        value.split(':').next().map(Path::new)
    };
    let libraries = value("LD_LIBRARY_PATH").expect("set");
    assert!(libraries.join("libibverbs.so.1").exists(), "{finished}");
    let packages = value("PKG_CONFIG_PATH").expect("set");
    assert!(packages.join("librdmacm.pc").exists(), "{finished}");
}

#[test]
fn env_prints_the_same_variables_in_each_format() {
    let print = |format| {
        let mut command = Runner::here().urxe();
        command.args(["env", "--format", format]);
        run("urxe env", command, LIMIT).success().stdout
    };
    let json: serde_json::Value = serde_json::from_str(&print("json")).expect("JSON");
    let object = json.as_object().expect("an object");
    assert_eq!(object.len(), 2, "{json}");
    let (github, shell) = (print("github"), print("shell"));
    assert_eq!(github.lines().count(), object.len());
    for (name, value) in object {
        let value = value.as_str().expect("a string");
        assert!(github.contains(&format!("{name}={value}\n")), "{github}");
        assert!(
            shell.contains(&format!("export {name}='{value}'\n")),
            "{shell}"
        );
    }
}

#[test]
fn cargo_runs_tests_over_urxe() {
    let directory = crate::common::runner::Directory::new();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("own directory");
        std::fs::write(path, text).expect("own directory");
    };
    write(
        "Cargo.toml",
        "[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n",
    );
    write(
        "src/lib.rs",
        r#"
        use std::ffi::{CStr, c_char, c_int, c_void};
        unsafe extern "C" {
            fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
            fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
        }
        #[test]
        fn there_is_a_device() {
            const RTLD_NOW: c_int = 2;
            type List = extern "C" fn(*mut c_int) -> *mut *mut c_void;
            type Name = extern "C" fn(*mut c_void) -> *const c_char;
            // SAFETY: the functions have these signatures, and the list ends with a null pointer.
            unsafe {
                let library = dlopen(c"libibverbs.so.1".as_ptr(), RTLD_NOW);
                assert!(!library.is_null());
                let list: List = std::mem::transmute(dlsym(library, c"ibv_get_device_list".as_ptr()));
                let name: Name = std::mem::transmute(dlsym(library, c"ibv_get_device_name".as_ptr()));
                let (mut count, mut names) = (0, Vec::new());
                let devices = list(&mut count);
                for index in 0..count as usize {
                    names.push(CStr::from_ptr(name(*devices.add(index))).to_str().unwrap());
                }
                assert!(names.contains(&"urxe_lo"), "{names:?}");
            }
        }
        "#,
    );
    let runner = Runner::alone();
    let urxe = runner.urxe();
    // The prefix of the runner and then the command.
    let words: Vec<_> = std::iter::once(urxe.get_program())
        .chain(urxe.get_args())
        .chain(["run".as_ref(), "--".as_ref()])
        .map(|word| word.to_str().expect("UTF-8"))
        .collect();
    let variable = format!(
        "CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER",
        std::env::consts::ARCH.to_uppercase()
    );
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command
        .args(["test", "--offline", "--lib", "--target-dir"])
        .arg(directory.path().join("target"))
        .current_dir(directory.path())
        .env(variable, words.join(" "))
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("RUSTFLAGS");
    let finished = run("cargo test", command, Duration::from_secs(120)).success();
    assert!(finished.stdout.contains("1 passed"), "{finished}");
}
