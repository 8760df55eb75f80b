//! Mounts the view of the devices in `/sys/class`, for this process and its children.
//!
//! Directories cannot be added to sysfs. A tmpfs therefore replaces `/sys/class` in a private mount
//! namespace, and contains bind mounts of the kernel's classes.

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
/// The directory of the kernel's device nodes.
pub const NODES: &str = "/dev/infiniband";

/// The failure of a step.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed: {source}")]
pub struct MountError {
    what: &'static str,
    source: io::Error,
}

/// Adds the name of the step to an error.
trait Context<T> {
    fn context(self, what: &'static str) -> Result<T, MountError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: &'static str) -> Result<T, MountError> {
        self.map_err(|source| MountError {
            what,
            source: source.into(),
        })
    }
}

/// Mounts the view in a private mount namespace. After a failure this process may be in the new
/// namespace, and may have a part of the view there.
///
/// # Errors
/// Fails if mounts are forbidden or the devices cannot be listed.
pub fn show() -> Result<(), MountError> {
    let devices = device::devices().context("listing the devices")?;
    isolate()?;
    // Mounts of this process do not propagate to other namespaces; theirs still propagate here.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).context("making the mounts private")?;
    let class = Path::new(CLASS);
    let shown = cover(class, |real| {
        bind_all(real, class, &[DEVICES, VERBS])?;
        for name in [DEVICES, VERBS] {
            tree::copy_links(&real.join(name), &class.join(name))?;
        }
        let mut all = devices.iter();
        all.try_for_each(|device| tree::write(class, device))
    });
    shown.context("showing the devices in /sys/class")?;
    show_nodes(&devices).context("showing the devices in /dev")
}

/// Creates the device nodes that UCX checks for. They are never opened, because urxe's devices
/// exist in the process that uses them.
fn show_nodes(devices: &[Arc<Device>]) -> io::Result<()> {
    let nodes = Path::new(NODES);
    let fill = |real: &Path| bind_all(real, nodes, &[]);
    match nodes.is_dir() {
        true => cover(nodes, fill)?,
        // A directory added to /dev would be visible to others, so a tmpfs replaces /dev.
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

/// Mounts a tmpfs over a directory. `fill` gets the path of the covered directory. If it fails, the
/// directory is unchanged.
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

/// Creates a private mount namespace: directly as root, otherwise in a user namespace that keeps
/// the user ID.
fn isolate() -> Result<(), MountError> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    match isolation::private_mounts(false) {
        // Root without CAP_SYS_ADMIN would lose its other capabilities in a user namespace.
        Err(error) if !user.is_root() && error.kind() == io::ErrorKind::PermissionDenied => {}
        result => return result.context("creating a private mount namespace"),
    }
    isolation::private_mounts(true).context("creating a user namespace")?;
    let identity = |id: u32| format!("{id} {id} 1");
    fs::write("/proc/self/setgroups", "deny").context("setting up the user namespace")?;
    fs::write("/proc/self/uid_map", identity(user.as_raw()))
        .and_then(|()| fs::write("/proc/self/gid_map", identity(group.as_raw())))
        .context("setting up the user namespace")
}

/// Bind-mounts all entries of a directory into another, except those with the names in `except`.
fn bind_all(from: &Path, to: &Path, except: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if except.iter().any(|other| name == *other) {
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
