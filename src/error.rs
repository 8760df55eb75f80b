//! One error type for programs that do not distinguish the errors of single calls.
#![forbid(unsafe_code)]

use crate::cm;
use crate::completion::WorkError;
use crate::cq::CqError;
use crate::device::DeviceError;
use crate::endpoint::EndpointError;
use crate::mr::{MoveError, RangeError};
use crate::qp::BuildError;
use crate::work::{BatchError, PostError};
use std::io;
use urxe_driver::owned::OwnedError;
use urxe_driver::qp::{CreateError, ModifyError, MulticastError};
use urxe_driver::route::RouteError;
use urxe_driver::srq::SrqError;
use urxe_proto::work::WcStatus;

/// An error of any call of this crate.
///
/// Each call returns an error type with the reasons for which that call can fail. All of them
/// convert to this type, and this type converts to [`io::Error`].
///
/// ```
/// use urxe::prelude::*;
///
/// fn serve(device: &str) -> urxe::Result<usize> {
///     let context = urxe::device(device)?.open()?;
///     let memory = context.pd().register(4096, RemoteAccess::empty())?;
///     Ok(memory.slice(..100)?.len())
/// }
/// assert_eq!(serve("urxe_lo").unwrap(), 100);
///
/// let error = serve("no_such_device").unwrap_err();
/// assert_eq!(error.kind(), urxe::ErrorKind::NotFound);
/// assert_eq!(error.errno(), libc::ENODEV);
/// let error = std::io::Error::from(error);
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// ```
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Cause>);

/// The result of a call, with [`Error`] as its error.
///
/// ```
/// # use urxe::prelude::*;
/// fn receives(count: usize) -> urxe::Result<Vec<LocalBuffer>> {
///     let pd = urxe::device("urxe_lo")?.open()?.pd();
///     (0..count).map(|_| Ok(pd.buffer(4096)?)).collect()
/// }
/// assert_eq!(receives(3)?.len(), 3);
/// # Ok::<(), urxe::Error>(())
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// What a program can do about an [`Error`].
///
/// ```
/// use urxe::{ErrorKind, ReceiveRequest};
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).max_recv_wr(1).build()?;
/// qp.post_receive(ReceiveRequest::empty())?;
/// let error = urxe::Error::from(qp.post_receive(ReceiveRequest::empty()).unwrap_err());
/// assert_eq!(error.kind(), ErrorKind::QueueFull);
/// // As an error of the standard library, it keeps its message.
/// let message = error.to_string();
/// assert_eq!(std::io::Error::from(error).to_string(), message);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid, or the object is in a state that does not permit the call.
    InvalidInput,
    /// There is no such device.
    NotFound,
    /// A memory or descriptor limit is reached.
    ResourceLimit,
    /// A work queue is full until completions are polled.
    QueueFull,
    /// The inline data exceeds the limit of the queue pair: register the buffer instead.
    InlineTooLong,
    /// The object is in use.
    Busy,
    /// The system or the peer denies access.
    PermissionDenied,
    /// The port is in use.
    AddressInUse,
    /// The address belongs to no device.
    AddressNotAvailable,
    /// There is no route to the peer.
    Unreachable,
    /// The peer does not respond.
    TimedOut,
    /// The peer rejected the connection.
    Refused,
    /// The connection has ended.
    Disconnected,
    /// The queue pair entered the error state before the work request was executed.
    Flushed,
    /// The operation is not supported.
    Unsupported,
    /// Another error, see [`Error::errno`].
    Other,
}

/// Defines the error of the call, and the conversions from the error of each call.
macro_rules! causes {
    ($($cause:ident($error:ty),)*) => {
        /// The error of the call.
        #[derive(Debug, thiserror::Error)]
        #[error(transparent)]
        enum Cause {
            $($cause($error),)*
        }

        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error(Box::new(Cause::$cause(error)))
            }
        })*
    };
}

causes! {
    Device(DeviceError),
    Cq(CqError),
    Register(OwnedError),
    Move(MoveError),
    Range(RangeError),
    Build(BuildError),
    Create(CreateError),
    Modify(ModifyError),
    Multicast(MulticastError),
    Route(RouteError),
    Srq(SrqError),
    Endpoint(EndpointError),
    Post(PostError),
    Batch(BatchError),
    Work(WorkError),
    Cm(cm::Error),
    Io(io::Error),
}

impl Error {
    /// The kind of the error.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::ErrorKind;
    ///
    /// fn open(device: &str) -> urxe::Result<urxe::Context> {
    ///     Ok(urxe::device(device)?.open()?)
    /// }
    /// match open("no_such_device").map_err(|error| error.kind()) {
    ///     Err(ErrorKind::NotFound) => println!("`urxe devices` lists the devices"),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self.post_error() {
            Some(PostError::TooMuchInline { .. }) => return ErrorKind::InlineTooLong,
            Some(error) if error.errno() == libc::ENOMEM => return ErrorKind::QueueFull,
            _ => {}
        }
        match self.errno() {
            libc::EINVAL => ErrorKind::InvalidInput,
            libc::ENODEV => ErrorKind::NotFound,
            libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOSPC => {
                ErrorKind::ResourceLimit
            }
            libc::EBUSY => ErrorKind::Busy,
            libc::EACCES | libc::EPERM => ErrorKind::PermissionDenied,
            libc::EADDRINUSE => ErrorKind::AddressInUse,
            libc::EADDRNOTAVAIL => ErrorKind::AddressNotAvailable,
            libc::ENETUNREACH | libc::EHOSTUNREACH => ErrorKind::Unreachable,
            libc::ETIMEDOUT => ErrorKind::TimedOut,
            libc::ECONNREFUSED => ErrorKind::Refused,
            libc::ECONNRESET | libc::ENOTCONN | libc::EPIPE => ErrorKind::Disconnected,
            libc::ECANCELED => ErrorKind::Flushed,
            libc::EOPNOTSUPP | libc::ENOSYS => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        }
    }

    /// The `errno` that a verbs program gets, or that stands for the status of a completion.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let error = urxe::Error::from(urxe::device("no_such_device").unwrap_err());
    /// assert_eq!(error.errno(), libc::ENODEV);
    /// ```
    pub fn errno(&self) -> i32 {
        match &*self.0 {
            Cause::Device(error) => error.errno(),
            Cause::Cq(error) => error.errno(),
            Cause::Register(error) => error.errno(),
            Cause::Move(error) => error.errno(),
            Cause::Range(_) | Cause::Endpoint(_) => libc::EINVAL,
            Cause::Build(error) => error.errno(),
            Cause::Create(error) => error.errno(),
            Cause::Modify(error) => error.errno(),
            Cause::Multicast(error) => error.errno(),
            Cause::Route(error) => error.errno(),
            Cause::Srq(error) => error.errno(),
            Cause::Post(error) => error.errno(),
            Cause::Batch(error) => error.source.errno(),
            Cause::Work(error) => error.errno(),
            Cause::Cm(error) => error.errno(),
            Cause::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// The status of the completion; `None` if a work request is not the reason of the error.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// b.fail()?;
    /// let error = urxe::Error::from(b.cq().wait()?.result.unwrap_err());
    /// assert_eq!(error.status(), Some(WcStatus::WrFlushErr));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn status(&self) -> Option<WcStatus> {
        match &*self.0 {
            Cause::Work(error) => Some(error.status),
            _ => None,
        }
    }

    fn post_error(&self) -> Option<&PostError> {
        match &*self.0 {
            Cause::Post(error) | Cause::Cm(cm::Error::Post(error)) => Some(error),
            Cause::Batch(error) => Some(&error.source),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the error as the inner error, and an [`io::Error`] as it was.
    fn from(error: Error) -> io::Error {
        match *error.0 {
            Cause::Io(error) => error,
            cause => {
                let error = Error(Box::new(cause));
                io::Error::new(error.kind().into(), error)
            }
        }
    }
}

impl From<ErrorKind> for io::ErrorKind {
    fn from(kind: ErrorKind) -> io::ErrorKind {
        match kind {
            ErrorKind::InvalidInput | ErrorKind::InlineTooLong => io::ErrorKind::InvalidInput,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::ResourceLimit => io::ErrorKind::OutOfMemory,
            ErrorKind::QueueFull => io::ErrorKind::WouldBlock,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::AddressInUse => io::ErrorKind::AddrInUse,
            ErrorKind::AddressNotAvailable => io::ErrorKind::AddrNotAvailable,
            ErrorKind::Unreachable => io::ErrorKind::HostUnreachable,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::Refused => io::ErrorKind::ConnectionRefused,
            ErrorKind::Disconnected => io::ErrorKind::ConnectionReset,
            ErrorKind::Flushed => io::ErrorKind::ConnectionAborted,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Other => io::ErrorKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn inline_data_over_the_limit_is_told_apart_from_other_invalid_arguments() {
        let error = Error::from(PostError::TooMuchInline {
            given: 300,
            max: 256,
        });
        assert_eq!(error.kind(), ErrorKind::InlineTooLong);
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("register the buffer"), "{error}");
    }

    #[test]
    fn a_full_queue_is_told_apart_from_missing_memory() {
        let full = PostError::QueueFull { capacity: 1 };
        assert_eq!(Error::from(full).kind(), ErrorKind::QueueFull);
        let batch = BatchError {
            posted: 0,
            source: full,
        };
        assert_eq!(Error::from(batch).kind(), ErrorKind::QueueFull);
        let memory = io::Error::from_raw_os_error(libc::ENOMEM);
        assert_eq!(Error::from(memory).kind(), ErrorKind::ResourceLimit);
    }

    #[test]
    fn an_io_error_is_returned_as_it_was() {
        let error = Error::from(io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::EMFILE));
    }

    #[test]
    fn an_io_error_holds_the_error_that_it_was_made_of() {
        let error = Error::from(WorkError {
            status: WcStatus::RetryExcErr,
        });
        assert_eq!(error.status(), Some(WcStatus::RetryExcErr));
        let error = io::Error::from(error);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let inner: &Error = inner.expect("it is this crate's error");
        assert_eq!(inner.status(), Some(WcStatus::RetryExcErr));
        assert!(inner.source().is_none());
    }
}
