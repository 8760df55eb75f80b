//! The requirements of tests.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::skip_test::skip_test;

/// A requirement that not every machine meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program, with its Debian package.
    Program(&'static str, &'static str),
    /// Network namespaces: as root, or in a user namespace.
    NetworkNamespaces,
    /// User namespaces.
    UserNamespaces,
    /// Root, to change the user.
    Root,
    /// scapy in the virtual environment of `cargo xtask test`.
    Scapy,
}

/// Debian's example program.
pub const PINGPONG: Need = Need::Program("ibv_rc_pingpong", "ibverbs-utils");
/// The perftest benchmarks.
pub const PERFTEST: Need = Need::Program("ib_write_bw", "perftest");
/// Debian's program that lists devices.
pub const DEVINFO: Need = Need::Program("ibv_devinfo", "ibverbs-utils");
/// Wireshark's dissector.
pub const TSHARK: Need = Need::Program("tshark", "tshark");
/// The program that configures interfaces.
pub const IP: Need = Need::Program("ip", "iproute2");
/// The program that changes the kernel's packet filter.
pub const NFT: Need = Need::Program("nft", "nftables");

/// Returns whether all requirements are met. If not, reports the test as skipped; it must return.
///
/// # Panics
/// With `CI=true`, if a requirement is not met.
#[must_use]
#[track_caller]
pub fn require(needs: &[Need]) -> bool {
    let Some(missing) = needs.iter().find(|need| !need.is_met()) else {
        return true;
    };
    skip_test(&missing.explanation());
    false
}

impl Need {
    /// Returns whether the requirement is met.
    pub fn is_met(self) -> bool {
        match self {
            Self::Program(name, _) => find_program(name).is_some(),
            Self::NetworkNamespaces => can_unshare("-n") || can_unshare("-rn"),
            Self::UserNamespaces => can_unshare("-rn"),
            Self::Root => is_root(),
            Self::Scapy => {
                succeeds(Command::new(venv_python()).args(["-c", "import scapy.contrib.roce"]))
            }
        }
    }

    fn explanation(self) -> String {
        match self {
            Self::Program(name, package) => {
                format!("needs the program {name}: apt-get install {package}")
            }
            Self::NetworkNamespaces | Self::UserNamespaces => {
                "needs the right to make namespaces: run as root, or allow unprivileged user \
                 namespaces (sysctl kernel.unprivileged_userns_clone=1)"
                    .to_owned()
            }
            Self::Root => "needs root, to become another user".to_owned(),
            Self::Scapy => format!(
                "needs scapy at {}: cargo xtask test installs it",
                venv_python().display()
            ),
        }
    }
}

/// Returns the search path with the directories for system programs.
pub fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .collect()
}

/// Returns the Python that has scapy.
pub fn venv_python() -> PathBuf {
    // The command is <target>/<profile>/urxe; the virtual environment is <target>/venv.
    let urxe = urxe_tests::built("urxe");
    urxe.ancestors()
        .nth(2)
        .unwrap_or(&urxe)
        .join("venv/bin/python")
}

/// Returns whether this process is root.
pub fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// Returns whether `unshare` succeeds with these flags.
pub fn can_unshare(flags: &str) -> bool {
    succeeds(Command::new("unshare").args([flags, "true"]))
}

fn find_program(name: &str) -> Option<PathBuf> {
    search_path()
        .into_iter()
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}
