//! Futures that return the buffer of an operation.
#![forbid(unsafe_code)]

use super::core::Core;
use super::operation::{Operation, Request};
use crate::buffer::LocalBuffer;
use crate::completion::Done;
use crate::error::{Error, Result};
use crate::mr::LocalSlice;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The memory of a [`Transfer`]: a [`LocalBuffer`] or a [`LocalSlice`].
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::TransferBuffer;
///
/// # async_io::block_on(async {
/// let (a, b) = urxe::testing::pair()?;
/// async fn store<B: TransferBuffer>(
///     qp: &QueuePair,
///     data: B,
///     place: &RemoteRegion,
/// ) -> urxe::Result<B> {
///     let (written, data) = qp.write(data, place).await;
///     written?;
///     Ok(data)
/// }
/// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
/// let data = a.pd().buffer_from(b"hello".to_vec())?;
/// store(&a, data, &memory.remote()).await?;
/// assert_eq!(memory.to_vec(..5)?, b"hello");
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
pub trait TransferBuffer: sealed::Lend + Unpin {}

impl TransferBuffer for LocalBuffer {}
impl TransferBuffer for LocalSlice {}

pub(super) mod sealed {
    use super::{LocalBuffer, LocalSlice};
    use crate::work::{ScatterList, SendData};

    pub trait Lend {
        /// Takes the memory for a work request.
        fn lend(&mut self) -> Lent;

        /// Stores the buffer that the work request returned.
        fn restore(&mut self, returned: Option<LocalBuffer>);
    }

    /// The memory of a work request of any kind.
    pub enum Lent {
        Buffer(LocalBuffer),
        Slice(LocalSlice),
    }

    impl From<Lent> for SendData<'_> {
        fn from(lent: Lent) -> Self {
            match lent {
                Lent::Buffer(buffer) => buffer.into(),
                Lent::Slice(slice) => slice.into(),
            }
        }
    }

    impl From<Lent> for ScatterList {
        fn from(lent: Lent) -> Self {
            match lent {
                Lent::Buffer(buffer) => buffer.into(),
                Lent::Slice(slice) => slice.into(),
            }
        }
    }

    impl Lend for LocalBuffer {
        fn lend(&mut self) -> Lent {
            Lent::Buffer(std::mem::take(self))
        }

        fn restore(&mut self, returned: Option<LocalBuffer>) {
            *self = returned.unwrap_or_default();
        }
    }

    impl Lend for LocalSlice {
        fn lend(&mut self) -> Lent {
            Lent::Slice(self.clone())
        }

        fn restore(&mut self, _: Option<LocalBuffer>) {}
    }
}

/// The future of an operation with one buffer, which it returns with the result.
///
/// A [`LocalBuffer`] is the work request's own until the result. If the reactor fails, the work
/// request keeps the buffer until its completion, and the future returns one without memory.
///
/// See [`Operation`] for what dropping it does.
///
/// ```
/// # use urxe::prelude::*;
/// # async_io::block_on(async {
/// let (a, b) = urxe::testing::pair()?;
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// let transfer = a.send(a.pd().buffer_from(b"hello".to_vec())?);
/// let (sent, buffer) = transfer.await;
/// sent?;
/// // The buffer is the program's again.
/// assert_eq!(*buffer, *b"hello");
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct Transfer<'a, B = LocalSlice> {
    operation: Operation<'a>,
    buffer: Option<B>,
}

impl<'a, B: TransferBuffer> Transfer<'a, B> {
    pub(super) fn new(
        core: &'a Core,
        mut buffer: B,
        request: impl FnOnce(sealed::Lent) -> Request<'a>,
    ) -> Self {
        Transfer {
            operation: Operation::new(core, request(buffer.lend())),
            buffer: Some(buffer),
        }
    }
}

impl<B: TransferBuffer> Future for Transfer<'_, B> {
    type Output = (Result<Done>, B);

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let completion = ready!(Pin::new(&mut self.operation).poll(context));
        let (result, returned) = match completion {
            Ok(completion) => (completion.result.map_err(Error::from), completion.buffer),
            Err(error) => (Err(error), self.operation.take_refused()),
        };
        let mut buffer = self.buffer.take().expect("the operation was ready once");
        buffer.restore(returned);
        Poll::Ready((result, buffer))
    }
}
