//! The program's data. Only the C interface knows its memory.

use urxe_driver::owned::{OwnedRegion, RangeError};
use urxe_proto::rsocket::stream::Piece;

/// Data that a program sends.
pub trait Source {
    /// Returns the number of bytes left.
    fn left(&self) -> u64;

    /// Copies the next bytes into `into`, which is at most as long as the data left.
    fn take(&mut self, into: &mut [u8]);

    /// Copies the next bytes into a piece of a region.
    ///
    /// # Errors
    /// Fails if the piece is not inside the region.
    fn take_into(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError>;
}

/// Memory into which a program receives.
pub trait Sink {
    /// Returns the number of bytes with room.
    fn room(&self) -> u64;

    /// Appends bytes, for which there must be room.
    fn put(&mut self, bytes: &[u8]);

    /// Appends a piece of a region, for which there must be room.
    ///
    /// # Errors
    /// Fails if the piece is not inside the region.
    fn put_from(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError>;
}
