//! The build of what is packed.

use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::products::{Products, is_musl};
use super::tree;
use crate::packages::find_program;
use crate::release::{self, PRODUCTS, succeed};

/// The Cargo profile of packages.
const PROFILE: &str = "dist";

/// The linker: `cc`, or the one of [`COMPILER`], in the directory of the output. lld writes the
/// path of the output file, as it is given, to the version definitions of a library without a
/// soname, such as `liburxe.so`.
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
exec "${URXE_LINKER:-cc}" "$@"
"#;

/// rustc with [`LINKER`], which calls the linker that rustc would call. cargo-zigbuild sets the
/// linker to a script of its own, whatever the environment names.
const COMPILER: &str = r#"#!/bin/sh
for word; do
    shift
    case $word in
    linker=*)
        export URXE_LINKER="${word#linker=}"
        word=linker=${0%/*}/linker
        ;;
    esac
    set -- "$@" "$word"
done
exec "$@"
"#;

/// Builds the products for a target, which may have a version of glibc.
///
/// Paths of this machine are replaced in what the compiler records.
pub(super) fn dist(
    target: &str,
    workspace: &Path,
    target_directory: &Path,
) -> Result<Products, String> {
    let host = host()?;
    // Apart from other builds, because the flags differ.
    let directory = target_directory.join("dist-build");
    let mut flags = remapped(workspace, &directory)?;
    if is_musl(target) {
        // Shared objects, which Cargo otherwise leaves out. A command that contains musl, zig's
        // default, could not load them.
        flags.extend(["-Ctarget-feature=-crt-static", "-Clink-arg=-dynamic"].map(str::to_owned));
    }
    let linker = directory.join("linker");
    tree::write_file(&linker, LINKER.as_bytes(), 0o755)?;
    let compiler = directory.join("compiler");
    tree::write_file(&compiler, COMPILER.as_bytes(), 0o755)?;
    let is_native = target == host;
    if !is_native && find_program("cargo-zigbuild").is_none() {
        return Err(
            "cargo-zigbuild is not in PATH; `pip install cargo-zigbuild ziglang` installs it with \
             its linker"
                .to_owned(),
        );
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .arg(if is_native { "build" } else { "zigbuild" })
        .args(["--locked", "--profile", PROFILE, "--target", target])
        .arg("--target-dir")
        .arg(&directory)
        .args(PRODUCTS.iter().flat_map(|package| ["-p", package]))
        // Cargo's separator.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env_remove("RUSTFLAGS");
    match is_native {
        true => {
            let name = target.to_uppercase().replace('-', "_");
            cargo.env(format!("CARGO_TARGET_{name}_LINKER"), &linker);
        }
        false => {
            // Not RUSTC_WORKSPACE_WRAPPER, whose path Cargo hashes into the names of symbols.
            cargo.env("RUSTC_WRAPPER", &compiler);
        }
    }
    succeed(&mut cargo)?;
    // Without the version of glibc.
    let triple = target.split('.').next().unwrap_or(target).to_owned();
    let directory = directory.join(&triple).join(PROFILE);
    for file in [&["urxe"][..], &tree::OBJECTS].concat() {
        require_no_path(&directory.join(file), &[workspace, target_directory])?;
    }
    let runnable = match triple == host {
        true => directory.join("urxe"),
        false => {
            release::build(&["urxe-cli"], workspace, target_directory)?;
            target_directory.join("release/urxe")
        }
    };
    Ok(Products {
        target: triple,
        directory,
        runnable,
        compressed: true,
    })
}

/// Fails if a file contains the path of a directory of this machine, because builds elsewhere would
/// differ.
fn require_no_path(file: &Path, directories: &[&Path]) -> Result<(), String> {
    let content = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let contained = directories.iter().find(|directory| {
        let path = directory.as_os_str().as_bytes();
        content.windows(path.len()).any(|part| part == path)
    });
    match contained {
        Some(directory) => Err(format!(
            "{} contains the path {}",
            file.display(),
            directory.display()
        )),
        None => Ok(()),
    }
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

/// Returns compiler flags that replace the directories of this machine by fixed names.
fn remapped(workspace: &Path, target_directory: &Path) -> Result<Vec<String>, String> {
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
    Ok(flags.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_in_a_file_is_found() {
        let file = env::temp_dir().join(format!("urxe-paths-{}", std::process::id()));
        fs::write(&file, "\0/home/somebody/urxe/target/liburxe.so\0").expect("own file");
        let found = require_no_path(
            &file,
            &[Path::new("/elsewhere"), Path::new("/home/somebody")],
        );
        let other = require_no_path(&file, &[Path::new("/elsewhere")]);
        fs::remove_file(&file).expect("own file");
        assert!(found.is_err_and(|error| error.ends_with("contains the path /home/somebody")));
        assert_eq!(other, Ok(()));
    }

    #[test]
    fn linker_of_rustc_is_called_in_the_directory_of_the_output() {
        let directory = env::temp_dir().join(format!("urxe-linker-{}", std::process::id()));
        let script = |name: &str, text: &str| {
            let path = directory.join(name);
            tree::write_file(&path, text.as_bytes(), 0o755).expect("own file");
            path
        };
        script("linker", LINKER);
        let compiler = script("compiler", COMPILER);
        let own = script("own", "#!/bin/sh\necho \"$PWD $*\"\n");
        // In place of rustc, which calls the program of its option with the linker's arguments.
        let rustc = script(
            "rustc",
            "#!/bin/sh\n\"${2#linker=}\" -o \"$3/out.so\" in.o\n",
        );
        let called = Command::new(&compiler)
            .arg(&rustc)
            .args(["-C", &format!("linker={}", own.display())])
            .arg(&directory)
            .output()
            .expect("a shell");
        let expected = format!("{} -o out.so in.o\n", directory.display());
        fs::remove_dir_all(&directory).expect("own files");
        assert_eq!(String::from_utf8_lossy(&called.stdout), expected);
    }
}
