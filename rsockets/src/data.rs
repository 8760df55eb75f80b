//! The program's data. It lies wherever the program has it, so only the C interface can touch it.

use urxe_driver::owned::{OwnedRegion, RangeError};
use urxe_proto::rsocket::stream::Piece;

/// What a program sends.
pub trait Source {
    /// How many bytes are left.
    fn left(&self) -> u64;

    /// Takes the next bytes, as many as `into` has; no more than are left are asked for.
    fn take(&mut self, into: &mut [u8]);

    /// Takes the next bytes into a piece of a region.
    ///
    /// # Errors
    /// When the piece does not lie in the region.
    fn take_into(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError>;
}

/// Where a program receives.
pub trait Sink {
    /// How many bytes there is room for.
    fn room(&self) -> u64;

    /// Puts bytes next; there is room for them.
    fn put(&mut self, bytes: &[u8]);

    /// Puts a piece of a region next; there is room for it.
    ///
    /// # Errors
    /// When the piece does not lie in the region.
    fn put_from(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError>;
}
