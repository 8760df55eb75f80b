//! Puts the devices into `/sys/class` as this process, and what it starts, sees it.
//!
//! The kernel lets nobody add to sysfs. So a file system in memory takes the place of `/sys/class`,
//! in mounts that are this process's own, and in it each class of the kernel is where it was.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use urxe_driver::{device, isolation};

use super::tree::{self, DEVICES, VERBS};

const CLASS: &str = "/sys/class";

/// Why `/sys/class` stays as it is.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct MountError {
    what: &'static str,
    source: io::Error,
}

/// Says what was tried.
trait Trying<T> {
    fn trying(self, what: &'static str) -> Result<T, MountError>;
}

impl<T, E: Into<io::Error>> Trying<T> for Result<T, E> {
    fn trying(self, what: &'static str) -> Result<T, MountError> {
        self.map_err(|source| MountError {
            what,
            source: source.into(),
        })
    }
}

/// Gives this process mounts of its own and shows the devices in them. When it fails, nothing has
/// changed but that the mounts may be this process's own.
///
/// # Errors
/// When that is not allowed, or the kernel does not tell the interfaces.
pub fn show() -> Result<(), MountError> {
    let devices = device::devices().trying("asking for the network interfaces")?;
    isolate()?;
    // Mounts of this process are not to be seen by others; those of others still come.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).trying("making the mounts private")?;
    let class = Path::new(CLASS);
    let real = File::open(class).trying("opening /sys/class")?;
    // The tree is complete before it is in place.
    mount(
        "urxe",
        class,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        c"mode=755",
    )
    .trying("mounting over /sys/class")?;
    let filled = fill(&real, class).and_then(|()| {
        let mut all = devices.iter();
        all.try_for_each(|device| tree::write(class, device))
    });
    if filled.is_err() {
        // What was there is better than half of it.
        let _ = rustix::mount::unmount(class, rustix::mount::UnmountFlags::DETACH);
    }
    filled.trying("filling /sys/class")
}

/// As root by right, as anybody else in a user namespace, in which nobody is anybody else than
/// before.
fn isolate() -> Result<(), MountError> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    match isolation::private_mounts(false) {
        // Root without the right to mounts would not be root in a user namespace either: it
        // would lose what rights it has.
        Err(error) if !user.is_root() && error.kind() == io::ErrorKind::PermissionDenied => {}
        result => return result.trying("making mounts of one's own"),
    }
    isolation::private_mounts(true).trying("making a user namespace")?;
    let identity = |id: u32| format!("{id} {id} 1");
    fs::write("/proc/self/setgroups", "deny").trying("setting up the user namespace")?;
    fs::write("/proc/self/uid_map", identity(user.as_raw()))
        .and_then(|()| fs::write("/proc/self/gid_map", identity(group.as_raw())))
        .trying("setting up the user namespace")
}

/// Puts the kernel's own classes where they were. Those of RDMA devices may get company, so their
/// entries are copied: they are links.
fn fill(real: &File, class: &Path) -> io::Result<()> {
    let hidden = PathBuf::from(format!("/proc/self/fd/{}", real.as_raw_fd()));
    for entry in fs::read_dir(&hidden)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let place = class.join(&name);
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &place)?;
        } else if name == DEVICES || name == VERBS {
            copy_links(&entry.path(), &place)?;
        } else {
            fs::create_dir(&place)?;
            mount_bind(entry.path(), &place)?;
        }
    }
    Ok(())
}

fn copy_links(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        match fs::read_link(entry.path()) {
            Ok(target) => symlink(target, place)?,
            // A file, such as the version of the interface.
            Err(_) => fs::write(place, fs::read(entry.path())?)?,
        }
    }
    Ok(())
}
