//! RDMA verbs over ordinary UDP sockets: RoCEv2 without a NIC, a kernel module or root.
//!
//! This crate is the safe Rust API of urxe. It offers reliable and unreliable connections,
//! datagrams, one-sided READs and WRITEs, and atomics. The peer may be another urxe process, the
//! Linux kernel's rxe, or a RoCE NIC. C programs use the same implementation through `liburxe.so`.
//!
//! # Object model
//! ```text
//! devices() -> Device -> Context --+-> CompletionQueue -> Completion
//!                                  +-> Events
//!                                  +-> ProtectionDomain
//!
//! ProtectionDomain --+-> MemoryRegion --+-> LocalSlice, LocalWord
//!                    |                  +-> RemoteRegion, for the peer
//!                    +-> MemoryWindow ----> RemoteRegion, for the peer
//!                    +-> BufferPool ------> LocalBuffer
//!                    +-> SharedReceiveQueue, for queue pairs
//!                    +-> PreparedQueuePair -> QueuePair
//!                    +-> DatagramQueuePair -> Destination
//!
//! cm::Listener, cm::Route        -> cm::Connection, which has a QueuePair
//! cm::Service, cm::ServiceRoute  -> cm::ServiceReply, which has a Destination
//! net::RdmaListener              -> net::RdmaStream, with the feature `net`
//! testing::pair()                -> two connected testing::Peers, with the feature `testing`
//! ```
//! An object keeps its parent alive, so objects may be dropped in any order.
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
//! // The two ends exchange their endpoints out of band; here both are in one program.
//! let a = pd.queue_pair(&cq_a, &cq_a).build()?;
//! let b = pd.queue_pair(&cq_b, &cq_b).build()?;
//! let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
//! let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
//! let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
//!
//! // SEND: a message into the peer's posted receive.
//! let memory = pd.register(4096, RemoteAccess::READ | RemoteAccess::ATOMIC)?;
//! b.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
//! a.post_send(SendRequest::send(b"hello"))?;
//! let received = cq_b.wait()?;
//! assert_eq!(received.wr_id, 1);
//! assert_eq!(received.data()?, b"hello");
//! cq_a.wait()?.result?;
//!
//! // RDMA READ: the same bytes again, without a work request at the peer.
//! let copy = pd.register(5, RemoteAccess::empty())?;
//! a.post_send(SendRequest::read(copy.slice(..)?, &memory.remote()))?;
//! assert_eq!(cq_a.wait()?.data()?, b"hello");
//!
//! // An atomic fetch-and-add.
//! let result = pd.register(8, RemoteAccess::empty())?.word(0)?;
//! a.post_send(SendRequest::fetch_add(&result, memory.remote().word(8)?, 5))?;
//! cq_a.wait()?.result?;
//! assert_eq!(memory.word(8)?.load(std::sync::atomic::Ordering::Acquire), 5);
//! # Ok(())
//! # }
//! ```
//!
//! # With an async runtime
//! [`connect`] and [`cm::Listener::accept`] make connections, [`QueuePair::send`] and its siblings
//! are futures of single operations, and [`CompletionQueue`] is a stream of completions. Threads
//! and tasks may use the same objects. [`mod@reactor`] describes how they work with the runtimes:
//! with the feature `tokio`, the feature `async-io`, or an implementation of the program.
//!
//! A future that is dropped leaves its work request to the queue pair, which owns the memory until
//! the completion.
//!
//! # Memory
//! A [`MemoryRegion`] may be accessed by peers, so the program copies bytes in and out. A
//! [`LocalBuffer`] has no remote rights. It dereferences to bytes, moves into a work request and
//! returns in its completion, so nothing is copied. Posting and polling a request of one buffer, of
//! up to two slices or of inline data allocates nothing.
//!
//! # Errors the compiler finds
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
//! Using a connected queue pair after its reset:
//! ```compile_fail,E0382
//! fn reset(qp: urxe::QueuePair) {
//!     let _prepared = qp.reset();
//!     qp.post_send(urxe::SendRequest::send(b"too late"));
//! }
//! ```
//! Using a memory region after it is dropped. Slices of it and work requests on it keep the memory
//! registered on their own:
//! ```compile_fail,E0382
//! fn use_after_drop(region: urxe::MemoryRegion) {
//!     drop(region);
//!     region.slice(..);
//! }
//! ```
//! Taking a reference into registered memory, which a peer may change at any time:
//! ```compile_fail,E0308
//! fn reference(region: &urxe::MemoryRegion) -> &[u8] {
//!     region
//! }
//! ```
//! Receiving or reading into memory that is not registered:
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
//! An atomic whose result or target is not 8 aligned bytes:
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
//! A local address in place of a remote one:
//! ```compile_fail,E0308
//! fn confuse(from: urxe::LocalSlice, to: &urxe::LocalSlice) {
//!     let _ = urxe::SendRequest::write(from, to);
//! }
//! ```
//! Inline data that is dropped before it is posted:
//! ```compile_fail,E0597
//! fn inline(qp: &urxe::QueuePair) {
//!     let request = {
//!         let message = [1, 2, 3];
//!         urxe::SendRequest::send(&message)
//!     };
//!     let _ = qp.post_send(request);
//! }
//! ```
//! Using a buffer while a future has it:
//! ```compile_fail,E0382
//! async fn reuse(qp: &urxe::QueuePair, mut buffer: urxe::LocalBuffer) {
//!     let sending = qp.send(buffer);
//!     buffer[0] = 1;
//!     let _ = sending.await;
//! }
//! ```
//! Resetting or dropping a queue pair while a future uses it:
//! ```compile_fail,E0505
//! async fn reset(qp: urxe::QueuePair, buffer: urxe::LocalBuffer) {
//!     let sending = qp.send(buffer);
//!     let _prepared = qp.reset();
//!     let _ = sending.await;
//! }
//! ```
//! A task with a borrowed queue pair, which may end before the task:
//! ```compile_fail,E0521
//! fn spawn(qp: &urxe::QueuePair, buffer: urxe::LocalBuffer) {
//!     tokio::spawn(async move {
//!         let _ = qp.send(buffer).await;
//!     });
//! }
//! ```
//! A reactor that threads may not share:
//! ```compile_fail,E0277
//! use urxe::reactor::{Readiness, Reactor};
//!
//! #[derive(Debug)]
//! struct OfOneThread(std::rc::Rc<()>);
//! impl Reactor for OfOneThread {
//!     fn watch(&self, _: std::os::fd::OwnedFd) -> std::io::Result<Box<dyn Readiness>> {
//!         Err(std::io::ErrorKind::Unsupported.into())
//!     }
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
//! # Errors at run time
//! The compiler cannot see memory of another protection domain, ranges beyond the end of a region,
//! or full queues. These return an error whose message names the remedy. Each call has an error
//! type with its own reasons to fail. All of them convert to [`Error`], which has a
//! [`kind`](Error::kind) and an [`errno`](Error::errno) and converts to [`std::io::Error`].

mod blocks;
mod buffer;
mod buffer_pool;
pub mod cm;
mod completion;
mod context;
mod cq;
mod device;
mod endpoint;
mod error;
mod events;
mod free_list;
mod mr;
mod mw;
#[cfg(feature = "net")]
pub mod net;
mod outstanding;
mod pd;
mod post_error;
pub mod prelude;
mod qp;
pub mod reactor;
mod registration;
mod slices;
mod srq;
mod sync;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
mod wait;
mod wait_on;
mod work;
mod work_ring;

pub use buffer::LocalBuffer;
pub use buffer_pool::BufferPool;
pub use cm::{connect, connect_blocking};
pub use completion::{Completion, Done, GRH_BYTES, Sender, WorkError, WorkQueue};
pub use context::Context;
pub use cq::{CompletionQueue, CqError};
pub use device::{Device, DeviceError, PortState, device, devices};
pub use endpoint::{ConnectOptions, Endpoint, EndpointError};
pub use error::{Error, ErrorKind, Result};
pub use events::{Event, EventSource, EventType, Events};
pub use mr::{
    LocalSlice, LocalWord, MemoryRegion, MoveError, MoveErrorKind, RangeError, RemoteAccess,
    RemoteRegion, RemoteWord,
};
pub use mw::MemoryWindow;
pub use pd::ProtectionDomain;
pub use qp::{
    BuildError, DatagramAddress, DatagramQueuePair, Destination, Operation, PreparedQueuePair,
    QueuePair, QueuePairBuilder, Transfer, TransferBuffer,
};
pub use slices::SliceList;
pub use srq::{SharedReceiveQueue, SharedReceiveQueueBuilder};
pub use work::{BatchError, PostError, ReceiveRequest, ScatterList, SendData, SendRequest};

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
