//! Devices: what there is to open.
#![forbid(unsafe_code)]

use crate::context::Context;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use urxe_driver::device as driver;
use urxe_proto::mtu::Mtu;

pub use urxe_driver::device::PortState;

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel does not tell the interfaces.
    #[error("the network interfaces cannot be listed: {0}")]
    List(#[source] io::Error),
    /// No device has the name.
    #[error("there is no device {name}; there is {}", names(.found))]
    NotFound {
        /// The name asked for.
        name: String,
        /// The names that there are.
        found: Vec<String>,
    },
    /// No descriptor was left for its events.
    #[error(
        "{name} cannot be opened ({source}): close some files, or raise the limit (`ulimit -n`)"
    )]
    Open {
        /// The device.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl DeviceError {
    /// The `errno` that a verbs program would get.
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
        [] => "none: bring an interface with an address up (`urxe devices` tells what is wrong)"
            .into(),
        names => names.join(", "),
    }
}

/// The devices of this host, one for each usable network interface: the one with the default route
/// first, the loopback last. (`ibv_get_device_list`.)
///
/// # Errors
/// [`DeviceError::List`].
pub fn devices() -> Result<Vec<Device>, DeviceError> {
    let found = driver::devices().map_err(DeviceError::List)?;
    Ok(found.into_iter().map(Device).collect())
}

/// The device of this name, for instance `urxe_lo`.
///
/// # Errors
/// [`DeviceError::List`] and [`DeviceError::NotFound`].
pub fn device(name: &str) -> Result<Device, DeviceError> {
    let all = devices()?;
    match all.iter().find(|device| device.name() == name) {
        Some(device) => Ok(device.clone()),
        None => Err(DeviceError::NotFound {
            name: name.to_owned(),
            found: all.iter().map(|device| device.name().to_owned()).collect(),
        }),
    }
}

/// A device: a network interface as verbs see it. Listing devices binds nothing. (`ibv_device`.)
#[derive(Clone)]
pub struct Device(pub(crate) Arc<driver::Device>);

impl Device {
    /// Opens it. (`ibv_open_device`.)
    ///
    /// # Errors
    /// [`DeviceError::Open`].
    pub fn open(&self) -> Result<Context, DeviceError> {
        Context::open(self)
    }

    /// Its name: `urxe_` and the interface's. (`ibv_get_device_name`.)
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        self.0.interface()
    }

    /// Whether it is the loopback interface, which reaches this host alone.
    pub fn is_loopback(&self) -> bool {
        self.0.is_loopback()
    }

    /// The node GUID in network order. It stays the same as long as the interface's MAC address.
    /// (`ibv_get_device_guid`.)
    pub fn guid(&self) -> [u8; 8] {
        self.0.guid()
    }

    /// Whether the port carries packets now. (`ibv_query_port`.)
    pub fn port_state(&self) -> PortState {
        self.0.port_state()
    }

    /// The largest path MTU whose packets fit the interface now. (`ibv_query_port`.)
    pub fn active_mtu(&self) -> Mtu {
        self.0.active_mtu()
    }

    /// The GID table: indices and the addresses there. (`ibv_query_gid_table`.)
    pub fn gids(&self) -> Vec<(usize, IpAddr)> {
        self.0.gids()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}
