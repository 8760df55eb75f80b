//! Shows a program the devices where it may not have mounts of its own: as files in a directory, in which the
//! object that it preloads looks in the place of `/sys/class/infiniband` (the crate in `sysfs/preload/`).
//!
//! The directory has the paths that it stands for below it. What the kernel shows is there by links.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use urxe_driver::device;

use crate::Variable;
use crate::environment::LONGEST_ROOT;
pub use crate::environment::VARIABLE;
use crate::mount::{CLASS, NODES};
use crate::tree::{self, DEVICES, VERBS};

/// The file name of the shared object that programs preload.
pub const PRELOAD: &str = "liburxe_preload.so";
/// The variable that names what the dynamic linker loads before a program's libraries.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// Programs may become other users, as they may with mounts.
const FOR_ALL_TO_READ: u32 = 0o755;
/// How many names to try: a program with the same process id may have left its own.
const ATTEMPTS: u32 = 16;

/// Why the devices cannot be shown in this way.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The interfaces are not known.
    #[error("asking for the network interfaces: {0}")]
    Interfaces(#[source] io::Error),
    /// The dynamic linker would not take it as one path.
    #[error(
        "{path}: such a path cannot be preloaded from; set TMPDIR to a shorter one, without spaces, \
         colons, semicolons and dollar signs",
        path = .0.display()
    )]
    Place(PathBuf),
    /// A file cannot be written.
    #[error("writing the devices' files to {path}: {source}", path = .path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The files of one program; removed when dropped.
pub struct Files {
    root: PathBuf,
    kept: bool,
}

impl Files {
    /// Writes the files, and a link to the object that programs preload.
    ///
    /// # Errors
    /// When the interfaces cannot be listed, or there is no place for the files.
    pub fn write(object: &Path) -> Result<Self, PreloadError> {
        let root = make_root(&env::temp_dir())?;
        let files = Self { root, kept: false };
        let devices = device::devices().map_err(PreloadError::Interfaces)?;
        fill(&files.root, object, &devices).map_err(|source| PreloadError::Write {
            path: files.root.clone(),
            source,
        })?;
        Ok(files)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Leaves them to the keeper, and tells the program's variables.
    pub fn keep(mut self) -> Vec<Variable> {
        self.kept = true;
        let mut preload = self.root.join(PRELOAD).into_os_string();
        if let Some(others) = env::var_os(LD_PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let root = OsString::from(&self.root);
        vec![(LD_PRELOAD, preload), (VARIABLE, root)]
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if !self.kept {
            // They are of no use, and do no harm.
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// What stands for `/sys/class` below a root.
pub fn class(root: &Path) -> PathBuf {
    below(root, CLASS)
}

/// Where a path that begins with a slash is below a root.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Makes a new directory, with a name that is one path to the dynamic linker.
fn make_root(base: &Path) -> Result<PathBuf, PreloadError> {
    let user = rustix::process::geteuid().as_raw();
    let name = format!("urxe-sysfs-{user}-{}", std::process::id());
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        let root = match attempt {
            0 => base.join(&name),
            _ => base.join(format!("{name}.{attempt}")),
        };
        if !is_usable(root.as_os_str()) {
            return Err(PreloadError::Place(root));
        }
        match DirBuilder::new().mode(FOR_ALL_TO_READ).create(&root) {
            Ok(()) => return Ok(root),
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                last = Some((root, source));
            }
            Err(source) => return Err(PreloadError::Write { path: root, source }),
        }
    }
    let (path, source) = last.expect("at least one was tried");
    Err(PreloadError::Write { path, source })
}

fn is_usable(root: &OsStr) -> bool {
    let bytes = root.as_bytes();
    bytes.len() <= LONGEST_ROOT
        && bytes.starts_with(b"/")
        && !bytes.iter().any(|byte| b" \t\n:;$".contains(byte))
}

fn fill(root: &Path, object: &Path, devices: &[std::sync::Arc<device::Device>]) -> io::Result<()> {
    // By a name without what the dynamic linker would split, wherever it is installed.
    symlink(object, root.join(PRELOAD))?;
    let class = class(root);
    fs::create_dir_all(&class)?;
    let sys = Path::new(CLASS).parent().unwrap_or(Path::new("/"));
    link_all(sys, &below(root, "/sys"), &["class"])?;
    link_all(Path::new(CLASS), &class, &[DEVICES, VERBS])?;
    for name in [DEVICES, VERBS] {
        tree::copy_links(&Path::new(CLASS).join(name), &class.join(name))?;
    }
    let nodes = below(root, NODES);
    fs::create_dir_all(&nodes)?;
    if Path::new(NODES).is_dir() {
        link_all(Path::new(NODES), &nodes, &[])?;
    }
    for device in devices {
        tree::write(&class, device)?;
        symlink("/dev/null", nodes.join(device.name()))?;
    }
    Ok(())
}

/// Makes links in a directory to everything but these entries of another.
fn link_all(from: &Path, to: &Path, but: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if !but.iter().any(|other| name == *other) {
            symlink(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_one_path_to_the_dynamic_linker() {
        assert!(is_usable(OsStr::new("/tmp/urxe-sysfs-0-1")));
        for path in ["/a b", "/a:b", "/$LIB", "relative"] {
            assert!(!is_usable(OsStr::new(path)), "{path}");
        }
        assert!(!is_usable(OsStr::new(&"/".repeat(LONGEST_ROOT + 1))));
    }
}
