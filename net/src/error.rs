//! The errors of opening sockets. Their texts name the remedy.

use crate::address::LocalAddress;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// The reason why an address or the network could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another socket has bound UDP port 4791 of this address.
    #[error("UDP port 4791 of {address} is taken by {owner}")]
    PortInUse {
        /// The address.
        address: LocalAddress,
        /// The owner of the port, as far as it is visible, and the remedy.
        owner: PortOwner,
    },
    /// The address is not (or no longer) one of this host.
    #[error("{address} is not an address of this host (see `ip address`), or not usable yet")]
    AddressNotAvailable {
        /// The address.
        address: LocalAddress,
    },
    /// A security policy forbids the sockets.
    #[error(
        "{what} is not permitted: {source}; if the program runs in a sandbox (seccomp, AppArmor, \
         SELinux), permit it UDP and Unix sockets"
    )]
    NotPermitted {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// No file descriptor was left.
    #[error(
        "{what} failed because too many files are open ({source}): close some, or raise the limit \
         with `ulimit -n`"
    )]
    TooManyFiles {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// All slots are taken.
    #[error(
        "all 255 slots for processes in this network namespace are taken: end some of them, or use \
         another network namespace"
    )]
    NoFreeSlot,
    /// The capture file cannot be written.
    #[error("URXE_PCAP: {0}")]
    Capture(#[from] crate::capture::CaptureError),
    /// The keepalive time cannot be parsed.
    #[error("URXE_KEEPALIVE: `{0}` is not a number of seconds such as 60, or 0 for no timeout")]
    Keepalive(String),
    /// The fault specification cannot be parsed.
    #[error("URXE_FAULTS: {0}")]
    Faults(#[from] crate::faults::ParseError),
    /// The size of the socket's buffer is not a number of bytes.
    #[error("URXE_SOCKET_BUFFER={0:?}: give a number of bytes, such as 212992")]
    SocketBuffer(String),
    /// No congestion control algorithm has this name.
    #[error("URXE_CONGESTION: {0}")]
    Congestion(#[from] urxe_proto::rc::congestion::UnknownAlgorithm),
    /// One end of a path is IPv4 and the other IPv6.
    #[error("{address} cannot reach {peer}: one is IPv4 and the other IPv6; use GIDs of one kind")]
    OtherFamily {
        /// The local address.
        address: LocalAddress,
        /// The peer.
        peer: IpAddr,
    },
    /// Any other error.
    #[error("{what} failed: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl OpenError {
    /// Converts the error of a system call that does not concern an address.
    pub(super) fn system(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EAFNOSUPPORT) => {
                OpenError::NotPermitted { what, source }
            }
            Some(libc::EMFILE | libc::ENFILE) => OpenError::TooManyFiles { what, source },
            _ => OpenError::System { what, source },
        }
    }

    /// Converts the error of binding port 4791 (or another) of `address`.
    pub(super) fn bind(address: LocalAddress, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => OpenError::PortInUse {
                address,
                owner: PortOwner::find(Path::new("/sys")),
            },
            Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::EINVAL) => {
                OpenError::AddressNotAvailable { address }
            }
            _ => OpenError::system("binding a UDP socket", source),
        }
    }

    /// The `errno` closest to this error, for programs that know no other errors.
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::PortInUse { .. } => libc::EADDRINUSE,
            OpenError::AddressNotAvailable { .. } => libc::EADDRNOTAVAIL,
            OpenError::NotPermitted { source, .. }
            | OpenError::TooManyFiles { source, .. }
            | OpenError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            OpenError::NoFreeSlot => libc::EAGAIN,
            OpenError::Capture(_) => libc::EIO,
            OpenError::OtherFamily { .. } => libc::EAFNOSUPPORT,
            OpenError::Faults(_)
            | OpenError::SocketBuffer(_)
            | OpenError::Keepalive(_)
            | OpenError::Congestion(_) => libc::EINVAL,
        }
    }
}

/// The owner of port 4791.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PortOwner {
    /// The kernel's RoCE driver, with the names of its devices.
    Rxe(Vec<String>),
    /// A process that does not share the port with this one.
    OtherProcess,
}

impl PortOwner {
    /// Determines the owner: rxe if the kernel has it loaded. `sys` is the mount point of sysfs.
    fn find(sys: &Path) -> Self {
        if !sys.join("module/rdma_rxe").exists() {
            return PortOwner::OtherProcess;
        }
        // Of all RDMA devices only those of rxe (and siw) have this file, which names their
        // interface.
        let mut devices: Vec<String> = fs::read_dir(sys.join("class/infiniband"))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|device| device.path().join("parent").exists())
            .map(|device| device.file_name().to_string_lossy().into_owned())
            .collect();
        devices.sort();
        PortOwner::Rxe(devices)
    }
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortOwner::Rxe(devices) => {
                write!(f, "the kernel's own rxe")?;
                match devices.as_slice() {
                    [] => write!(f, ": unload it with `rmmod rdma_rxe`")?,
                    names => {
                        write!(f, " ({}): remove it with", names.join(", "))?;
                        for name in names {
                            write!(f, " `rdma link delete {name}`")?;
                        }
                        write!(f, " and `rmmod rdma_rxe`")?;
                    }
                }
                write!(f, ", or run in another network namespace (`unshare -rn`)")
            }
            PortOwner::OtherProcess => write!(
                f,
                "another user's process, or one that does not share the port; `ss -ulpn sport = \
                 :4791` as root shows it. End it, run as the same user, use another address, or \
                 run in another network namespace (`unshare -rn`)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_rxe_is_named_as_the_owner_of_the_port() {
        let root = std::env::temp_dir().join(format!("urxe-sysfs-{}", std::process::id()));
        assert_eq!(PortOwner::find(&root), PortOwner::OtherProcess);
        fs::create_dir_all(root.join("module/rdma_rxe")).unwrap();
        fs::create_dir_all(root.join("class/infiniband/mlx5_0")).unwrap();
        fs::create_dir_all(root.join("class/infiniband/rxe0")).unwrap();
        fs::write(root.join("class/infiniband/rxe0/parent"), "eth0\n").unwrap();
        let owner = PortOwner::find(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(owner, PortOwner::Rxe(vec!["rxe0".into()]));
        assert!(owner.to_string().contains("rdma link delete rxe0"));
    }
}
