//! Installs the programs that the integration tests run: Debian packages, and scapy from PyPI.
//!
//! A failure is only reported. The tests check their needs themselves and report what they skip, so
//! they do the same under a plain `cargo test`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A check that finds a package, however it was installed.
enum Probe {
    /// A program in the search path or the directories for system programs.
    Program(&'static str),
    /// A file, with an absolute path or in Debian's library directory.
    File(&'static str),
    /// A module of the system's Python.
    PythonModule(&'static str),
}

/// Each probe with the Debian package that satisfies it.
const NEEDED: &[(Probe, &str)] = &[
    // Run by the integration tests.
    (Probe::Program("ibv_rc_pingpong"), "ibverbs-utils"),
    (Probe::Program("tshark"), "tshark"),
    (Probe::Program("ip"), "iproute2"),
    (Probe::Program("nft"), "nftables"),
    (Probe::Program("setpriv"), "util-linux"),
    (Probe::Program("unshare"), "util-linux"),
    (Probe::Program("nsenter"), "util-linux"),
    (Probe::Program("python3"), "python3"),
    (Probe::PythonModule("ensurepip"), "python3-venv"),
    // For the tests of the ABI: headers, and libraries and programs that use it.
    (Probe::Program("gcc"), "gcc"),
    (Probe::Program("g++"), "g++"),
    (Probe::Program("readelf"), "binutils"),
    (Probe::File("/usr/include/stdio.h"), "libc6-dev"),
    (
        Probe::File("/usr/include/infiniband/verbs.h"),
        "libibverbs-dev",
    ),
    (Probe::File("/usr/include/rdma/rdma_cma.h"), "librdmacm-dev"),
    (Probe::File("libmlx5.so.1"), "ibverbs-providers"),
    (Probe::File("ucx/libuct_ib.so.0"), "libucx0"),
    (Probe::File("libfabric.so.1"), "libfabric1"),
    (Probe::Program("ib_write_bw"), "perftest"),
    (Probe::Program("ucx_info"), "ucx-utils"),
    (Probe::Program("fi_pingpong"), "libfabric-bin"),
    (Probe::Program("lstopo-no-graphics"), "hwloc-nox"),
    (Probe::Program("fio"), "fio"),
    (Probe::Program("patchelf"), "patchelf"),
    // For the tests of the ABI that detect bad accesses, and the step that counts instructions.
    (Probe::Program("valgrind"), "valgrind"),
    // For building the C examples.
    (Probe::Program("make"), "make"),
    (Probe::Program("pkg-config"), "pkg-config"),
    (Probe::Program("rping"), "rdmacm-utils"),
    // For installing packages in a fresh root.
    (Probe::Program("debootstrap"), "debootstrap"),
    // Ordinary socket programs.
    (Probe::Program("curl"), "curl"),
    (Probe::Program("iperf3"), "iperf3"),
    (Probe::Program("nc"), "netcat-openbsd"),
    (
        Probe::File("/usr/lib/python3/dist-packages/pyverbs"),
        "python3-pyverbs",
    ),
];

/// The independent implementation of the ICRC, with a fixed version for reproducible results.
const SCAPY: &str = "scapy==2.8.0";

impl Probe {
    fn is_met(&self) -> bool {
        match self {
            Self::Program(name) => find_program(name).is_some(),
            Self::File(path) => {
                // Joining an absolute path yields that path.
                let libraries = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
                Path::new(&libraries).join(path).exists()
            }
            Self::PythonModule(name) => {
                succeeds(Command::new("python3").args(["-c", &format!("import {name}")]))
            }
        }
    }
}

/// Installs what is missing, if possible, and reports it.
pub(crate) fn provide(target_directory: &Path) {
    let mut missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(probe, _)| !probe.is_met())
        .map(|&(_, package)| package)
        .collect();
    missing.dedup();
    if !missing.is_empty() {
        install(&missing);
    }
    provide_scapy(&target_directory.join("venv"));
}

/// Returns whether a Debian package is installed.
pub(crate) fn is_installed(package: &str) -> bool {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status}", package])
        .output();
    output.is_ok_and(|output| output.stdout == b"installed")
}

/// Installs Debian packages that are missing, if possible, and reports it.
pub(crate) fn provide_packages(packages: &[&str]) {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if !missing.is_empty() {
        install(&missing);
    }
}

fn install(packages: &[&str]) {
    let list = packages.join(" ");
    if find_program("apt-get").is_none() {
        println!("xtask: the tests need these Debian packages or equivalents: {list}");
        return;
    }
    let Some(prefix) = privilege() else {
        println!("xtask: not root, and sudo requires a password. To run every test, first run:");
        println!("xtask:   sudo apt-get install {list}");
        return;
    };
    println!("xtask: installing {list}");
    let apt = |arguments: &[&str]| {
        let mut words = prefix.iter().copied().chain([
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "--quiet",
            "--yes",
        ]);
        let program = words.next().unwrap_or("env");
        succeeds_loudly(Command::new(program).args(words).args(arguments))
    };
    let installed =
        apt(&["update"]) && apt(&[&["install", "--no-install-recommends"], packages].concat());
    if !installed {
        println!("xtask: apt-get could not install {list}; see its output above");
    }
}

/// Returns the command prefix that gives root privileges: none for root, or sudo.
fn privilege() -> Option<&'static [&'static str]> {
    let identity = Command::new("id").arg("-u").output().ok()?;
    if identity.stdout.trim_ascii() == b"0" {
        return Some(&[]);
    }
    succeeds(Command::new("sudo").args(["--non-interactive", "true"]))
        .then_some(&["sudo", "--non-interactive"])
}

/// Installs scapy in a virtual environment inside the target directory.
fn provide_scapy(environment: &Path) {
    let python = environment.join("bin/python");
    if succeeds(Command::new(&python).args(["-c", "import scapy.contrib.roce"])) {
        return;
    }
    println!("xtask: installing {SCAPY} in {}", environment.display());
    let made = succeeds_loudly(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(environment),
    ) && succeeds_loudly(
        Command::new(&python).args(["-m", "pip", "install", "--quiet", SCAPY]),
    );
    if !made {
        println!("xtask: scapy could not be installed; see the output above");
    }
}

pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

fn succeeds_loudly(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
