//! Errors of the C ABI: `errno` values.

use std::fmt;

use libc::c_int;
use urxe_driver::cm::CmError;
use urxe_driver::cq::CqError;
use urxe_driver::dm::DmError;
use urxe_driver::dmabuf::DmaBufError;
use urxe_driver::mr::RegisterError;
use urxe_driver::odp::AdviseError;
use urxe_driver::qp::{CreateError, ModifyError, MulticastError};
use urxe_driver::route::RouteError;
use urxe_driver::srq::SrqError;
use urxe_driver::xrcd::XrcdError;
use urxe_proto::queue::PostError;

/// An `errno` value, the result of a failed call. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    /// Returns the error of the system call. For an error that is not from one, returns `EINVAL` if
    /// an input is invalid, such as an environment variable, otherwise `EIO`.
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(match error.kind() {
            std::io::ErrorKind::InvalidInput => libc::EINVAL,
            _ => libc::EIO,
        }))
    }
}

// An errno value carries little detail, so the driver's error is logged where it is converted. A
// size beyond a documented limit is logged at debug level, because programs find the limits by
// trying.

impl From<CqError> for Errno {
    fn from(error: CqError) -> Self {
        match error {
            CqError::Size => tracing::debug!("completion queue: {error}"),
            _ => tracing::warn!("completion queue: {error}"),
        }
        Self(error.errno())
    }
}

impl From<RegisterError> for Errno {
    fn from(error: RegisterError) -> Self {
        tracing::warn!("memory registration: {error}");
        Self(error.errno())
    }
}

impl From<SrqError> for Errno {
    fn from(error: SrqError) -> Self {
        match error {
            SrqError::Size => tracing::debug!("shared receive queue: {error}"),
            _ => tracing::warn!("shared receive queue: {error}"),
        }
        Self(error.errno())
    }
}

impl From<XrcdError> for Errno {
    fn from(error: XrcdError) -> Self {
        tracing::warn!("XRC domain: {error}");
        Self(error.errno())
    }
}

impl From<AdviseError> for Errno {
    fn from(error: AdviseError) -> Self {
        tracing::warn!("advice on memory: {error}");
        Self(error.errno())
    }
}

impl From<DmaBufError> for Errno {
    fn from(error: DmaBufError) -> Self {
        tracing::warn!("memory registration: {error}");
        Self(error.errno())
    }
}

impl From<DmError> for Errno {
    fn from(error: DmError) -> Self {
        match error {
            DmError::Size | DmError::Alignment => tracing::debug!("device memory: {error}"),
            _ => tracing::warn!("device memory: {error}"),
        }
        Self(error.errno())
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Capacity => tracing::debug!("queue pair: {error}"),
            _ => tracing::error!("queue pair: {error}"),
        }
        Self(error.errno())
    }
}

impl From<ModifyError> for Errno {
    fn from(error: ModifyError) -> Self {
        match &error {
            ModifyError::Open(_) | ModifyError::Route(RouteError::Open(_)) => {
                tracing::error!("queue pair: {error}")
            }
            _ => tracing::warn!("queue pair: {error}"),
        }
        Self(error.errno())
    }
}

impl From<RouteError> for Errno {
    fn from(error: RouteError) -> Self {
        tracing::warn!("address handle: {error}");
        Self(error.errno())
    }
}

impl From<MulticastError> for Errno {
    fn from(error: MulticastError) -> Self {
        tracing::warn!("multicast: {error}");
        Self(error.errno())
    }
}

impl From<PostError> for Errno {
    /// Logs at debug level only: a program that fills a queue gets these errors in normal
    /// operation.
    fn from(error: PostError) -> Self {
        tracing::debug!("work request: {error}");
        match error {
            PostError::Full => Self(libc::ENOMEM),
            _ => Self(libc::EINVAL),
        }
    }
}

impl From<CmError> for Errno {
    fn from(error: CmError) -> Self {
        tracing::warn!("connection manager: {error}");
        Self(error.errno())
    }
}

/// Checks the result of a function of this library that returns null and sets `errno` on failure.
///
/// # Errors
/// `errno`, if `pointer` is null.
pub fn unless_null<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    match pointer.is_null() {
        true => Err(std::io::Error::last_os_error().into()),
        false => Ok(pointer),
    }
}

/// Checks the result of a function that returns 0 or an `errno` value.
///
/// # Errors
/// `status`, unless it is 0.
pub fn unless_zero(status: c_int) -> Result<(), Errno> {
    match status {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

/// Checks the result of a system call that returns -1 and sets `errno` on failure.
///
/// # Errors
/// `errno`, if `result` is -1.
pub fn of_call(result: c_int) -> Result<(), Errno> {
    match result {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

/// Returns the calling thread's `errno`.
pub fn last() -> Errno {
    // SAFETY: the pointer is to this thread's `errno`, which is initialized and valid for the
    // thread's life.
    Errno(unsafe { *libc::__errno_location() })
}

/// Sets the calling thread's `errno`.
pub fn set(errno: Errno) {
    // SAFETY: the pointer is to this thread's `errno`, which is valid and writable for the thread's
    // life.
    unsafe { *libc::__errno_location() = errno.0 }
}
