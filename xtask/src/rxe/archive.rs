//! Downloads and unpacks Debian packages, without root and without changing the installed system.
//!
//! `apt-get` resolves the dependencies against an empty package database, so that the result is the
//! same on every machine. `dpkg-deb` unpacks the packages. Maintainer scripts do not run: the
//! result is a directory tree of programs and not an installed system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{AtPath, Error, Result, not_started, run, run_from};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRROR: &str = "http://deb.debian.org/debian";
const SECURITY: &str = "http://deb.debian.org/debian-security";

/// Prefixes of packages that only maintainer scripts need, and that are not unpacked.
const NOT_UNPACKED: &[&str] = &[
    "adduser",
    "debconf",
    "dpkg",
    "gcc-12-base",
    "initramfs-tools",
    "klibc-utils",
    "libperl",
    "libpython",
    "perl",
    "python3",
    "tar",
    "udev",
    "usrmerge",
];

/// The archive of a Debian release, with a package database of its own.
pub(crate) struct Archive {
    directory: PathBuf,
    /// The preferred release, for suites such as backports that have a low priority.
    prefer: Option<String>,
}

impl Archive {
    /// Opens the archive of these suites, with its state in `directory`.
    pub(crate) fn open(directory: &Path, suites: &[&str], prefer: Option<&str>) -> Result<Self> {
        for sub in ["lists/partial", "cache/archives/partial", "none/partial"] {
            let sub = directory.join(sub);
            fs::create_dir_all(&sub).at(&sub)?;
        }
        let status = directory.join("status");
        fs::write(&status, "").at(&status)?;
        let sources = directory.join("sources.list");
        let lines: String = suites
            .iter()
            .map(|suite| {
                let from = if suite.ends_with("-security") {
                    SECURITY
                } else {
                    MIRROR
                };
                format!("deb [signed-by={KEYRING}] {from} {suite} main\n")
            })
            .collect();
        fs::write(&sources, lines).at(&sources)?;
        Ok(Self {
            directory: directory.to_owned(),
            prefer: prefer.map(str::to_owned),
        })
    }

    /// Downloads `packages` and their dependencies, unless they have been downloaded before.
    pub(crate) fn fetch(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        println!("rxe: fetching {} and dependencies", packages.join(" "));
        self.run_apt(&["update"])?;
        let mut install = vec!["install"];
        install.extend_from_slice(packages);
        self.run_apt(&[&["--download-only"], &install[..]].concat())?;
        // apt-get omits downloaded packages from the list, so it gets an empty cache directory. A
        // line is `'uri' file size digest`.
        let nothing = format!(
            "Dir::Cache::archives={}",
            self.directory.join("none").display()
        );
        let list = self.run_apt(&[&["-o", &nothing, "--print-uris"], &install[..]].concat())?;
        let archives = self.directory.join("cache/archives");
        let mut files: Vec<PathBuf> = list
            .lines()
            .filter(|line| line.starts_with('\''))
            .filter_map(|line| line.split_whitespace().nth(1))
            .map(|file| archives.join(file))
            .collect();
        files.sort();
        Ok(files)
    }

    fn run_apt(&self, arguments: &[&str]) -> Result<String> {
        run(self.apt().args(arguments), "apt").map_err(|error| match error {
            Error::Failed { .. } => Error::Download {
                source: Box::new(error),
            },
            _ => error,
        })
    }

    fn apt(&self) -> Command {
        let mut command = Command::new("apt-get");
        let at = |name: &str| self.directory.join(name).display().to_string();
        let options = [
            format!("Dir::Etc::SourceList={}", at("sources.list")),
            "Dir::Etc::SourceParts=-".into(),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::Status={}", at("status")),
            format!("Dir::State::extended_states={}", at("extended_states")),
            format!("Dir::Cache={}", at("cache")),
            "Debug::NoLocking=1".into(),
            // As root apt would switch to a user without access to this directory.
            "APT::Sandbox::User=root".into(),
            "APT::Architecture=amd64".into(),
        ];
        for option in options {
            command.args(["-o", &option]);
        }
        if let Some(release) = &self.prefer {
            command.args(["-t", release]);
        }
        command.args(["--quiet", "--yes", "--no-install-recommends"]);
        command
    }
}

/// Unpacks packages into `root`, where /bin, /lib and /sbin are links into /usr.
pub(crate) fn unpack(packages: &[PathBuf], root: &Path) -> Result<()> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        let real = root.join("usr").join(name);
        fs::create_dir_all(&real).at(&real)?;
        let link = root.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(format!("usr/{name}"), &link).at(&link)?;
        }
    }
    println!(
        "rxe: unpacking {} packages into {}",
        packages.len(),
        root.display()
    );
    for package in packages {
        let file = package.file_name().unwrap_or_default().to_string_lossy();
        let name = file.split('_').next().unwrap_or_default();
        if NOT_UNPACKED.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        extract(package, root)?;
    }
    Ok(())
}

/// Extracts one package. `dpkg-deb --extract` would replace the links by directories.
fn extract(package: &Path, root: &Path) -> Result<()> {
    let mut unwrap = Command::new("dpkg-deb");
    unwrap.arg("--fsys-tarfile").arg(package);
    unwrap.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut tarfile = unwrap
        .spawn()
        .map_err(|error| not_started(&unwrap, "dpkg", error))?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--keep-directory-symlink", "--no-same-owner"])
        .arg("--directory")
        .arg(root);
    let result = run_from(&mut tar, "tar", tarfile.stdout.take());
    tarfile.wait().at(package)?;
    result.map(drop)
}

/// Returns a command that runs a program of an unpacked tree with the tree's loader and libraries.
pub(crate) fn program_in(root: &Path, program: &str, called: &str) -> Command {
    let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    command
        .args(["--argv0", called, "--library-path"])
        .arg(format!(
            "{}:{}:{}",
            libraries.display(),
            // Private libraries of PulseAudio.
            libraries.join("pulseaudio").display(),
            root.join("usr/lib").display()
        ))
        .arg(root.join(program));
    command
}
