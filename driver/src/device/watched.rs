//! The interfaces of this host for callers that need them often: listed again only after a change.
//!
//! To list the interfaces takes about 25 system calls, and the connection manager needs them for
//! each connection. Here a call takes three: it tests whether the kernel has reported a change,
//! which the kernel does before the system call that makes the change returns.

use crate::per_process::PerProcess;
use crate::sync::{Mutex, lock};
use rustix::fs::{Stat, fstat, stat};
use std::io;
use std::mem::ManuallyDrop;
use urxe_net::{Interface, Monitor, list_interfaces};

/// The network namespace of the calling thread.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The device and inode numbers of a file.
type File = (u64, u64);

/// A list of interfaces that is valid until the monitor reports a change.
#[derive(Debug)]
struct Listed {
    interfaces: Vec<Interface>,
    /// Whether a change has been reported since the interfaces were listed.
    stale: bool,
    /// Not dropped: if the program has closed the descriptor, the number may belong to a file of
    /// the program.
    monitor: ManuallyDrop<Monitor>,
    /// The file of the monitor's descriptor.
    file: File,
    namespace: File,
}

static LISTED: PerProcess<Mutex<Option<Listed>>> = PerProcess::new();

/// Returns the interfaces as [`list_interfaces`] does.
pub(super) fn interfaces() -> io::Result<Vec<Interface>> {
    let Ok(namespace) = stat(NAMESPACE).map(file) else {
        return list_interfaces();
    };
    let mut listed = lock(LISTED.get(Mutex::default));
    if let Some(listed) = listed.as_mut()
        && listed.namespace == namespace
        && is_of(&listed.monitor, listed.file)
    {
        // A change is reported once, and the list may fail.
        listed.stale |= listed.monitor.changed();
        if listed.stale {
            listed.interfaces = list_interfaces()?;
            listed.stale = false;
        }
        return Ok(listed.interfaces.clone());
    }
    if let Some(before) = listed.take()
        && is_of(&before.monitor, before.file)
    {
        drop(ManuallyDrop::into_inner(before.monitor));
    }
    // A change after the subscription is reported, whether the list has it or not.
    let monitor = Monitor::of_everything().and_then(|monitor| {
        let file = fstat(monitor.fd()).map(file)?;
        Ok((ManuallyDrop::new(monitor), file))
    });
    let interfaces = list_interfaces()?;
    if let Ok((monitor, file)) = monitor {
        *listed = Some(Listed {
            interfaces: interfaces.clone(),
            stale: false,
            monitor,
            file,
            namespace,
        });
    }
    Ok(interfaces)
}

fn is_of(monitor: &Monitor, expected: File) -> bool {
    fstat(monitor.fd()).map(file) == Ok(expected)
}

fn file(stat: Stat) -> File {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::child_finishes;
    use std::os::fd::AsRawFd;

    #[test]
    fn interfaces_are_listed_anew_if_the_program_has_closed_the_descriptor() {
        child_finishes(|| {
            let before = interfaces().unwrap();
            let descriptor = lock(LISTED.get(Mutex::default))
                .as_ref()
                .map(|listed| listed.monitor.fd().as_raw_fd());
            let Some(descriptor) = descriptor else {
                return;
            };
            // The number now belongs to a file of the program, which stays open.
            let (reader, writer) = io::pipe().unwrap();
            // SAFETY: both are open descriptors, and the monitor checks its own before use.
            let copy = unsafe { libc::dup2(reader.as_raw_fd(), descriptor) };
            assert_eq!(copy, descriptor);
            assert_eq!(interfaces().unwrap(), before);
            // SAFETY: the descriptor is open.
            assert_ne!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) }, -1);
            drop(writer);
        });
    }
}
