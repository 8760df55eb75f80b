//! Connections by IP address and port, made by the connection manager protocol.
//!
//! This is the counterpart of librdmacm, and interoperates with the connection managers of other
//! stacks.
//!
//! ```text
//! Listener -> Request ----- accept(queue pair) ----> Connection
//! Route ------------------- connect(queue pair) ---> Connection
//! Service -> ServiceRequest accept(queue pair)
//! ServiceRoute ------------ request ---------------> ServiceReply, which has a Destination
//! ```
//! ```
//! use std::thread;
//! use urxe::cm::{Listener, Options, Route};
//! use urxe::{ReceiveRequest, RemoteAccess, SendRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let port = listener.local_addr();
//!
//! let client = thread::spawn(move || -> Result<(), urxe::cm::Error> {
//!     let route = Route::resolve(port)?;
//!     let context = route.device().open()?;
//!     let cq = context.completion_queue()?;
//!     let qp = context.pd().queue_pair(&cq, &cq).build()?;
//!     let connection = route.connect(qp, &Options::with_private_data(b"hello"))?;
//!     assert!(connection.private_data().starts_with(b"welcome"));
//!     connection.queue_pair().post_send(SendRequest::send(b"a message"))?;
//!     cq.wait()?;
//!     connection.disconnect()
//! });
//!
//! let request = listener.next()?;
//! assert!(request.private_data().starts_with(b"hello"));
//! let context = request.device().open()?;
//! let (pd, cq) = (context.pd(), context.completion_queue()?);
//! let qp = pd.queue_pair(&cq, &cq).build()?;
//! let memory = pd.register(64, RemoteAccess::empty())?;
//! qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
//! let connection = request.accept(qp, &Options::with_private_data(b"welcome"))?;
//! assert_eq!(cq.wait()?.data()?, b"a message");
//! connection.disconnect()?;
//! client.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Without blocking
//! [`Listener::try_next`], [`Route::start_connecting`], [`Request::start_accepting`] and
//! [`Connection::try_next`] return at once. [`Listener`], [`Pending`] and [`Connection`] have
//! descriptors that are readable when progress is possible. Resolving a route does not wait for the
//! network.
//!
//! # With an async runtime
//! [`connect`], [`Listener::accept`], [`Listener::next_request`], [`Connection::next_event`] and
//! [`Pending`] are futures. See [`reactor`](crate::reactor) for the runtimes.
//!
//! # Errors the compiler finds
//! Replying to a request twice:
//! ```compile_fail,E0382
//! fn twice(request: urxe::cm::Request, qp: urxe::PreparedQueuePair) {
//!     let _ = request.reject(b"no");
//!     let _ = request.accept(qp, &urxe::cm::Options::default());
//! }
//! ```
#![forbid(unsafe_code)]

mod address;
mod connection;
mod error;
mod id;
mod listener;
mod membership;
mod pending;
mod route;
mod service;

pub use connection::{Connection, Event, Options};
pub use error::Error;
pub use listener::{Listener, Request};
pub use membership::Membership;
pub use pending::Pending;
pub use route::{Route, connect, connect_blocking};
pub use service::{QKEY, Service, ServiceReply, ServiceRequest, ServiceRoute};
pub use urxe_driver::cm::CmError;
pub use urxe_proto::cm::wire::{RejectReason, SidrStatus};
