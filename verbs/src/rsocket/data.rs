//! The application's buffers, as the pieces of an `iovec` list.

use libc::iovec;
use urxe_driver::owned::{OwnedRegion, RangeError, check_range};
use urxe_proto::rsocket::stream::Piece;

use crate::errno::Errno;
use urxe_rsockets::data::{Sink, Source};

/// The maximum number of pieces in a call, as in the kernel (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// A list of memory pieces with a position.
pub(super) struct Pieces {
    pieces: Vec<iovec>,
    /// The current position: the index of the piece, and the offset within it.
    at: usize,
    within: usize,
    left: u64,
}

impl Pieces {
    /// Returns a list of one piece.
    ///
    /// # Safety
    /// The piece must stay readable, for a source, or writable, for a sink, as long as the result
    /// lives.
    pub unsafe fn one(base: *mut libc::c_void, len: usize) -> Self {
        let piece = iovec {
            iov_base: base,
            iov_len: len,
        };
        Pieces {
            pieces: vec![piece],
            at: 0,
            within: 0,
            left: len as u64,
        }
    }

    /// Returns a list of `count` pieces.
    ///
    /// # Errors
    /// `EINVAL` if the total length exceeds the limit; `EMSGSIZE` for too many pieces.
    ///
    /// # Safety
    /// `first` must point to `count` readable `iovec` elements. Each piece must stay readable, for
    /// a source, or writable, for a sink, as long as the result lives.
    pub unsafe fn of(first: *const iovec, count: usize) -> Result<Self, Errno> {
        if count > MAX_PIECES {
            return Err(Errno(libc::EMSGSIZE));
        }
        // SAFETY: `first` points to `count` readable elements: the caller's contract, section
        // Safety.
        let pieces: Vec<iovec> = (0..count)
            .map(|at| unsafe { first.add(at).read_unaligned() })
            .collect();
        let mut left = 0_u64;
        for piece in &pieces {
            left = left
                .checked_add(piece.iov_len as u64)
                .filter(|sum| *sum <= isize::MAX as u64)
                .ok_or(Errno(libc::EINVAL))?;
        }
        Ok(Pieces {
            pieces,
            at: 0,
            within: 0,
            left,
        })
    }

    /// Advances by `len` bytes, of which at least as many are left.
    ///
    /// For each part, `each` gets its address, its offset from the start of the call, and its
    /// length.
    fn advance(&mut self, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        while done < len
            && let Some(piece) = self.pieces.get(self.at)
        {
            let part = (len - done).min(piece.iov_len - self.within);
            each(
                piece.iov_base.cast::<u8>().wrapping_add(self.within),
                done,
                part,
            );
            done += part;
            self.within += part;
            if self.within == piece.iov_len {
                self.at += 1;
                self.within = 0;
            }
        }
        self.left -= done as u64;
    }
}

/// Returns the address of a piece of a region.
fn locate(region: &OwnedRegion, piece: Piece) -> Result<*mut u8, RangeError> {
    let (mr, offset) = (region.mr(), u64::from(piece.offset));
    check_range(offset, piece.len.into(), mr.len())?;
    Ok(std::ptr::with_exposed_provenance_mut(
        (mr.addr() + offset) as usize,
    ))
}

impl Source for Pieces {
    fn left(&self) -> u64 {
        self.left
    }

    fn take(&mut self, into: &mut [u8]) {
        let to = into.as_mut_ptr();
        // SAFETY: each part is readable memory of the application, the contract of the
        // constructors, and `into` has room for `into.len()` bytes.
        self.advance(into.len(), |from, at, len| unsafe {
            to.add(at).copy_from_nonoverlapping(from, len);
        });
    }

    fn take_into(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError> {
        let to = locate(region, piece)?;
        // SAFETY: each part is readable memory of the application, the contract of the
        // constructors. `to` points to `piece.len` bytes in the region, to which no reference
        // exists. The application can alias the region only in error; `copy` permits overlap.
        self.advance(piece.len as usize, |from, at, len| unsafe {
            to.add(at).copy_from(from, len);
        });
        Ok(())
    }
}

impl Sink for Pieces {
    fn room(&self) -> u64 {
        self.left
    }

    fn put(&mut self, bytes: &[u8]) {
        let from = bytes.as_ptr();
        // SAFETY: each part is writable memory of the application, the contract of the
        // constructors, and `bytes` has `bytes.len()` bytes.
        self.advance(bytes.len(), |to, at, len| unsafe {
            to.copy_from_nonoverlapping(from.add(at), len);
        });
    }

    fn put_from(&mut self, region: &OwnedRegion, piece: Piece) -> Result<(), RangeError> {
        let from = locate(region, piece)?;
        // SAFETY: each part is writable memory of the application, the contract of the
        // constructors. `from` points to `piece.len` bytes in the region, to which no reference
        // exists.
        self.advance(piece.len as usize, |to, at, len| unsafe {
            to.copy_from(from.add(at), len);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_driver::Pd;
    use urxe_proto::host::Access;

    fn pieces(of: &mut [&mut [u8]]) -> Pieces {
        let list = of.iter_mut().map(|piece| iovec {
            iov_base: piece.as_mut_ptr().cast(),
            iov_len: piece.len(),
        });
        let list: Vec<_> = list.collect();
        // SAFETY: the pieces live as long as the test.
        unsafe { Pieces::of(list.as_ptr(), list.len()) }.unwrap()
    }

    #[test]
    fn bytes_go_from_piece_to_piece() {
        let region = OwnedRegion::zeroed(&Pd::new(), 64, Access::LOCAL_WRITE).unwrap();
        let (mut a, mut b, mut c) = ([1, 2, 3], [], [4, 5, 6, 7]);
        let mut from = pieces(&mut [&mut a, &mut b, &mut c]);
        assert_eq!(from.left(), 7);
        let mut first = [0; 2];
        from.take(&mut first);
        assert_eq!(first, [1, 2]);
        from.take_into(&region, Piece { offset: 10, len: 4 })
            .unwrap();
        assert_eq!(from.left(), 1);
        let (mut d, mut e) = ([0; 1], [0; 4]);
        let mut to = pieces(&mut [&mut d, &mut e]);
        to.put_from(&region, Piece { offset: 10, len: 3 }).unwrap();
        to.put(&[9]);
        assert_eq!(to.room(), 1);
        assert_eq!((d, e), ([3], [4, 5, 9, 0]));
        assert!(to.put_from(&region, Piece { offset: 63, len: 2 }).is_err());
    }

    #[test]
    fn lists_beyond_the_limits_of_readv_are_refused() {
        let huge = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: usize::MAX,
        }];
        // SAFETY: the call fails before it accesses the pieces.
        let refused = |first, count| unsafe { Pieces::of(first, count) }.err();
        assert_eq!(refused(huge.as_ptr(), 1), Some(Errno(libc::EINVAL)));
        assert_eq!(refused(huge.as_ptr(), 1025), Some(Errno(libc::EMSGSIZE)));
    }
}
