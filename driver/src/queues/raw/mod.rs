//! Raw packets: queue pairs that send and receive the Ethernet frames of an interface.
//!
//! Frames are sent and received through a packet socket, which needs the capability `CAP_NET_RAW`.
//! The socket receives copies: the host's network stack receives the same frames. Frames that the
//! host sends are received too, including those of other queue pairs, as between queue pairs of one
//! NIC.

mod flow;
mod rss;
mod socket;
mod wq;

pub use flow::{Action, Flow, FlowCounter, Header, Pattern, Select};
pub use rss::{HashFields, KEY_LEN, MAX_ENTRIES, Spread};
pub use wq::{Wq, WqState};

use crate::memory::regions::regions;
use crate::sync::{Mutex, lock};
use flow::Flows;
use socket::{FrameSocket, Next};
use std::io;
use std::os::fd::BorrowedFd;
use urxe_net::now;
use urxe_proto::host::Transmit;
use urxe_proto::time::Time;

/// The bytes of a frame that the MTU does not count: two addresses, the type, and a VLAN tag.
const HEADER_LEN: usize = 18;

/// The maximum number of frames that one call receives.
const RX_BUDGET: usize = 64;

/// The interface of a raw packet queue pair.
#[derive(Debug)]
pub(crate) struct Frames {
    socket: FrameSocket,
    flows: Mutex<Flows>,
    buffer: Mutex<Box<[u8]>>,
    /// The distribution to work queues; `None` if the queue pair itself receives.
    spread: Option<Spread>,
    max: usize,
}

impl Frames {
    /// Opens the interface with this index and MTU.
    ///
    /// # Errors
    /// `EPERM` without the capability `CAP_NET_RAW`, and other errors of the system calls.
    pub(crate) fn new(interface: u32, mtu: u32, spread: Option<Spread>) -> io::Result<Self> {
        let max = mtu as usize + HEADER_LEN;
        Ok(Frames {
            socket: FrameSocket::new(interface)?,
            flows: Mutex::default(),
            // With space for a VLAN tag to be inserted.
            buffer: Mutex::new(vec![0; max + HEADER_LEN].into()),
            spread,
            max,
        })
    }

    /// Returns the maximum length of a frame in bytes.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the descriptor, which is readable when a frame has arrived.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Adds a flow and returns its number. Frames that it selects are received until it is removed.
    pub(crate) fn add_flow(&self, flow: Flow) -> io::Result<u64> {
        let mut flows = lock(&self.flows);
        if flows.is_empty() {
            self.socket.receive(true)?;
        }
        Ok(flows.add(flow))
    }

    /// Removes a flow.
    pub(crate) fn remove_flow(&self, number: u64) {
        let mut flows = lock(&self.flows);
        flows.remove(number);
        if flows.is_empty()
            && let Err(error) = self.socket.receive(false)
        {
            // The socket continues to receive; its frames are dropped, as no flow selects them.
            tracing::debug!(%error, "a packet socket cannot be bound to no protocol");
        }
    }

    /// Receives frames, and passes those that a flow selects to their work queues or to `deliver`.
    /// Returns whether any frame was received.
    pub(crate) fn receive(&self, mut deliver: impl FnMut(&[u8])) -> bool {
        // A thread that holds the buffer receives all frames.
        let Some(mut buffer) = self.buffer.try_lock() else {
            return false;
        };
        for taken in 0..RX_BUDGET {
            match self.socket.next(&mut buffer) {
                Ok(Next::Frame(frame)) => {
                    let action = lock(&self.flows).classify(frame);
                    match (action, &self.spread) {
                        (Action::Drop, _) => {}
                        (Action::Deliver, None) => deliver(frame),
                        (Action::Deliver, Some(spread)) => {
                            spread.deliver(frame, regions().table());
                        }
                    }
                }
                Ok(Next::Unusable) => {}
                Ok(Next::Nothing) => return taken > 0,
                Err(error) => {
                    // The interface is down, or has been removed.
                    tracing::debug!(%error, "receiving frames failed");
                    return taken > 0;
                }
            }
        }
        true
    }
}

/// A transmitter that sends frames one by one.
pub(crate) struct FrameSink<'a> {
    frames: &'a Frames,
    staged: Vec<u8>,
}

impl<'a> FrameSink<'a> {
    pub(crate) fn new(frames: &'a Frames) -> Self {
        FrameSink {
            frames,
            staged: Vec::new(),
        }
    }
}

impl Transmit for FrameSink<'_> {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        self.staged.clear();
        self.staged.resize(len, 0);
        Some(&mut self.staged)
    }

    /// Sends the staged frame. A frame that the interface does not accept is lost, which Ethernet
    /// permits.
    fn commit(&mut self) {
        if let Err(error) = self.frames.socket.send(&self.staged) {
            tracing::debug!(%error, len = self.staged.len(), "a frame could not be sent");
        }
    }

    fn cancel(&mut self) {}

    fn now(&self) -> Time {
        now()
    }
}
