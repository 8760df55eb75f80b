//! Debian packages, by `dpkg-deb`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::files::set_modes;
use super::products::{Products, VERSION};
use super::split::{Needs, Package};
use super::tree::write_file;
use crate::release::succeed;

/// Adds the control files to the root of a package and packs it. Returns its name in `out`.
pub(super) fn pack(
    package: &Package,
    products: &Products,
    needs: &Needs,
    root: &Path,
    epoch: &str,
    out: &Path,
) -> Result<PathBuf, String> {
    let architecture = match products.architecture() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("Debian has no name here for {other}")),
    };
    let depends = match package.has_programs() {
        true => {
            let unwinder = needs.libraries.iter().any(|name| name == "libgcc_s.so.1");
            let libgcc = if unwinder { ", libgcc-s1" } else { "" };
            format!("libc6 (>= {}){libgcc}", needs.glibc()?)
        }
        false => format!("urxe (= {VERSION})"),
    };
    // An extended description is indented.
    let control = format!(
        "Package: {}\nVersion: {VERSION}\nArchitecture: {architecture}\n\
         Maintainer: urxe <maintainers@urxe.invalid>\nSection: net\nPriority: optional\n\
         Depends: {depends}\nDescription: {}\n {}\n",
        package.debian_name,
        package.summary,
        package.description.replace('\n', "\n "),
    );
    write_file(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    if package.changes_linker() {
        // dpkg runs ldconfig.
        let triggers = root.join("DEBIAN/triggers");
        write_file(&triggers, b"activate-noawait ldconfig\n", 0o644)?;
    }
    set_modes(&root.join("DEBIAN"))?;
    let file = PathBuf::from(format!(
        "{}_{VERSION}_{architecture}.deb",
        package.debian_name
    ));
    let compression = if products.compressed {
        "-Zxz"
    } else {
        "-Znone"
    };
    succeed(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", compression, "--threads-max=1"])
            .arg("--build")
            .args([root, &out.join(&file)])
            .env("SOURCE_DATE_EPOCH", epoch)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(file)
}
