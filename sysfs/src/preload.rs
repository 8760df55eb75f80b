//! Shows the devices to a program that may not mount: the view is a directory, and a preloaded
//! object (the package in `sysfs/preload/`) redirects paths in `/sys/class/infiniband` to it.
//!
//! Below the directory the view has the same paths. Files of the kernel are symbolic links.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use urxe_driver::device;

use crate::environment::LONGEST_ROOT;
pub use crate::environment::VARIABLE;
use crate::mount::{CLASS, NODES};
use crate::tree::{self, DEVICES, VERBS};
use crate::variable::Variable;

/// The file name of the preloaded shared object.
pub const PRELOAD: &str = "liburxe_preload.so";
/// The environment variable with the objects that the dynamic linker preloads.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The mode of the directories. The program may change its user ID, as with mounts.
const FOR_ALL_TO_READ: u32 = 0o755;
/// The number of names to try: a process with the same ID may have left its directory.
const ATTEMPTS: u32 = 16;

/// An error that prevents the view.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The devices cannot be listed.
    #[error("cannot list the devices: {0}")]
    Devices(#[source] io::Error),
    /// The dynamic linker would split the path.
    #[error(
        "{path}: this path cannot be preloaded; set TMPDIR to a shorter path without spaces, \
         colons, semicolons and dollar signs",
        path = .0.display()
    )]
    Place(PathBuf),
    /// The view cannot be written.
    #[error("cannot write the view to {path}: {source}", path = .path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The view of one program; removed when dropped.
pub struct Files {
    root: PathBuf,
    kept: bool,
}

impl Files {
    /// Writes the view, and a link to the preloaded object.
    ///
    /// # Errors
    /// Fails if the devices cannot be listed or the directory cannot be written.
    pub fn write(object: &Path) -> Result<Self, PreloadError> {
        let root = make_root(&env::temp_dir())?;
        let files = Self { root, kept: false };
        let devices = device::devices().map_err(PreloadError::Devices)?;
        fill(&files.root, object, &devices).map_err(|source| PreloadError::Write {
            path: files.root.clone(),
            source,
        })?;
        Ok(files)
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Leaves the removal to the counter service, and returns the program's variables.
    pub fn into_variables(mut self) -> Vec<Variable> {
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
            // A directory that remains is unused and harmless.
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// Returns the replacement of `/sys/class` below a root.
pub fn class(root: &Path) -> PathBuf {
    below(root, CLASS)
}

/// Returns the location of an absolute path below a root.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Creates a new directory, whose path the dynamic linker does not split.
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
    // The link's path has no characters that the dynamic linker splits at.
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
        let node = nodes.join(device.name());
        // A node of the kernel's, if it has the name that was given to this device.
        match fs::remove_file(&node) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink("/dev/null", node)?;
    }
    Ok(())
}

/// Links all entries of a directory, except these, into another.
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
    fn path_that_the_dynamic_linker_splits_is_not_used() {
        assert!(is_usable(OsStr::new("/tmp/urxe-sysfs-0-1")));
        for path in ["/a b", "/a:b", "/$LIB", "relative"] {
            assert!(!is_usable(OsStr::new(path)), "{path}");
        }
        assert!(!is_usable(OsStr::new(&"/".repeat(LONGEST_ROOT + 1))));
    }
}
