//! Readiness of descriptors, for futures: the interface of an async runtime that this crate needs.
//!
//! The futures of this crate work with every runtime. They need to know when a descriptor is
//! readable, and nothing else: no timer, no thread and no task of their own. With the feature
//! `tokio` they use the tokio runtime in whose context they are first polled. With the feature
//! `async-io` they use async-io, the reactor of smol and async-std, wherever no tokio runtime is
//! current. For another runtime, implement [`Reactor`] and give it to the objects that are awaited,
//! for instance with [`CompletionQueue::use_reactor`](crate::CompletionQueue::use_reactor).
//!
//! An object keeps the reactor that it was first awaited with.
//!
//! ```
//! use urxe::prelude::*;
//! use urxe::reactor::AsyncIo;
//!
//! # async_io::block_on(async {
//! let (a, b) = urxe::testing::pair()?;
//! // Without this call the queue uses async-io, too, as this is no task of tokio.
//! b.cq().use_reactor(AsyncIo);
//! b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
//! a.post_send(SendRequest::send(b"hello"))?;
//! assert_eq!(b.cq().next().await?.data()?, b"hello");
//! # Ok::<(), urxe::Error>(())
//! # }).unwrap();
//! ```
#![forbid(unsafe_code)]

use crate::wait::lock;
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// The part of an async runtime that reports when descriptors are readable.
///
/// ```
/// # use urxe::prelude::*;
/// use rustix::event::{PollFd, PollFlags, Timespec, poll};
/// use std::io;
/// use std::os::fd::OwnedFd;
/// use std::task::{Context, Poll};
/// use urxe::reactor::{Readiness, Reactor};
///
/// # async_io::block_on(async {
/// /// A reactor that wakes the task at once, which then checks the descriptor again.
/// #[derive(Debug)]
/// struct Spinning;
/// #[derive(Debug)]
/// struct Watched(OwnedFd);
/// impl Reactor for Spinning {
///     fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
///         Ok(Box::new(Watched(fd)))
///     }
/// }
/// impl Readiness for Watched {
///     fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
///         let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
///         if poll(&mut fds, Some(&Timespec::default()))? > 0 {
///             return Poll::Ready(Ok(()));
///         }
///         context.waker().wake_by_ref();
///         Poll::Pending
///     }
/// }
/// let (a, b) = urxe::testing::pair()?;
/// b.cq().use_reactor(Spinning);
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// assert_eq!(b.cq().next().await?.data()?, b"hello");
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
pub trait Reactor: Send + Sync + Debug {
    /// Starts to watch a descriptor until the result is dropped.
    ///
    /// The descriptor is a duplicate, which the result owns.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::future::poll_fn;
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixStream;
    /// use urxe::reactor::{AsyncIo, Reactor};
    ///
    /// # async_io::block_on(async {
    /// let (here, there) = UnixStream::pair()?;
    /// let readiness = AsyncIo.watch(OwnedFd::from(here))?;
    /// drop(there);
    /// poll_fn(|context| readiness.poll_readable(context)).await?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the system call that registers the descriptor.
    fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>>;
}

/// A descriptor that a [`Reactor`] watches.
///
/// ```
/// # use urxe::prelude::*;
/// use std::future::poll_fn;
/// use std::io::Write;
/// use std::os::fd::OwnedFd;
/// use std::os::unix::net::UnixStream;
/// use urxe::reactor::{AsyncIo, Reactor, Readiness};
///
/// # async_io::block_on(async {
/// let (here, mut there) = UnixStream::pair()?;
/// let readiness: Box<dyn Readiness> = AsyncIo.watch(OwnedFd::from(here))?;
/// there.write_all(b"!")?;
/// poll_fn(|context| readiness.poll_readable(context)).await?;
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
pub trait Readiness: Send + Sync + Debug {
    /// Returns `Ready` once or more often each time that the descriptor becomes readable.
    ///
    /// With `Pending`, the waker of `context` is woken the next time. Only the waker of the latest
    /// call has to be woken. The caller takes events until there are none before it calls again, so
    /// both edge-triggered and level-triggered reactors fit.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixStream;
    /// use std::task::{Context, Waker};
    /// use urxe::reactor::{AsyncIo, Reactor};
    ///
    /// let (here, there) = UnixStream::pair()?;
    /// let readiness = AsyncIo.watch(OwnedFd::from(here))?;
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(readiness.poll_readable(&mut context).is_pending());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the runtime, for instance because it has shut down.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

#[cfg(feature = "tokio")]
mod tokio_reactor {
    use super::{Reactor, Readiness};
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll, ready};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// The reactor of a tokio runtime, which must have I/O enabled.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::Tokio;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    /// # runtime.block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// // Without this call, the queue uses the runtime in which a task first awaits it.
    /// b.cq().use_reactor(Tokio::current().expect("this is a task of tokio"));
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().next().await?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    #[derive(Clone, Debug)]
    pub struct Tokio(tokio::runtime::Handle);

    impl Tokio {
        /// The runtime of the current task or thread; `None` outside of one.
        ///
        /// ```
        /// # use urxe::prelude::*;
        /// use urxe::reactor::Tokio;
        ///
        /// # let mut runtime = tokio::runtime::Builder::new_current_thread();
        /// # let runtime = runtime.enable_all().build().unwrap();
        /// # runtime.block_on(async {
        /// assert!(Tokio::current().is_some());
        /// assert!(std::thread::spawn(|| Tokio::current().is_none()).join().unwrap());
        /// # Ok::<(), urxe::Error>(())
        /// # }).unwrap();
        /// ```
        pub fn current() -> Option<Tokio> {
            tokio::runtime::Handle::try_current().ok().map(Tokio)
        }
    }

    impl Reactor for Tokio {
        fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
            let _entered = self.0.enter();
            #[allow(
                deprecated,
                reason = "the replacement is unsafe; an OwnedFd keeps its descriptor open, as that \
                          requires"
            )]
            let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Box::new(Watched(fd)))
        }
    }

    #[derive(Debug)]
    struct Watched(AsyncFd<OwnedFd>);

    impl Readiness for Watched {
        fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            // The readiness is edge-triggered: an event after this call makes it ready again.
            ready!(self.0.poll_read_ready(context))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }
}

#[cfg(feature = "tokio")]
pub use tokio_reactor::Tokio;

#[cfg(feature = "async-io")]
mod async_io_reactor {
    use super::{Reactor, Readiness};
    use async_io::Async;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll};

    /// The reactor of async-io.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::AsyncIo;
    ///
    /// // A runtime of tokio whose own reactor is not enabled.
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// b.cq().use_reactor(AsyncIo);
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().next().await?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    #[derive(Clone, Copy, Default, Debug)]
    pub struct AsyncIo;

    impl Reactor for AsyncIo {
        fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
            // The flags of the descriptor are the program's: it may use blocking calls as well.
            Ok(Box::new(Watched(Async::new_nonblocking(fd)?)))
        }
    }

    #[derive(Debug)]
    struct Watched(Async<OwnedFd>);

    impl Readiness for Watched {
        fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_readable(context)
        }
    }
}

#[cfg(feature = "async-io")]
pub use async_io_reactor::AsyncIo;

/// The reactor of the features, if the caller has chosen none.
fn current() -> io::Result<Arc<dyn Reactor>> {
    #[cfg(feature = "tokio")]
    if let Some(tokio) = Tokio::current() {
        return Ok(Arc::new(tokio));
    }
    #[cfg(feature = "async-io")]
    return Ok(Arc::new(AsyncIo));
    #[cfg(not(feature = "async-io"))]
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "no async runtime: enable the feature `tokio` of urxe and call from a tokio runtime, \
         enable the feature `async-io`, or call `use_reactor`",
    ))
}

/// The registration of one descriptor with a reactor, made at the first use.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    reactor: Option<Arc<dyn Reactor>>,
    readiness: Option<Box<dyn Readiness>>,
}

impl Watch {
    /// Selects the reactor; it replaces an earlier one.
    pub(crate) fn use_reactor(&mut self, reactor: Arc<dyn Reactor>) {
        self.readiness = None;
        self.reactor = Some(reactor);
    }

    /// See [`Readiness::poll_readable`].
    pub(crate) fn poll(&mut self, fd: BorrowedFd<'_>, waker: &Waker) -> Poll<io::Result<()>> {
        let readiness = match self.readiness.take() {
            Some(readiness) => readiness,
            None => {
                let reactor = match self.reactor.take() {
                    Some(reactor) => reactor,
                    None => current()?,
                };
                let fd = fd.try_clone_to_owned()?;
                self.reactor.insert(reactor).watch(fd)?
            }
        };
        let readiness = self.readiness.insert(readiness);
        readiness.poll_readable(&mut Context::from_waker(waker))
    }
}

/// A queue of events that tasks wait for. A readable descriptor wakes all of them.
#[derive(Debug, Default)]
pub(crate) struct Readable {
    watch: Mutex<Watch>,
    waiters: Arc<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters(Mutex<Vec<Waker>>);

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}

impl Waiters {
    fn wake_all(&self) {
        let waiters = std::mem::take(&mut *lock(&self.0));
        waiters.into_iter().for_each(Waker::wake);
    }

    fn add(&self, waker: &Waker) {
        let mut waiters = lock(&self.0);
        if !waiters.iter().any(|other| other.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }
}

impl Readable {
    pub(crate) fn use_reactor(&self, reactor: Arc<dyn Reactor>) {
        lock(&self.watch).use_reactor(reactor);
        self.waiters.wake_all();
    }

    /// Wakes the tasks after a thread has taken an event: it may have kept a task from taking the
    /// next one.
    pub(crate) fn taken(&self) {
        self.waiters.wake_all();
    }

    /// Takes an event with `take`, or waits until the descriptor is readable.
    pub(crate) fn poll_take<T, E: From<io::Error>>(
        &self,
        context: &Context<'_>,
        fd: BorrowedFd<'_>,
        mut take: impl FnMut() -> Result<Option<T>, E>,
    ) -> Poll<Result<T, E>> {
        // One task at a time: another one cannot find the queue in use, and then miss its event.
        let mut watch = lock(&self.watch);
        for _ in 0..2 {
            if let Some(event) = take()? {
                return Poll::Ready(Ok(event));
            }
            self.waiters.add(context.waker());
            let shared = Waker::from(Arc::clone(&self.waiters));
            match watch.poll(fd, &shared) {
                Poll::Ready(result) => result?,
                Poll::Pending => return Poll::Pending,
            }
        }
        // A thread may be about to take the events. The task yields instead of repeating.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
