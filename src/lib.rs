//! urxe: verbs programs without a NIC, a kernel module or root.
//!
//! This is RDMA for Rust programs: connections, reliable or not, and datagrams over RoCEv2, by ordinary
//! UDP sockets. The
//! same objects serve C programs through [`abi`].
//!
//! # What is what
//! ```text
//! devices() -> Device -> Context --+-> CompletionQueue -> Completion
//!                                  +-> Events
//!                                  +-> ProtectionDomain --+-> MemoryRegion --+-> LocalSlice, LocalWord
//!                                                         |                  +-> RemoteRegion, for the peer
//!                                                         +-> MemoryWindow ----> RemoteRegion, for the peer
//!                                                         +-> SharedReceiveQueue, for queue pairs
//!                                                         +-> PreparedQueuePair -> QueuePair
//!                                                         +-> DatagramQueuePair -> Destination
//! cm::Listener, cm::Route -> cm::Connection, which has a QueuePair
//! cm::Service, cm::ServiceRoute -> cm::Found, which has a Destination
//! ```
//! A thing keeps alive what it was made from, so they may be dropped in any order.
//!
//! # Two queue pairs in one process
//! ```
//! use urxe::{ConnectOptions, ReceiveRequest, RemoteAccess, SendRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = urxe::device("urxe_lo")?.open()?;
//! let pd = context.pd();
//! let (cq_a, cq_b) = (context.completion_queue()?, context.completion_queue()?);
//!
//! // Each end tells the other its endpoint, by whatever means; here there is one program only.
//! let a = pd.queue_pair(&cq_a, &cq_a).build()?;
//! let b = pd.queue_pair(&cq_b, &cq_b).build()?;
//! let (at_a, at_b) = (a.endpoint(), b.endpoint());
//! let a = a.connect(&at_b, &ConnectOptions::default())?;
//! let b = b.connect(&at_a, &ConnectOptions::default())?;
//!
//! // A message.
//! let memory = pd.register(4096, RemoteAccess::READ | RemoteAccess::ATOMIC)?;
//! b.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
//! a.post_send(SendRequest::send(b"hello"))?;
//! let received = cq_b.wait()?;
//! assert_eq!(received.wr_id, 1);
//! assert_eq!(received.data()?, b"hello");
//! cq_a.wait()?.result?;
//!
//! // The same bytes once more, without the peer's doing anything.
//! let copy = pd.register(5, RemoteAccess::empty())?;
//! a.post_send(SendRequest::read(copy.slice(..)?, &memory.remote()))?;
//! assert_eq!(cq_a.wait()?.data()?, b"hello");
//!
//! // An atomic.
//! let result = pd.register(8, RemoteAccess::empty())?.word(0)?;
//! a.post_send(SendRequest::fetch_add(&result, memory.remote().word(8)?, 5))?;
//! cq_a.wait()?.result?;
//! assert_eq!(memory.word(8)?.load(std::sync::atomic::Ordering::Acquire), 5);
//! # Ok(())
//! # }
//! ```
//!
//! # What does not compile
//! Sending before the queue pair is connected:
//! ```compile_fail,E0599
//! fn send(qp: &urxe::PreparedQueuePair) {
//!     qp.post_send(urxe::SendRequest::send(b"too early"));
//! }
//! ```
//! Connecting twice, or using the queue pair as unconnected afterwards:
//! ```compile_fail,E0382
//! fn connect(qp: urxe::PreparedQueuePair, a: urxe::Endpoint, b: urxe::Endpoint) {
//!     let options = urxe::ConnectOptions::default();
//!     let _to_a = qp.connect(&a, &options);
//!     let _to_b = qp.connect(&b, &options);
//! }
//! ```
//! Using a connected queue pair after it was reset:
//! ```compile_fail,E0382
//! fn reset(qp: urxe::QueuePair) {
//!     let _prepared = qp.reset();
//!     qp.post_send(urxe::SendRequest::send(b"too late"));
//! }
//! ```
//! Using a memory region after it is gone (pieces of it and work requests keep their own hold):
//! ```compile_fail,E0382
//! fn use_after_drop(region: urxe::MemoryRegion) {
//!     drop(region);
//!     region.slice(..);
//! }
//! ```
//! A reference into registered memory, which a peer may change at any time:
//! ```compile_fail,E0308
//! fn reference(region: &urxe::MemoryRegion) -> &[u8] {
//!     region
//! }
//! ```
//! Receiving, or reading, into memory that is not registered:
//! ```compile_fail,E0277
//! fn receive(qp: &urxe::QueuePair, buffer: &mut [u8]) {
//!     qp.post_receive(urxe::ReceiveRequest::into(buffer));
//! }
//! ```
//! ```compile_fail,E0277
//! fn read(qp: &urxe::QueuePair, remote: &urxe::RemoteRegion, buffer: &mut [u8]) {
//!     qp.post_send(urxe::SendRequest::read(buffer, remote));
//! }
//! ```
//! An atomic on anything but 8 aligned bytes, here or there:
//! ```compile_fail,E0308
//! fn result(slice: &urxe::LocalSlice, word: urxe::RemoteWord) {
//!     let _ = urxe::SendRequest::fetch_add(slice, word, 1);
//! }
//! ```
//! ```compile_fail,E0308
//! fn target(result: &urxe::LocalWord, remote: urxe::RemoteRegion) {
//!     let _ = urxe::SendRequest::fetch_add(result, remote, 1);
//! }
//! ```
//! A local address where a remote one belongs:
//! ```compile_fail,E0308
//! fn confuse(from: urxe::LocalSlice, to: &urxe::LocalSlice) {
//!     let _ = urxe::SendRequest::write(from, to);
//! }
//! ```
//! Inline data that is gone before it is posted:
//! ```compile_fail,E0597
//! fn inline(qp: &urxe::QueuePair) {
//!     let request = {
//!         let message = [1, 2, 3];
//!         urxe::SendRequest::send(&message)
//!     };
//!     let _ = qp.post_send(request);
//! }
//! ```
//! Posting one work request twice:
//! ```compile_fail,E0382
//! fn twice(qp: &urxe::QueuePair, request: urxe::ReceiveRequest) {
//!     let _ = qp.post_receive(request);
//!     let _ = qp.post_receive(request);
//! }
//! ```
//!
//! What the compiler cannot see is an error when it is tried, with a message that says what to do:
//! memory of another protection domain, ranges beyond a region's end, full queues.

pub mod cm;
mod completion;
mod context;
mod cq;
mod device;
mod endpoint;
mod events;
mod mr;
mod mw;
mod outstanding;
mod pd;
mod qp;
mod srq;
mod wait;
mod work;

pub use completion::{Completion, Done, GRH_BYTES, Sender, WorkError, WorkQueue};
pub use context::Context;
pub use cq::{CompletionQueue, CqError};
pub use device::{Device, DeviceError, PortState, device, devices};
pub use endpoint::{ConnectOptions, Endpoint, EndpointError};
pub use events::{Event, EventType, Events, Subject};
pub use mr::{
    LocalSlice, LocalWord, MemoryRegion, MoveError, MoveRefusal, RangeError, RemoteAccess,
    RemoteRegion, RemoteWord,
};
pub use mw::MemoryWindow;
pub use pd::ProtectionDomain;
pub use qp::{
    BuildError, DatagramAddress, DatagramQueuePair, Destination, PreparedQueuePair, QueuePair,
    QueuePairBuilder,
};
pub use srq::{SharedReceiveQueue, SharedReceiveQueueBuilder};
pub use work::{BatchError, Data, PostError, ReceiveRequest, Room, SendRequest};

pub use urxe_driver::mw::WindowType;
pub use urxe_driver::owned::OwnedError as RegisterError;
pub use urxe_driver::qp::{CreateError, ModifyError, MulticastError};
pub use urxe_driver::route::RouteError;
pub use urxe_driver::srq::SrqError;
pub use urxe_proto::ids::{Gid, QKey, Qpn, RKey};
pub use urxe_proto::mtu::Mtu;
pub use urxe_proto::psn::Psn;
pub use urxe_proto::qp::{QpAttr, QpState};
pub use urxe_proto::rc::Counters;
pub use urxe_proto::work::{WcOpcode, WcStatus};
