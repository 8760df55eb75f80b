//! Devices: the network interfaces that can be opened.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use urxe_driver::device as driver;
use urxe_proto::mtu::Mtu;

pub use urxe_driver::device::PortState;

/// A device cannot be found or opened.
///
/// ```
/// use urxe::{DeviceError, ErrorKind};
///
/// # fn main() -> urxe::Result<()> {
/// let error = urxe::device("urxe_eth9").unwrap_err();
/// assert!(matches!(error, DeviceError::NotFound { .. }));
/// assert_eq!(urxe::Error::from(error).kind(), ErrorKind::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel's list of network interfaces cannot be read.
    #[error("the devices cannot be listed: {0}")]
    List(#[source] io::Error),
    /// No device has this name.
    #[error("there is no device {name}; the devices are {}", names(.found))]
    NotFound {
        /// The requested name.
        name: String,
        /// The names of all devices.
        found: Vec<String>,
    },
    /// No file descriptor is left for the device's events.
    #[error(
        "{name} cannot be opened ({source}): close some files, or raise the limit (`ulimit -n`)"
    )]
    Open {
        /// The name of the device.
        name: String,
        /// The error of the system call.
        source: io::Error,
    },
}

impl DeviceError {
    /// The `errno` that a verbs program gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let error = urxe::device("no_such_device").unwrap_err();
    /// assert_eq!(error.errno(), libc::ENODEV);
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::List(source) | Self::Open { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::NotFound { .. } => libc::ENODEV,
        }
    }
}

fn names(found: &[String]) -> String {
    match found {
        [] => "none: bring an interface with an address up (`urxe devices` shows what is missing)"
            .into(),
        names => names.join(", "),
    }
}

/// Returns the devices of this host, one for each usable network interface.
/// (`ibv_get_device_list`.)
///
/// The interface of the default route comes first. The loopback interface has a device in this list
/// only if no other interface has an active one; [`device`] returns it by its name.
///
/// ```
/// # fn main() -> urxe::Result<()> {
/// for device in urxe::devices()? {
///     println!("{} on {}: {:?}", device.name(), device.interface(), device.port_state());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`DeviceError::List`].
pub fn devices() -> Result<Vec<Device>, DeviceError> {
    let found = driver::devices().map_err(DeviceError::List)?;
    Ok(found.into_iter().map(Device).collect())
}

/// Returns the device of this name, for instance `urxe_lo`.
///
/// ```
/// # use urxe::prelude::*;
/// let device = urxe::device("urxe_lo")?;
/// assert_eq!(device.interface(), "lo");
/// # Ok::<(), urxe::Error>(())
/// ```
///
/// # Errors
/// [`DeviceError::List`] and [`DeviceError::NotFound`].
pub fn device(name: &str) -> Result<Device, DeviceError> {
    let all = driver::devices_by_name().map_err(DeviceError::List)?;
    match all.iter().find(|device| device.name() == name) {
        Some(device) => Ok(Device(Arc::clone(device))),
        None => Err(DeviceError::NotFound {
            name: name.to_owned(),
            found: all.iter().map(|device| device.name().to_owned()).collect(),
        }),
    }
}

/// A device: a network interface that is used as an RDMA device. (`ibv_device`.)
///
/// Listing devices opens no socket.
///
/// ```
/// # fn main() -> urxe::Result<()> {
/// let device = urxe::device("urxe_lo")?;
/// assert_eq!((device.name(), device.interface()), ("urxe_lo", "lo"));
/// assert!(device.is_loopback());
/// for (index, address) in device.gids() {
///     println!("GID {index} is {address}; path MTU {:?}", device.active_mtu());
/// }
/// let context = device.open()?;
/// assert_eq!(context.device().guid(), device.guid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device(pub(crate) Arc<driver::Device>);

impl Device {
    /// The name of the device: `urxe_` and the interface's name, or the one that `URXE_DEVICES`
    /// gives it. (`ibv_get_device_name`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// for device in urxe::devices()? {
    ///     println!("{}", device.name());
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The name of the interface.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert_eq!(urxe::device("urxe_lo")?.interface(), "lo");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn interface(&self) -> &str {
        self.0.interface()
    }

    /// Returns whether this is the loopback interface, which reaches only this host.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert!(urxe::device("urxe_lo")?.is_loopback());
    /// // A device that reaches other hosts:
    /// let device = urxe::devices()?.into_iter().find(|device| !device.is_loopback());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn is_loopback(&self) -> bool {
        self.0.is_loopback()
    }

    /// The node GUID, in network order. (`ibv_get_device_guid`.)
    ///
    /// It is derived from the interface's MAC address and stays the same as long as that does.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let guid = urxe::device("urxe_lo")?.guid();
    /// println!("{:016x}", u64::from_be_bytes(guid));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn guid(&self) -> [u8; 8] {
        self.0.guid()
    }

    /// The current state of the port: whether it can send and receive. (`ibv_query_port`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::PortState;
    ///
    /// let device = urxe::device("urxe_lo")?;
    /// if device.port_state() == PortState::Active {
    ///     println!("{} can send and receive", device.name());
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn port_state(&self) -> PortState {
        self.0.port_state()
    }

    /// The largest path MTU that fits the interface's current MTU. (`ibv_query_port`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let mtu = urxe::device("urxe_lo")?.active_mtu();
    /// println!("packets of up to {} bytes of data", mtu.bytes());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn active_mtu(&self) -> Mtu {
        self.0.active_mtu()
    }

    /// The GID table: indices and their IP addresses. (`ibv_query_gid_table`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// for (index, address) in urxe::device("urxe_lo")?.gids() {
    ///     println!("GID {index}: {address}");
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn gids(&self) -> Vec<(usize, IpAddr)> {
        self.0.gids()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}
