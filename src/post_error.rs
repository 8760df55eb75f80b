//! Why a work request was not posted.
#![forbid(unsafe_code)]

use urxe_proto::work::MAX_MESSAGE;

/// A work request was not posted. It has no effect.
///
/// ```
/// use urxe::PostError;
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// let error = a.post_send(SendRequest::send(&[0; 100_000][..])).unwrap_err();
/// assert!(matches!(error, PostError::TooMuchInline { given: 100_000, .. }));
/// println!("{error}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue has as many outstanding work requests as its capacity.
    #[error(
        "the queue is full: poll completions of its {capacity} work requests first (an unsignaled \
         one ends with the next signaled one), or create the queue with a larger capacity"
    )]
    QueueFull {
        /// The capacity of the queue.
        capacity: u32,
    },
    /// The work request has more memory slices than the queue permits.
    #[error(
        "{given} memory slices, but the queue permits {max} in a work request: use fewer, or \
         create the queue with a larger limit"
    )]
    TooManySlices {
        /// The number of slices.
        given: usize,
        /// The limit of the queue.
        max: u32,
    },
    /// The work request has more inline data than the queue pair permits.
    #[error(
        "{given} bytes of inline data, but the queue pair permits {max}: register the buffer and send \
         a slice of it, or create the queue pair with a larger limit"
    )]
    TooMuchInline {
        /// The number of bytes.
        given: usize,
        /// The limit of the queue pair.
        max: u32,
    },
    /// The message is longer than 2^31 bytes.
    #[error("a message of {given} bytes is longer than {MAX_MESSAGE}: send it in parts")]
    TooLong {
        /// The number of bytes.
        given: u64,
    },
    /// The memory belongs to another protection domain than the queue.
    #[error("the memory belongs to another protection domain than the queue it is posted to")]
    OtherProtectionDomain,
    /// The peer's memory is shorter than the local data.
    #[error("{local} bytes do not fit the {remote} bytes of the peer's memory")]
    RemoteTooShort {
        /// The number of local bytes.
        local: u64,
        /// The number of bytes of the peer's memory.
        remote: u64,
    },
    /// The driver's error.
    #[error(transparent)]
    Driver(#[from] urxe_proto::queue::PostError),
}

impl PostError {
    /// The `errno` that a verbs program gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).max_recv_wr(1).build()?;
    /// qp.post_receive(ReceiveRequest::empty())?;
    /// let error = qp.post_receive(ReceiveRequest::empty()).unwrap_err();
    /// assert_eq!(error.errno(), libc::ENOMEM);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::QueueFull { .. } | Self::Driver(urxe_proto::queue::PostError::Full) => {
                libc::ENOMEM
            }
            _ => libc::EINVAL,
        }
    }
}
