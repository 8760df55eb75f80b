//! The traits of async runtimes for streams.
#![forbid(unsafe_code)]

use super::{RdmaStream, ReadHalf, WriteHalf};
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Implements a runtime's traits for types that reach a stream by an expression.
macro_rules! implement {
    ($module:ident, read: $reader:ty => $of_reader:expr, write: $writer:ty => $of_writer:expr) => {
        impl $module::Read for $reader {
            $module::read!($of_reader);
        }
        impl $module::Write for $writer {
            $module::write!($of_writer);
        }
    };
}

fn stream(stream: &RdmaStream) -> &RdmaStream {
    stream
}

#[cfg(feature = "tokio")]
mod of_tokio {
    pub(super) use ::tokio::io::{AsyncRead as Read, AsyncWrite as Write};

    macro_rules! read {
        ($stream:expr) => {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ::tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let slices = &mut [IoSliceMut::new(buffer.initialize_unfilled())];
                let read = $stream(&self).poll_read_vectored(context, slices);
                read.map_ok(|read| buffer.advance(read))
            }
        };
    }

    macro_rules! write {
        ($stream:expr) => {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                $stream(&self).poll_write_vectored(context, &[IoSlice::new(data)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                $stream(&self).poll_write_vectored(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                $stream(&self).poll_shutdown(context)
            }
        };
    }

    pub(super) use {read, write};
}

#[cfg(feature = "async-io")]
mod of_futures {
    pub(super) use futures_io::{AsyncRead as Read, AsyncWrite as Write};

    macro_rules! read {
        ($stream:expr) => {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let slices = &mut [IoSliceMut::new(buffer)];
                $stream(&self).poll_read_vectored(context, slices)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                $stream(&self).poll_read_vectored(context, slices)
            }
        };
    }

    macro_rules! write {
        ($stream:expr) => {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                $stream(&self).poll_write_vectored(context, &[IoSlice::new(data)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                $stream(&self).poll_write_vectored(context, slices)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                $stream(&self).poll_shutdown(context)
            }
        };
    }

    pub(super) use {read, write};
}

#[cfg(feature = "tokio")]
implement!(of_tokio, read: RdmaStream => stream, write: RdmaStream => stream);
#[cfg(feature = "tokio")]
implement!(of_tokio, read: ReadHalf => ReadHalf::stream, write: WriteHalf => WriteHalf::stream);
#[cfg(feature = "async-io")]
implement!(of_futures, read: RdmaStream => stream, write: RdmaStream => stream);
#[cfg(feature = "async-io")]
implement!(of_futures, read: ReadHalf => ReadHalf::stream, write: WriteHalf => WriteHalf::stream);
