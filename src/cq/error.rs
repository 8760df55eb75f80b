//! The errors of completion queues.
#![forbid(unsafe_code)]

use std::io;
use urxe_driver as driver;
use urxe_driver::cq::MAX_CQE;

/// A completion queue cannot be created, or has no room for another queue pair.
///
/// ```
/// use urxe::{BuildError, CqError};
///
/// /// Whether the queue pair may be created with another completion queue.
/// fn needs_another_queue(error: &BuildError) -> bool {
///     matches!(error, BuildError::Cq(CqError::TooManyUsers))
/// }
/// assert!(needs_another_queue(&BuildError::Cq(CqError::TooManyUsers)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// No file descriptor is left for the completion channel.
    #[error(
        "a completion queue needs a file descriptor ({0}): close some files, or raise the limit \
         (`ulimit -n`)"
    )]
    Channel(#[source] io::Error),
    /// The queue pairs could complete more work requests than a completion queue holds.
    #[error(
        "the queue pairs of a completion queue can have at most {MAX_CQE} work requests in total: \
         use another completion queue, or shorter queues"
    )]
    TooManyUsers,
    /// The driver's error.
    #[error(transparent)]
    Driver(#[from] driver::cq::CqError),
}

impl CqError {
    /// The `errno` that a verbs program gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert_eq!(urxe::CqError::TooManyUsers.errno(), libc::ENOMEM);
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::Channel(error) => error.raw_os_error().unwrap_or(libc::EMFILE),
            Self::TooManyUsers => libc::ENOMEM,
            Self::Driver(error) => error.errno(),
        }
    }
}
