//! Puts the devices into `/sys/class` as this process, and what it starts, sees it.
//!
//! The kernel lets nobody add to sysfs. So a file system in memory takes the place of `/sys/class`,
//! in mounts that are this process's own, and in it each class of the kernel is where it was.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use urxe_driver::{Device, device, isolation};

use crate::tree::{self, DEVICES, VERBS};

pub const CLASS: &str = "/sys/class";
/// Where the kernel's devices have their files.
pub const NODES: &str = "/dev/infiniband";

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
    let shown = cover(class, |real| {
        bind_all(real, class, &[DEVICES, VERBS])?;
        for name in [DEVICES, VERBS] {
            tree::copy_links(&real.join(name), &class.join(name))?;
        }
        let mut all = devices.iter();
        all.try_for_each(|device| tree::write(class, device))
    });
    shown.trying("showing the devices in /sys/class")?;
    show_nodes(&devices).trying("showing the devices in /dev")
}

/// The files that the kernel's devices are opened by, which UCX looks for. Nobody opens these: urxe's
/// devices are in the process that uses them.
fn show_nodes(devices: &[Arc<Device>]) -> io::Result<()> {
    let nodes = Path::new(NODES);
    let fill = |real: &Path| bind_all(real, nodes, &[]);
    match nodes.is_dir() {
        true => cover(nodes, fill)?,
        // Nobody can add a directory to /dev without others seeing it, so that is done in its place.
        false => {
            let all = nodes.parent().unwrap_or(Path::new("/dev"));
            cover(all, |real| {
                bind_all(real, all, &[])?;
                fs::create_dir(nodes)
            })?;
        }
    }
    for device in devices {
        let node = nodes.join(device.name());
        File::create(&node)?;
        mount_bind("/dev/null", &node)?;
    }
    Ok(())
}

/// Puts a file system in memory in the place of a directory. `fill` gets the path by which what is
/// under it can be reached; when it fails, the directory is what it was.
fn cover(place: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let real = File::open(place)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("urxe", place, "tmpfs", flags, c"mode=755")?;
    let hidden = PathBuf::from(format!("/proc/self/fd/{}", real.as_raw_fd()));
    let filled = fill(&hidden);
    if filled.is_err() {
        unmount(place, UnmountFlags::DETACH)?;
    }
    filled
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

/// Puts everything but these entries of a directory into another.
fn bind_all(from: &Path, to: &Path, but: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if but.iter().any(|other| name == *other) {
            continue;
        }
        let place = to.join(&name);
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &place)?;
            continue;
        }
        match kind.is_dir() {
            true => fs::create_dir(&place)?,
            false => drop(File::create(&place)?),
        }
        mount_bind_recursive(entry.path(), &place)?;
    }
    Ok(())
}
