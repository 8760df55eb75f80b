//! The way to a peer that an address vector names: for connected queue pairs and address handles.

use crate::device::Device;
use crate::engine::{self, Local};
use std::sync::Arc;
use urxe_net::{OpenError, Path, PathOptions};
use urxe_proto::qp::AddressVector;

/// A path, and the local address that it begins at.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) local: Arc<Local>,
    pub(crate) path: Path,
}

/// Why there is no way to a peer.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The address vector has no GID of the peer, which RoCE needs (A17.4): EINVAL.
    #[error(
        "the program gave no GID for the peer, and RoCE has no other address: tell both sides \
         which GID index to use (ibv_rc_pingpong and its like: `-g 0`)"
    )]
    NoPeerGid,
    /// The port has no such GID: EINVAL.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The index asked for.
        index: u8,
    },
    /// The network part cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl RouteError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoPeerGid | Self::NoSuchGid { .. } => libc::EINVAL,
            Self::Open(error) => error.errno(),
        }
    }
}

impl Route {
    /// The way that `av` names. Flows with equal keys leave from the same UDP port.
    pub(crate) fn new(
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
        let local = engine::get().local(address)?;
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
