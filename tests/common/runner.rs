//! How tests run programs: as which user, in which namespaces, and with which copy of urxe.

use std::any::Any;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::namespace::Namespace;
use super::require::{IP, Need, is_root, search_path};

/// The user and group ID of `nobody`.
const NOBODY: &str = "65534";

/// Starts programs as a user, in namespaces, with a copy of urxe.
#[derive(Clone)]
pub struct Runner {
    /// The command prefix.
    prefix: Vec<OsString>,
    /// The devices that are selected on this host, whose interfaces are unknown: all of them, also
    /// that of the loopback interface. A namespace has the default.
    devices: Option<&'static str>,
    urxe: PathBuf,
    /// Objects that live as long as the runner: its namespace, a copied installation.
    kept: Vec<Rc<dyn Any>>,
}

impl Runner {
    /// Returns the runner for this host and user, for programs that only query devices: other
    /// programs may use port 4791.
    pub fn here() -> Self {
        static INSTALLATION: OnceLock<PathBuf> = OnceLock::new();
        let directory = INSTALLATION.get_or_init(|| {
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installation");
            fs::create_dir_all(&directory).expect("cargo's own directory");
            install(&directory);
            directory
        });
        Self {
            prefix: Vec::new(),
            devices: Some("*"),
            urxe: directory.join("urxe"),
            kept: Vec::new(),
        }
    }

    /// Returns the runner for this user in a network namespace that has only a loopback interface,
    /// isolated from other tests. Where namespaces are not allowed, it is the host's network.
    pub fn alone() -> Self {
        let here = Self::here();
        if !(IP.is_met() && Need::NetworkNamespaces.is_met()) {
            return here;
        }
        let namespace = Namespace::new(&here).loopback_up();
        let mut runner = namespace.runner().clone();
        runner.kept.push(Rc::new(namespace));
        runner
    }

    /// Returns the same runner for an unprivileged user, with a copy of urxe that this user can
    /// read.
    pub fn unprivileged(&self) -> Self {
        let directory = Directory::new();
        install(directory.path());
        let words: &[&str] = if is_root() {
            &[
                "setpriv",
                "--reuid",
                NOBODY,
                "--regid",
                NOBODY,
                "--clear-groups",
                "--",
            ]
        } else {
            &[]
        };
        let mut runner = self.through(words);
        runner.urxe = directory.path().join("urxe");
        runner.kept.push(Rc::new(directory));
        runner
    }

    /// Returns the same runner with a longer command prefix.
    pub fn through<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Self {
        let mut runner = self.clone();
        runner
            .prefix
            .extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        runner
    }

    /// Returns the same runner in a network namespace, which `words` enter.
    pub fn inside<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Self {
        let mut runner = self.through(words);
        runner.devices = None;
        runner
    }

    /// Returns a command for a program without urxe.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut words = self
            .prefix
            .iter()
            .cloned()
            .chain([program.as_ref().to_owned()]);
        let mut command = Command::new(words.next().expect("at least the program"));
        let path = env::join_paths(search_path()).expect("it was split from a path");
        // The working directory is readable for every user. The library path of `cargo test` would
        // hide errors of `urxe run`.
        command
            .args(words)
            .env("PATH", path)
            .env_remove("LD_LIBRARY_PATH")
            .current_dir("/");
        if let Some(devices) = self.devices {
            command.env("URXE_DEVICES", devices);
        }
        command
    }

    /// Returns a command for `urxe`.
    pub fn urxe(&self) -> Command {
        self.command(&self.urxe)
    }

    /// Returns a command for a verbs program over urxe.
    pub fn verbs(&self, program: &str) -> Command {
        let mut command = self.urxe();
        command.args(["run", "--", program]);
        command
    }
}

/// Copies the command and the shared objects to one directory, as an installation does.
fn install(directory: &Path) {
    for name in [
        "urxe",
        "liburxe.so",
        "liburxe_preload.so",
        "librspreload.so",
    ] {
        let from = urxe_tests::built(name);
        // Renamed when complete, because another test run may be using the old copy.
        let draft = directory.join(format!(".{name}.{}", std::process::id()));
        fs::copy(&from, &draft).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("own copy");
        fs::rename(&draft, directory.join(name)).expect("own copy");
    }
}

/// A test's directory, removed when dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// Creates a directory that every user can read.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("urxe-test-{}-{number}", std::process::id());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("own directory");
        Self(path)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failure leaves the directory in the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
