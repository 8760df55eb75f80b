//! The packages of distributions, made of an installed tree: the command with its objects, the
//! files for building programs, and the replacement of libibverbs for a whole system.
//!
//! They are made of the same tree as the tarball, so the two cannot differ.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::files::remove;
use super::tree::write_file;
use crate::release::succeed;

/// A package and the paths of the tree that it has, which need not exist.
pub(super) struct Package {
    pub(super) debian_name: &'static str,
    pub(super) rpm_name: &'static str,
    pub(super) paths: &'static [&'static str],
    pub(super) summary: &'static str,
    /// Lines that explain more than the summary.
    pub(super) description: &'static str,
}

/// The first package has the programs, and the others need it.
pub(super) const PACKAGES: [Package; 3] = [
    Package {
        debian_name: "urxe",
        rpm_name: "urxe",
        paths: &["bin", "lib/urxe", "share"],
        summary: "RDMA verbs in user space: RoCEv2 without a NIC, a kernel module or root",
        description: "The command urxe runs programs with libibverbs and librdmacm replaced.",
    },
    Package {
        debian_name: "urxe-dev",
        rpm_name: "urxe-devel",
        paths: &["include", "lib/urxe/pkgconfig"],
        summary: "RDMA verbs in user space: C headers and pkg-config files",
        description: "Set PKG_CONFIG_PATH to /usr/lib/urxe/pkgconfig, or use urxe env.",
    },
    Package {
        debian_name: "urxe-replacements",
        rpm_name: "urxe-replacements",
        paths: &[],
        summary: "RDMA verbs in user space: libibverbs of the whole system",
        description: "The dynamic linker uses urxe for each program that needs libibverbs or\n\
                      librdmacm, as urxe run does for one program. Meant for containers.",
    },
];

/// The file that makes the dynamic linker prefer urxe, and its content. The name precedes those of
/// other directories, and the first directory with a library wins.
const LINKER_FILE: (&str, &str) = (
    "etc/ld.so.conf.d/00-urxe.conf",
    "/usr/lib/urxe/replacements\n",
);

impl Package {
    /// Returns whether this is the package that the others need.
    pub(super) fn has_programs(&self) -> bool {
        self.debian_name == PACKAGES[0].debian_name
    }

    /// Returns whether the cache of the dynamic linker must be written anew.
    pub(super) fn changes_linker(&self) -> bool {
        self.paths.is_empty()
    }

    /// Writes the files of this package to `root`, as they are installed by the package manager for
    /// which the package has this name.
    pub(super) fn stage(&self, name: &str, tree: &Path, root: &Path) -> Result<(), String> {
        let usr = root.join("usr");
        for path in self.paths {
            copy(&tree.join(path), &usr.join(path))?;
        }
        if self.has_programs() {
            // Part of the package for building programs.
            return remove(&usr.join("lib/urxe/pkgconfig"));
        }
        if self.changes_linker() {
            let (file, text) = LINKER_FILE;
            write_file(&root.join(file), text.as_bytes(), 0o644)?;
        }
        // The licence is in the package that this one needs.
        let documents = usr.join("share/doc");
        fs::create_dir_all(&documents)
            .and_then(|()| symlink("urxe", documents.join(name)))
            .map_err(|error| format!("{}: {error}", documents.display()))
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    succeed(Command::new("cp").arg("-a").args([from, to]))
}

/// The libraries of the system that programs need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// The sonames, without the dynamic linker.
    pub(super) libraries: Vec<String>,
    /// Sonames with the versions of their symbols.
    pub(super) versions: Vec<(String, String)>,
}

impl Needs {
    pub(super) fn of(files: &[PathBuf]) -> Result<Self, String> {
        let read = Command::new("readelf")
            .args(["--wide", "--dynamic", "--version-info"])
            .args(files)
            .output()
            .map_err(|error| format!("readelf: {error}"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&read.stdout)))
    }

    /// Parses the output of readelf.
    fn parse(text: &str) -> Self {
        let (mut libraries, mut versions) = (Vec::new(), Vec::new());
        let mut library = "";
        for line in text.lines() {
            let word_after = |mark: &str| {
                let (_, rest) = line.split_once(mark)?;
                rest.split([' ', ']']).next()
            };
            if let Some(name) = word_after("Shared library: [") {
                libraries.push(name.to_owned());
            } else if let Some(name) = word_after("Version: 1  File: ") {
                library = name;
            } else if let Some(version) = word_after("  Name: ")
                // A version that this file defines has a revision.
                && !line.contains("Rev: ")
            {
                versions.push((library.to_owned(), version.to_owned()));
            }
        }
        // The dynamic linker is a part of glibc.
        libraries.retain(|name| !name.starts_with("ld-"));
        versions.retain(|(name, _)| !name.starts_with("ld-"));
        libraries.sort();
        libraries.dedup();
        versions.sort();
        versions.dedup();
        Self {
            libraries,
            versions,
        }
    }

    /// Returns the newest version of glibc whose symbols are needed, as a version of a package.
    pub(super) fn glibc(&self) -> Result<String, String> {
        let versions = self.versions.iter().filter_map(|(_, version)| {
            let (major, minor) = version.strip_prefix("GLIBC_")?.split_once('.')?;
            let minor = minor.split('.').next()?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        });
        let (major, minor) = versions.max().ok_or("readelf shows no version of glibc")?;
        Ok(format!("{major}.{minor}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of readelf, of two files.
    const READELF: &str = "\
File: bin/urxe
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [ld-linux-x86-64.so.2]
Version needs section '.gnu.version_r' contains 1 entry:
  000000: Version: 1  File: ld-linux-x86-64.so.2  Cnt: 1
  0x0010:   Name: GLIBC_2.34  Flags: none  Version: 9
  0x0020: Version: 1  File: libc.so.6  Cnt: 2
  0x0030:   Name: GLIBC_2.9  Flags: none  Version: 3
  0x0040:   Name: GLIBC_2.28  Flags: none  Version: 2
File: lib/urxe/liburxe.so
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
  0x0700: Rev: 1  Flags: none  Index: 65  Cnt: 1  Name: EFA_1.7
  0x0010: Version: 1  File: libc.so.6  Cnt: 1
  0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 2
";

    #[test]
    fn needs_are_those_of_all_files_without_the_dynamic_linker() {
        let needs = Needs::parse(READELF);
        assert_eq!(needs.libraries, ["libc.so.6"]);
        let versions = needs.versions.iter().map(|(_, version)| version.as_str());
        let expected = ["GLIBC_2.2.5", "GLIBC_2.28", "GLIBC_2.9"];
        assert_eq!(versions.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn newest_version_is_compared_by_number() {
        assert_eq!(Needs::parse(READELF).glibc().as_deref(), Ok("2.28"));
    }
}
