//! Raw packet queue pairs: sending and receiving the frames of an interface.

use super::machine::Machine;
use super::{CreateError, Inner, Qp, QpInit, ReceivesFrom};
use crate::device::Device;
use crate::engine;
use crate::event_queue::lock;
use crate::raw::{Flow, FrameSink, Frames};
use crate::regions::{RegionTable, regions};
use std::io;
use std::sync::Arc;
use urxe_net::now;
use urxe_proto::qp::QpType;

/// Opens the packet socket of the device's interface; `None` for other services.
pub(super) fn open(device: &Device, init: &QpInit) -> Result<Option<Frames>, CreateError> {
    if init.service != QpType::RawPacket {
        return Ok(None);
    }
    let (interface, mtu) = (device.interface_index(), device.interface_mtu());
    let spread = match &init.receives {
        ReceivesFrom::Spread(spread) => Some(spread.clone()),
        _ => None,
    };
    let frames = Frames::new(interface, mtu, spread);
    let failed = |source| CreateError::Frames {
        device: device.name().to_owned(),
        source,
    };
    frames.map(Some).map_err(failed)
}

impl Qp {
    /// Registers the packet socket with the engine, which receives from it.
    pub(super) fn watch_frames(self: &Arc<Self>) -> Result<(), CreateError> {
        let Some(frames) = &self.frames else {
            return Ok(());
        };
        engine::get()
            .add_raw(self, frames.fd())
            .inspect_err(|_| engine::get().remove_qp(self.qpn))
            .map_err(|source| CreateError::Frames {
                device: self.device.name().to_owned(),
                source,
            })
    }

    /// Removes the packet socket from the engine. After the return no thread receives from it.
    pub(super) fn unwatch_frames(&self) {
        if self.frames.is_some() {
            engine::get().remove_raw(self);
        }
    }

    /// Receives the frames that match `flow`, until [`Qp::remove_flow`] is called with the returned
    /// number.
    ///
    /// # Errors
    /// `Unsupported` for a queue pair of another service; otherwise the system's error for the
    /// interface.
    pub fn add_flow(&self, flow: Flow) -> io::Result<u64> {
        match &self.frames {
            Some(frames) => frames.add_flow(flow),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Removes the flow with this number.
    pub fn remove_flow(&self, number: u64) {
        if let Some(frames) = &self.frames {
            frames.remove_flow(number);
        }
    }

    /// Receives the frames that have arrived. Returns whether there were any.
    pub(crate) fn receive_frames(&self) -> bool {
        let Some(frames) = &self.frames else {
            return false;
        };
        frames.receive(|frame| {
            let held = regions();
            let mut inner = lock(&self.inner);
            if let Machine::Raw(raw) = &mut inner.machine {
                raw.handle_frame(now(), frame, &mut self.host(held.table()));
            }
            self.settle(&mut inner, held.table());
        })
    }

    pub(super) fn transmit_frames(
        &self,
        inner: &mut Inner,
        frames: &Frames,
        regions: &RegionTable,
    ) {
        let mut sink = FrameSink::new(frames);
        // A frame sink is never full, so one call sends everything.
        inner
            .machine
            .poll_transmit(now(), &mut self.host(regions), &mut sink);
        self.settle(inner, regions);
    }
}
