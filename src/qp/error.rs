//! Why a queue pair cannot be created.

use crate::cq::CqError;
use urxe_driver::qp::{CreateError, ModifyError};

/// A queue pair cannot be created.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::BuildError;
///
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let error = pd.queue_pair(&cq, &cq).gid_index(255).build().unwrap_err();
/// assert!(matches!(error, BuildError::NoSuchGid { index: 255, .. }));
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A completion queue, or the shared receive queue, belongs to another opened device.
    #[error(
        "the completion queues and the shared receive queue must be made from the same opened \
         device as the queue pair"
    )]
    OtherContext,
    /// The port has no GID with this index.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The name of the device.
        device: String,
        /// The requested index.
        index: u8,
    },
    /// A completion queue has no room for the completions of the queue pair.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// The driver cannot create the queue pair.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The driver cannot initialize the queue pair.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl BuildError {
    /// The `errno` that a verbs program gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let error = pd.queue_pair(&cq, &cq).gid_index(255).build().unwrap_err();
    /// assert_eq!(error.errno(), libc::EINVAL);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::OtherContext | Self::NoSuchGid { .. } => libc::EINVAL,
            Self::Cq(error) => error.errno(),
            Self::Create(error) => error.errno(),
            Self::Modify(error) => error.errno(),
        }
    }
}
