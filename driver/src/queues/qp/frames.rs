//! Raw packet queue pairs: sending and receiving the frames of an interface.

use super::pair::{Inner, Qp};
use super::transport::Transport;
use crate::memory::regions::{RegionTable, regions};
use crate::queues::raw::{Flow, FrameSink, Frames};
use std::io;
use urxe_net::now;

impl Qp {
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

    /// Receives the frames that have arrived. Returns whether there were any. The service has no
    /// timer and sends when a program posts, so nothing is to be done afterwards.
    pub(crate) fn receive_frames(&self) -> bool {
        let Some(frames) = &self.frames else {
            return false;
        };
        frames.receive(|frame| {
            let held = regions();
            let mut inner = self.lock();
            if let Transport::Raw(raw) = &mut inner.transport {
                raw.handle_frame(now(), frame, &mut self.host(held.table()));
            }
            self.publish(&mut inner, held.table());
        })
    }

    #[cold]
    pub(super) fn transmit_frames(
        &self,
        inner: &mut Inner,
        frames: &Frames,
        regions: &RegionTable,
    ) {
        let mut sink = FrameSink::new(frames);
        // A frame sink is never full, so one call sends everything.
        inner
            .transport
            .poll_transmit(now(), &mut self.host(regions), &mut sink);
        self.publish(inner, regions);
    }
}
