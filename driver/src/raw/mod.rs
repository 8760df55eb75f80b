//! Raw packets: the frames of a queue pair, from and to its interface.
//!
//! They go through a packet socket, which takes the capability `CAP_NET_RAW`. It sees copies: what a queue
//! pair receives, the host's own network stack receives as well. Frames that the host sends are received
//! too, those of other queue pairs among them, as by a NIC that has them both.

mod flow;
mod rss;
mod socket;
mod wq;

pub use flow::{Action, Flow, FlowCounter, Header, Pattern, Select};
pub use rss::{HashFields, KEY_LEN, MAX_ENTRIES, Spread};
pub use wq::{Wq, WqState};

use crate::event_queue::lock;
use crate::regions::regions;
use flow::Flows;
use socket::{FrameSocket, Next};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use urxe_net::now;
use urxe_proto::host::Transmit;
use urxe_proto::time::Time;

/// The bytes of a frame beside what the MTU counts: addresses, type, and the tag of a VLAN.
const AROUND: usize = 18;

/// How many frames are taken before others have their turn.
const TURN: usize = 64;

/// What a raw packet queue pair has of its interface.
#[derive(Debug)]
pub(crate) struct Frames {
    socket: FrameSocket,
    flows: Mutex<Flows>,
    buffer: Mutex<Box<[u8]>>,
    /// Where frames go, if not to the queue pair itself.
    spread: Option<Spread>,
    max: usize,
}

impl Frames {
    /// Those of the interface with this index and MTU.
    ///
    /// # Errors
    /// `EPERM` without the capability `CAP_NET_RAW`.
    pub(crate) fn new(interface: u32, mtu: u32, spread: Option<Spread>) -> io::Result<Self> {
        let max = mtu as usize + AROUND;
        Ok(Frames {
            socket: FrameSocket::new(interface)?,
            flows: Mutex::default(),
            // With room for a tag to be put back.
            buffer: Mutex::new(vec![0; max + AROUND].into()),
            spread,
            max,
        })
    }

    /// The most bytes of a frame.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// For waiting until a frame has come.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Receives the frames that `flow` says, until it is removed by the number that this returns.
    pub(crate) fn add_flow(&self, flow: Flow) -> io::Result<u64> {
        let mut flows = lock(&self.flows);
        if flows.is_empty() {
            self.socket.receive(true)?;
        }
        Ok(flows.add(flow))
    }

    /// Ends a flow.
    pub(crate) fn remove_flow(&self, number: u64) {
        let mut flows = lock(&self.flows);
        flows.remove(number);
        if flows.is_empty()
            && let Err(error) = self.socket.receive(false)
        {
            // Then what it goes on to receive is dropped here.
            tracing::debug!(%error, "a packet socket cannot be bound to no protocol");
        }
    }

    /// Hands the frames that have come, and that a flow wants, to the work queues that they are
    /// spread over, or to `deliver`. True when any had come.
    pub(crate) fn receive(&self, mut deliver: impl FnMut(&[u8])) -> bool {
        // Whoever else receives hands over all that there is.
        let Ok(mut buffer) = self.buffer.try_lock() else {
            return false;
        };
        for taken in 0..TURN {
            match self.socket.next(&mut buffer) {
                Ok(Next::Frame(frame)) => {
                    let action = lock(&self.flows).judge(frame);
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
                    // The interface went down, or away.
                    tracing::debug!(%error, "receiving frames failed");
                    return taken > 0;
                }
            }
        }
        true
    }
}

/// Sends frames one by one.
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

    /// What the interface does not take is lost, as Ethernet may lose frames.
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
