//! Creating queue pairs.

use crate::counters;
use crate::device::Device;
use crate::events::AsyncEvents;
use crate::path;
use crate::pd::Pd;
use crate::queues::qp::error::CreateError;
use crate::queues::qp::init::{QpInit, ReceivesFrom};
use crate::queues::qp::receives::Source;
use crate::queues::qp::transport::Transport;
use crate::queues::qp::{Inner, Owner, Owners, Qp};
use crate::queues::raw::Frames;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use urxe_proto::qp::{QpState, QpType};
use urxe_proto::queue::NoMemory;

impl Qp {
    /// Creates a queue pair in RESET (11.2.4.1).
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create(
        device: &Arc<Device>,
        events: &Arc<AsyncEvents>,
        pd: &Arc<Pd>,
        init: QpInit,
    ) -> Result<Arc<Qp>, CreateError> {
        if !init.is_possible() {
            return Err(CreateError::Queues(init.service));
        }
        let cap = init.actual_cap();
        if !cap.is_possible() {
            return Err(CreateError::Capacity);
        }
        let mut frames = open_frames(device, &init)?;
        let engine = path::get();
        let resources = engine.qp_resources()?;
        let make = |qpn| -> Result<Arc<Qp>, NoMemory> {
            let frames = frames.take();
            let max_frame = frames.as_ref().map_or(0, Frames::max);
            let mtu = device.active_mtu();
            let transport = Transport::new(qpn, &init, cap, mtu, max_frame, &resources)?;
            let creator = Owner::creator(qpn, events);
            Ok(Arc::new(Qp {
                qpn,
                service: init.service,
                cap,
                pd: Arc::clone(pd),
                device: Arc::clone(device),
                counters: counters::of_device(device.name()),
                send_cq: init.send_cq.clone(),
                signal_all: init.signal_all,
                block_own_multicast: init.block_own_multicast,
                owners: Owners::new(&creator),
                creator,
                receives: Source::new(&init)?,
                batches: Arc::clone(&resources.batches),
                inner: Mutex::new(Inner::new(transport)),
                groups: Mutex::default(),
                frames,
                state: AtomicU32::new(QpState::Reset as u32),
                faults: Mutex::default(),
            }))
        };
        let qp = engine
            .add_qp(&init.affinities(), make)?
            .ok_or(CreateError::NoNumber)??;
        qp.watch_frames()?;
        Ok(qp)
    }

    /// Registers the packet socket with the engine, which receives from it.
    fn watch_frames(self: &Arc<Self>) -> Result<(), CreateError> {
        let Some(frames) = &self.frames else {
            return Ok(());
        };
        let engine = path::get();
        engine
            .add_raw(self, frames.fd())
            .inspect_err(|_| engine.remove_qp(self.qpn))
            .map_err(|source| CreateError::Frames {
                device: self.device.name().to_owned(),
                source,
            })
    }
}

/// Opens the packet socket of the device's interface; `None` for other services.
fn open_frames(device: &Device, init: &QpInit) -> Result<Option<Frames>, CreateError> {
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
