//! The files of a package, below one directory that may be unpacked anywhere.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::files;
use super::products::{Products, VERSION};
use crate::release::succeed;

/// The shared objects.
pub(super) const OBJECTS: [&str; 3] = ["liburxe.so", "liburxe_preload.so", "librspreload.so"];

/// The directory with the names of the libraries that urxe replaces.
const REPLACEMENTS: &str = "lib/urxe/replacements";

/// The libraries that urxe replaces, with the versions that programs compare with: those of
/// rdma-core 65, whose API urxe covers.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libibverbs", "1.18.65.0", ""),
    ("librdmacm", "1.5.65.0", "libibverbs"),
];

/// Documents that are installed.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/ENVIRONMENT.md",
    "docs/SECURITY.md",
];

/// Writes the tree to `root`.
pub(super) fn write(products: &Products, workspace: &Path, root: &Path) -> Result<(), String> {
    install(
        &products.directory.join("urxe"),
        &root.join("bin/urxe"),
        0o755,
    )?;
    for object in OBJECTS {
        let from = products.directory.join(object);
        install(&from, &root.join("lib/urxe").join(object), 0o644)?;
    }
    for (name, version, needs) in LIBRARIES {
        link(
            "../liburxe.so",
            &root.join(REPLACEMENTS).join(format!("{name}.so.1")),
        )?;
        let file = root.join("lib/urxe/pkgconfig").join(format!("{name}.pc"));
        files::write(&file, pkg_config(name, version, needs).as_bytes())?;
    }
    copy_directory(&workspace.join("include"), &root.join("include/urxe"))?;
    for document in DOCUMENTS {
        let from = workspace.join(document);
        let name = from.file_name().unwrap_or_default();
        install(&from, &root.join("share/doc/urxe").join(name), 0o644)?;
    }
    let urxe = &products.runnable;
    succeed(
        Command::new(urxe)
            .arg("manual")
            .arg(root.join("share/man/man1")),
    )?;
    for (shell, file) in [
        ("bash", "bash-completion/completions/urxe"),
        ("zsh", "zsh/site-functions/_urxe"),
        ("fish", "fish/vendor_completions.d/urxe.fish"),
    ] {
        let script = Command::new(urxe)
            .args(["completions", shell])
            .output()
            .map_err(|error| format!("{}: {error}", urxe.display()))?;
        if !script.status.success() {
            return Err(format!("urxe completions {shell}: {}", script.status));
        }
        files::write(&root.join("share").join(file), &script.stdout)?;
    }
    files::set_modes(root)
}

/// Packs the directory `name` in `parent`, with modes, owners, times and order that do not depend
/// on this machine.
pub(super) fn archive(
    parent: &Path,
    name: &str,
    epoch: &str,
    compressed: bool,
    file: &Path,
) -> Result<(), String> {
    // Without the name and time of the file.
    let compressor = if compressed { "gzip -9n" } else { "gzip -1n" };
    succeed(
        Command::new("tar")
            .args(["--create", "--sort=name", "--format=gnu", "--numeric-owner"])
            .args(["--owner=0", "--group=0", "--mode=u+rw,go=rX"])
            .arg(format!("--mtime=@{epoch}"))
            .args(["--use-compress-program", compressor])
            .arg("--file")
            .arg(file)
            .arg("--directory")
            .args([parent.as_os_str(), name.as_ref()]),
    )
}

fn pkg_config(name: &str, version: &str, needs: &str) -> String {
    // `-l:FILE` records the library's soname, so the program also runs with rdma-core.
    format!(
        "prefix=${{pcfiledir}}/../../..\n\
         Name: {name}\n\
         Description: RDMA verbs in user space, by urxe {VERSION}\n\
         Version: {version}\n\
         Requires: {needs}\n\
         Libs: -L${{prefix}}/{REPLACEMENTS} -l:{name}.so.1\n\
         Cflags: -I${{prefix}}/include/urxe\n"
    )
}

fn copy_directory(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", from.display());
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy_directory(&from, &to)?,
            false => install(&from, &to, 0o644)?,
        }
    }
    Ok(())
}

/// Copies a file and sets its mode.
pub(super) fn install(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let content = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    write_file(to, &content, mode)
}

/// Writes a file with this mode.
pub(super) fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    files::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn link(target: &str, path: &Path) -> Result<(), String> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)
        .and_then(|()| symlink(target, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}
