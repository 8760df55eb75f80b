//! Debian packages of an installed tree: the command with its objects, the files for building
//! programs, and the replacement of libibverbs for a whole system.
//!
//! `dpkg-deb` packs the same tree as the tarball, so the two cannot differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::files::remove;
use super::products::{Products, VERSION};
use super::tree::write_file;
use crate::release::succeed;

/// A package and the paths of the tree that it has, which need not exist.
struct Package {
    name: &'static str,
    depends: &'static str,
    paths: &'static [&'static str],
    description: &'static str,
}

const PACKAGES: [Package; 3] = [
    Package {
        name: "urxe",
        depends: "",
        paths: &["bin", "lib/urxe", "share"],
        description: "RDMA verbs in user space: RoCEv2 without a NIC, a kernel module or root\n \
                      The command urxe runs programs with libibverbs and librdmacm replaced.",
    },
    Package {
        name: "urxe-dev",
        depends: "urxe (= VERSION)",
        paths: &["include", "lib/urxe/pkgconfig"],
        description: "RDMA verbs in user space: C headers and pkg-config files\n \
                      Set PKG_CONFIG_PATH to /usr/lib/urxe/pkgconfig, or use urxe env.",
    },
    Package {
        name: "urxe-replacements",
        depends: "urxe (= VERSION)",
        paths: &[],
        description: "RDMA verbs in user space: libibverbs of the whole system\n \
                      The dynamic linker uses urxe for each program that needs libibverbs or\n \
                      librdmacm, as urxe run does for one program. Meant for containers.",
    },
];

/// The file that makes the dynamic linker prefer urxe, and its content. The name precedes those of
/// other directories, and the first directory with a library wins.
const LINKER_FILE: (&str, &str) = (
    "etc/ld.so.conf.d/00-urxe.conf",
    "/usr/lib/urxe/replacements\n",
);

/// Packs the tree. Returns the names of the packages in `out`.
pub(super) fn pack(
    products: &Products,
    tree: &Path,
    epoch: &str,
    out: &Path,
) -> Result<Vec<PathBuf>, String> {
    let architecture = match products.target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        other => return Err(format!("Debian has no name here for {other:?}")),
    };
    let libc = newest_libc(&tree.join("bin/urxe"), &tree.join("lib/urxe/liburxe.so"))?;
    let mut files = Vec::new();
    for package in &PACKAGES {
        let root = out.join("staging").join(package.name);
        let usr = root.join("usr");
        for path in package.paths {
            copy(&tree.join(path), &usr.join(path))?;
        }
        match package.name {
            "urxe" => remove(&usr.join("lib/urxe/pkgconfig"))?,
            "urxe-replacements" => {
                let (file, text) = LINKER_FILE;
                write_file(&root.join(file), text.as_bytes(), 0o644)?;
                // dpkg runs ldconfig.
                let triggers = root.join("DEBIAN/triggers");
                write_file(&triggers, b"activate-noawait ldconfig\n", 0o644)?;
            }
            _ => {}
        }
        if package.name != "urxe" {
            // The licence is in the package that this one needs.
            fs::create_dir_all(usr.join("share/doc"))
                .and_then(|()| {
                    std::os::unix::fs::symlink("urxe", usr.join("share/doc").join(package.name))
                })
                .map_err(|error| format!("{}: {error}", usr.display()))?;
        }
        let depends = match package.depends {
            "" => format!("libc6 (>= {libc}), libgcc-s1"),
            others => others.replace("VERSION", VERSION),
        };
        let control = format!(
            "Package: {}\nVersion: {VERSION}\nArchitecture: {architecture}\n\
             Maintainer: urxe <maintainers@urxe.invalid>\nSection: net\nPriority: optional\n\
             Depends: {depends}\nDescription: {}\n",
            package.name, package.description
        );
        write_file(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
        let file = PathBuf::from(format!("{}_{VERSION}_{architecture}.deb", package.name));
        let compression = if products.compressed {
            "-Zxz"
        } else {
            "-Znone"
        };
        succeed(
            Command::new("dpkg-deb")
                .args([
                    "--root-owner-group",
                    compression,
                    "--threads-max=1",
                    "--build",
                ])
                .args([&root, &out.join(&file)])
                .env("SOURCE_DATE_EPOCH", epoch)
                .stdout(std::process::Stdio::null()),
        )?;
        files.push(file);
    }
    Ok(files)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    succeed(Command::new("cp").arg("-a").args([from, to]))
}

/// Returns the newest version of glibc whose symbols these files need.
fn newest_libc(command: &Path, library: &Path) -> Result<String, String> {
    let read = Command::new("readelf")
        .args(["--wide", "--version-info"])
        .args([command, library])
        .output()
        .map_err(|error| format!("readelf: {error}"))?;
    let text = String::from_utf8_lossy(&read.stdout);
    let newest = versions(&text).max();
    newest
        .map(|(major, minor)| format!("{major}.{minor}"))
        .ok_or_else(|| "readelf shows no version of glibc".to_owned())
}

/// Returns the versions in the names `GLIBC_MAJOR.MINOR`.
fn versions(text: &str) -> impl Iterator<Item = (u32, u32)> {
    text.split_ascii_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_is_compared_by_number() {
        let text = "0x0010: Name: GLIBC_2.9  Flags: none\n Name: GLIBC_2.28 Name: GLIBC_2.2.5";
        assert_eq!(versions(text).max(), Some((2, 28)));
    }
}
