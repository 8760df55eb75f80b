//! The program's data for `urxe_rsockets`: lists of slices with a position.
#![forbid(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use urxe_driver::owned::{OwnedRegion, RangeError};
use urxe_proto::rsocket::stream::Piece;
use urxe_rsockets::data::{Sink, Source};

/// The data of a write.
pub(super) struct Outgoing<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    /// The position in the first slice.
    within: usize,
    left: usize,
}

impl<'a, 'b> Outgoing<'a, 'b> {
    pub fn new(slices: &'a [IoSlice<'b>]) -> Self {
        Outgoing {
            slices,
            within: 0,
            left: slices.iter().map(|slice| slice.len()).sum(),
        }
    }

    /// Calls `each` with the next parts of up to `len` bytes, and their offsets from the start.
    fn advance<E>(
        &mut self,
        len: usize,
        mut each: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while let Some((first, rest)) = self.slices.split_first()
            && done < len
        {
            let part = &first[self.within..];
            let part = &part[..part.len().min(len - done)];
            each(done, part)?;
            done += part.len();
            self.within += part.len();
            if self.within == first.len() {
                (self.slices, self.within) = (rest, 0);
            }
        }
        self.left -= done;
        Ok(())
    }
}

impl Source for Outgoing<'_, '_> {
    fn left(&self) -> u64 {
        self.left as u64
    }

    fn take(&mut self, into: &mut [u8]) {
        let copied = self.advance(into.len(), |at, part| {
            into[at..at + part.len()].copy_from_slice(part);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = copied;
    }

    fn take_into(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError> {
        let offset = piece.offset as usize;
        self.advance(piece.len as usize, |at, part| {
            region.write(offset + at, part)
        })
    }
}

/// The memory of a read.
pub(super) struct Incoming<'a, 'b> {
    slices: &'a mut [IoSliceMut<'b>],
    /// The slice to fill next, and the position in it.
    at: usize,
    within: usize,
    room: usize,
}

impl<'a, 'b> Incoming<'a, 'b> {
    pub fn new(slices: &'a mut [IoSliceMut<'b>]) -> Self {
        let room = slices.iter().map(|slice| slice.len()).sum();
        Incoming {
            slices,
            at: 0,
            within: 0,
            room,
        }
    }

    /// Calls `each` with the next parts of up to `len` bytes, and their offsets from the start.
    fn advance<E>(
        &mut self,
        len: usize,
        mut each: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len
            && let Some(slice) = self.slices.get_mut(self.at)
        {
            let part = &mut slice[self.within..];
            let part_len = part.len().min(len - done);
            each(done, &mut part[..part_len])?;
            done += part_len;
            self.within += part_len;
            if self.within == slice.len() {
                (self.at, self.within) = (self.at + 1, 0);
            }
        }
        self.room -= done;
        Ok(())
    }
}

impl Sink for Incoming<'_, '_> {
    fn room(&self) -> u64 {
        self.room as u64
    }

    fn put(&mut self, bytes: &[u8]) {
        let copied = self.advance(bytes.len(), |at, part| {
            part.copy_from_slice(&bytes[at..at + part.len()]);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = copied;
    }

    fn put_from(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError> {
        let offset = piece.offset as usize;
        self.advance(piece.len as usize, |at, part| {
            region.read(offset + at, part)
        })
    }
}
