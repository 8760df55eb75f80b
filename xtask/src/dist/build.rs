//! The build of what is packed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::products::Products;
use super::tree;
use crate::release::{PRODUCTS, succeed};

/// The Cargo profile of packages.
const PROFILE: &str = "dist";

/// The linker: `cc` in the directory of the output. lld writes the path of the output file, as it
/// is given, to the version definitions of a library without a soname, such as `liburxe.so`.
const LINKER: &str = r#"#!/bin/sh
for word; do
    shift
    if [ "$previous" = -o ]; then
        cd "${word%/*}" || exit
        word=${word##*/}
    fi
    previous=$word
    set -- "$@" "$word"
done
exec cc "$@"
"#;

/// Builds the products for a target; `None` is the host.
///
/// Paths of this machine are replaced in what the compiler records.
pub(super) fn dist(
    target: Option<&str>,
    workspace: &Path,
    target_directory: &Path,
) -> Result<Products, String> {
    let host = host()?;
    // Apart from other builds, because the flags differ.
    let directory = target_directory.join("dist-build");
    let flags = remapped(workspace, &directory)?;
    let linker = directory.join("linker");
    tree::write_file(&linker, LINKER.as_bytes(), 0o755)?;
    let compile = |command: &str, target: &str| {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(workspace)
            .args([
                command,
                "--locked",
                "--profile",
                PROFILE,
                "--target",
                target,
            ])
            .arg("--target-dir")
            .arg(&directory)
            .args(PRODUCTS.iter().flat_map(|package| ["-p", package]))
            .env("CARGO_ENCODED_RUSTFLAGS", &flags)
            .env_remove("RUSTFLAGS");
        if command == "build" {
            let name = target.to_uppercase().replace('-', "_");
            cargo.env(format!("CARGO_TARGET_{name}_LINKER"), &linker);
        }
        succeed(&mut cargo)?;
        let triple = target.split('.').next().unwrap_or(target);
        Ok::<_, String>((triple.to_owned(), directory.join(triple).join(PROFILE)))
    };
    let target = target.unwrap_or(&host);
    if target == host {
        let (target, directory) = compile("build", &host)?;
        let runnable = directory.join("urxe");
        return Ok(Products {
            target,
            directory,
            runnable,
            compressed: true,
        });
    }
    if env::var_os("PATH")
        .is_none_or(|path| env::split_paths(&path).all(|d| !d.join("cargo-zigbuild").is_file()))
    {
        return Err(
            "cargo-zigbuild is not in PATH; `pip install cargo-zigbuild ziglang` installs it with \
             its linker"
                .to_owned(),
        );
    }
    let (target, directory) = compile("zigbuild", target)?;
    let runnable = match target == host {
        true => directory.join("urxe"),
        false => compile("build", &host)?.1.join("urxe"),
    };
    Ok(Products {
        target,
        directory,
        runnable,
        compressed: true,
    })
}

/// Returns the host's target triple.
pub(super) fn host() -> Result<String, String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "host-tuple"])
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(output.stdout.trim_ascii()).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Returns compiler flags, encoded as Cargo expects them, that replace the directories of this
/// machine by fixed names.
fn remapped(workspace: &Path, target_directory: &Path) -> Result<String, String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set")?;
    // The last flag that matches applies, and the target directory may be in the workspace.
    let flags = [
        (home.as_path(), "/cargo"),
        (workspace, "/urxe"),
        (target_directory, "/target"),
    ];
    let flags = flags.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    // Cargo's separator.
    Ok(flags.join("\x1f"))
}
