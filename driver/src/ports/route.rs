//! Routes: how packets reach the peer that an address vector names. Connected queue pairs and
//! address handles have one.

use super::open::{LocalPort, Ports};
use crate::device::Device;
use std::sync::Arc;
use urxe_net::{OpenError, Path, PathOptions};
use urxe_proto::qp::AddressVector;

/// A network path, and the local address that it starts at.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) local: Arc<LocalPort>,
    pub(crate) path: Path,
}

/// An error in the resolution of an address vector.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The address vector has no GID of the peer, which RoCE requires (A17.4): EINVAL.
    #[error(
        "the program gave no GID for the peer, and RoCE has no other address: tell both sides \
         which GID index to use (ibv_rc_pingpong and its like: `-g 0`)"
    )]
    NoPeerGid,
    /// The port has no GID with this index: EINVAL.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The requested index.
        index: u8,
    },
    /// The device's sockets cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl RouteError {
    /// The errno that verbs return.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoPeerGid | Self::NoSuchGid { .. } => libc::EINVAL,
            Self::Open(error) => error.errno(),
        }
    }
}

impl Route {
    /// Resolves `av` to a route. Opens the sockets of the local address. Flows with equal keys have
    /// the same UDP source port.
    pub(crate) fn resolve(
        ports: &Ports,
        device: &Device,
        av: &AddressVector,
        flow_key: u32,
    ) -> Result<Self, RouteError> {
        if !av.is_global || av.dgid.is_zero() {
            return Err(RouteError::NoPeerGid);
        }
        let address = device
            .source(av.sgid_index)
            .ok_or_else(|| RouteError::NoSuchGid {
                device: device.name().to_owned(),
                index: av.sgid_index,
            })?;
        let local = ports.open(address)?;
        let options = PathOptions {
            flow_key,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
            interface: device.interface_index(),
        };
        let path = local.endpoint().path(av.dgid.to_ip(), options)?;
        Ok(Route { local, path })
    }
}
