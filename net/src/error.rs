//! Why sockets could not be opened, in words that say what to do.

use crate::socket::LocalAddress;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// Why an address or the whole network part could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else holds UDP port 4791 of this address.
    #[error("UDP port 4791 of {address} is taken by {holder}")]
    PortInUse {
        /// The address.
        address: LocalAddress,
        /// Who, as far as can be seen, and what to do about it.
        holder: PortHolder,
    },
    /// The address is not (or no longer) one of this host.
    #[error("{address} is not an address of this host (see `ip address`), or not usable yet")]
    AddressNotAvailable {
        /// The address.
        address: LocalAddress,
    },
    /// A security policy forbids the sockets.
    #[error(
        "{what} is not permitted here: {source}; a sandbox (seccomp, AppArmor, SELinux) forbids \
         it, so allow UDP and Unix sockets to this program"
    )]
    NotPermitted {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// No file descriptor was left.
    #[error(
        "{what} failed because too many files are open ({source}): close some, or raise the limit \
         with `ulimit -n`"
    )]
    TooManyFiles {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
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
    Capture(#[from] super::pcap::CaptureError),
    /// The time makes no sense.
    #[error(
        "URXE_KEEPALIVE: `{0}` is not a number of seconds, such as 60, nor 0, which is for ever"
    )]
    Keepalive(String),
    /// The fault specification makes no sense.
    #[error("URXE_FAULTS: {0}")]
    Faults(#[from] super::faults::ParseError),
    /// The size of the socket's buffer is no number of bytes.
    #[error("URXE_SOCKET_BUFFER={0:?}: give a number of bytes, such as 212992")]
    SocketBuffer(String),
    /// There is no such way to control congestion.
    #[error("URXE_CONGESTION: {0}")]
    Congestion(#[from] urxe_proto::rc::congestion::UnknownAlgorithm),
    /// One end of a path is IPv4 and the other IPv6.
    #[error("{address} cannot reach {peer}: one is IPv4 and the other IPv6; use GIDs of one kind")]
    OtherFamily {
        /// The local address.
        address: LocalAddress,
        /// The peer.
        peer: std::net::IpAddr,
    },
    /// Anything else.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// The system's error for a call that was not about an address.
    pub(super) fn system(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted { what, source },
            Some(libc::EMFILE | libc::ENFILE) => OpenError::TooManyFiles { what, source },
            _ => OpenError::System { what, source },
        }
    }

    /// The system's error for binding port 4791 (or another) of `address`.
    pub(super) fn bind(address: LocalAddress, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => OpenError::PortInUse {
                address,
                holder: PortHolder::find(Path::new("/sys")),
            },
            Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::EINVAL) => {
                OpenError::AddressNotAvailable { address }
            }
            _ => OpenError::system("binding a UDP socket", source),
        }
    }

    /// The `errno` that says this best to a program that knows nothing else.
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

/// Who holds port 4791.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortHolder {
    /// The kernel's own RoCE driver, with these devices.
    Rxe(Vec<String>),
    /// A process that does not share it with us.
    OtherProcess,
}

impl PortHolder {
    /// Looks whether the kernel's rxe is loaded; `sys` is where sysfs is.
    fn find(sys: &Path) -> Self {
        if !sys.join("module/rdma_rxe").exists() {
            return PortHolder::OtherProcess;
        }
        // Only rxe (and siw) devices say which network interface they sit on in this way.
        let mut devices: Vec<String> = fs::read_dir(sys.join("class/infiniband"))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|device| device.path().join("parent").exists())
            .map(|device| device.file_name().to_string_lossy().into_owned())
            .collect();
        devices.sort();
        PortHolder::Rxe(devices)
    }
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortHolder::Rxe(devices) => {
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
            PortHolder::OtherProcess => write!(
                f,
                "another user's process, or one that does not share the port: `ss -ulpn sport = \
                 :4791` as root shows it; end it, run as the same user, use another address, or run \
                 in another network namespace (`unshare -rn`)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rxe_is_named_when_it_is_loaded() {
        let root = std::env::temp_dir().join(format!("urxe-sysfs-{}", std::process::id()));
        assert_eq!(PortHolder::find(&root), PortHolder::OtherProcess);
        fs::create_dir_all(root.join("module/rdma_rxe")).unwrap();
        fs::create_dir_all(root.join("class/infiniband/mlx5_0")).unwrap();
        fs::create_dir_all(root.join("class/infiniband/rxe0")).unwrap();
        fs::write(root.join("class/infiniband/rxe0/parent"), "eth0\n").unwrap();
        let holder = PortHolder::find(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(holder, PortHolder::Rxe(vec!["rxe0".into()]));
        assert!(holder.to_string().contains("rdma link delete rxe0"));
    }
}
