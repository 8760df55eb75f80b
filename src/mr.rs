//! Memory regions: registered memory, pieces of it, and how peers are told of it.
//!
//! A region owns its memory, since a peer may read and write it at any time. So there is no `&[u8]`
//! into it: bytes are copied in and out, and 8 aligned bytes can be had as an atomic.
#![forbid(unsafe_code)]

use crate::pd::ProtectionDomain;
use bitflags::bitflags;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use urxe_driver::owned::{self, OwnedError, OwnedRegion, WORD, check_range};
use urxe_proto::host::Access;
use urxe_proto::ids::RKey;
use urxe_proto::work::Sge;

pub use urxe_driver::owned::RangeError;

bitflags! {
    /// What peers may do to a memory region; without any, it is for local use. The program's own
    /// side may always read and write it. (The remote bits of `ibv_access_flags`.)
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct RemoteAccess: u32 {
        /// RDMA WRITE.
        const WRITE = Access::REMOTE_WRITE.bits();
        /// RDMA READ.
        const READ = Access::REMOTE_READ.bits();
        /// Compare-and-swap, and fetch-and-add.
        const ATOMIC = Access::REMOTE_ATOMIC.bits();
        /// Flushing what was written, for all processors to see.
        const FLUSH = Access::FLUSH_GLOBAL.bits();
    }
}

impl RemoteAccess {
    pub(crate) fn with_local(self) -> Access {
        Access::LOCAL_WRITE | Access::MW_BIND | Access::from_bits_truncate(self.bits())
    }
}

/// Why a region could not be moved to another protection domain.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct MoveError {
    /// The region, as it was.
    pub region: MemoryRegion,
    /// What is in the way.
    pub source: MoveRefusal,
}

/// What keeps a region in its protection domain.
#[derive(Debug, thiserror::Error)]
pub enum MoveRefusal {
    /// Pieces of it are left, or work requests with such.
    #[error("pieces of the region are left: drop them, and take the completions of work on them")]
    InUse,
    /// It cannot be registered anew.
    #[error(transparent)]
    Register(#[from] urxe_driver::mr::RegisterError),
}

/// A memory region, with its memory. (`ibv_mr`.)
///
/// It stays registered until it, every [`LocalSlice`] and [`LocalWord`] of it, and every work
/// request on it is gone; only then the memory is given back. (`ibv_dereg_mr`, which cannot come too
/// early here.)
#[derive(Debug)]
pub struct MemoryRegion(Arc<OwnedRegion>);

impl MemoryRegion {
    pub(crate) fn new(region: OwnedRegion) -> MemoryRegion {
        MemoryRegion(Arc::new(region))
    }

    /// Its length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.mr().len() as usize
    }

    /// A piece of it, for work requests.
    ///
    /// # Errors
    /// [`RangeError`] when the range is not within the region, or is 4 GiB or longer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice, RangeError> {
        let (offset, len) = bounds(&range, self.len())?;
        LocalSlice::new(&self.0, offset, len)
    }

    /// The 8 bytes from `offset` on, for atomics: the program's own, and as the place where the
    /// result of a peer's goes.
    ///
    /// # Errors
    /// [`RangeError`] when they are not within the region, or not aligned.
    pub fn word(&self, offset: usize) -> Result<LocalWord, RangeError> {
        Ok(LocalWord {
            word: self.0.word(offset)?,
            slice: LocalSlice::new(&self.0, offset, WORD)?,
        })
    }

    /// Copies from the region, from `offset` on. Bytes that a peer writes meanwhile may be from
    /// before or after.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.0.read(offset, into)
    }

    /// Copies to the region, from `offset` on. A peer that reads meanwhile may see part of it.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        self.0.write(offset, data)
    }

    /// A copy of a part of it.
    ///
    /// # Errors
    /// [`RangeError`] when the range is not within the region.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, RangeError> {
        let (offset, len) = bounds(&range, self.len())?;
        let mut copy = vec![0; len];
        self.0.read(offset, &mut copy)?;
        Ok(copy)
    }

    /// Changes what peers may do to it, at once; its key stays as it is. (`ibv_rereg_mr` with
    /// `IBV_REREG_MR_CHANGE_ACCESS`.)
    ///
    /// # Errors
    /// See [`OwnedError`]: memory windows must not be bound to it.
    pub fn set_access(&self, access: RemoteAccess) -> Result<(), OwnedError> {
        Ok(self.0.set_access(access.with_local())?)
    }

    /// Moves it to another protection domain; its key stays as it is. (`ibv_rereg_mr` with
    /// `IBV_REREG_MR_CHANGE_PD`.)
    ///
    /// # Errors
    /// See [`MoveRefusal`]: nothing may use the region. The region comes back with it.
    pub fn move_to(self, pd: &ProtectionDomain) -> Result<MemoryRegion, MoveError> {
        let refused = |region, source| MoveError { region, source };
        let mut owned = match Arc::try_unwrap(self.0) {
            Ok(owned) => owned,
            Err(shared) => return Err(refused(MemoryRegion(shared), MoveRefusal::InUse)),
        };
        match owned.set_pd(pd.driver()) {
            Ok(()) => Ok(Self::new(owned)),
            Err(error) => Err(refused(Self::new(owned), error.into())),
        }
    }

    /// What a peer must know to reach it: send it to them.
    pub fn remote(&self) -> RemoteRegion {
        let mr = self.0.mr();
        RemoteRegion {
            addr: mr.addr(),
            len: mr.len(),
            rkey: mr.rkey(),
        }
    }
}

/// A piece of a memory region, for work requests. It keeps the region registered. (`ibv_sge`.)
#[derive(Clone, Debug)]
pub struct LocalSlice {
    region: Arc<OwnedRegion>,
    offset: usize,
    sge: Sge,
}

impl LocalSlice {
    fn new(region: &Arc<OwnedRegion>, offset: usize, len: usize) -> Result<Self, RangeError> {
        Ok(LocalSlice {
            region: Arc::clone(region),
            offset,
            sge: region.sge(offset, len)?,
        })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.sge.length as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.sge.length == 0
    }

    /// Where it starts in the region, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// A piece of this piece.
    ///
    /// # Errors
    /// [`RangeError`] when the range is not within this piece.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice, RangeError> {
        let (offset, len) = bounds(&range, self.len())?;
        LocalSlice::new(&self.region, self.offset + offset, len)
    }

    /// Copies from it, from `offset` on, as [`MemoryRegion::read`] does.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        check_range(offset as u64, into.len() as u64, self.len() as u64)?;
        self.region.read(self.offset + offset, into)
    }

    /// Copies to it, from `offset` on, as [`MemoryRegion::write`] does.
    ///
    /// # Errors
    /// [`RangeError::Outside`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        check_range(offset as u64, data.len() as u64, self.len() as u64)?;
        self.region.write(self.offset + offset, data)
    }

    pub(crate) fn sge(&self) -> Sge {
        self.sge
    }

    /// The number of the protection domain that it belongs to.
    pub(crate) fn pd(&self) -> u64 {
        self.region.mr().pd().id()
    }
}

/// Eight aligned bytes of a memory region. It derefs to [`AtomicU64`]: what peers' atomics do to it
/// is atomic against what the program does through it. It keeps the region registered.
#[derive(Clone, Debug)]
pub struct LocalWord {
    word: owned::Word,
    slice: LocalSlice,
}

impl LocalWord {
    /// The same bytes as a piece, for work requests that move them.
    pub fn as_slice(&self) -> &LocalSlice {
        &self.slice
    }
}

impl Deref for LocalWord {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        &self.word
    }
}

/// A peer's memory region, or a part of it, as the peer told it. How the bytes get here is the
/// program's own affair: over TCP, in a file, or in a message of another connection.
///
/// What is wrong in it is found out by the peer, which refuses the work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteRegion {
    /// The virtual address of its first byte, in the peer's address space.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The peer's key for it.
    pub rkey: RKey,
}

impl RemoteRegion {
    /// How many bytes [`RemoteRegion::to_bytes`] makes.
    pub const BYTES: usize = 20;

    /// A part of it.
    ///
    /// # Errors
    /// [`RangeError`] when the range is not within it.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteRegion, RangeError> {
        let (offset, len) = bounds64(&range, self.len)?;
        Ok(RemoteRegion {
            addr: self.address(offset, len)?,
            len,
            rkey: self.rkey,
        })
    }

    /// The 8 bytes from `offset` on, for atomics.
    ///
    /// # Errors
    /// [`RangeError`] when they are not within it, or not aligned.
    pub fn word(&self, offset: u64) -> Result<RemoteWord, RangeError> {
        let addr = self.address(offset, WORD as u64)?;
        if !addr.is_multiple_of(WORD as u64) {
            return Err(RangeError::Misaligned { addr });
        }
        Ok(RemoteWord {
            addr,
            rkey: self.rkey,
        })
    }

    /// Where `len` bytes from `offset` on lie. The peer may have told an address so high that the
    /// region would reach beyond the address space.
    fn address(&self, offset: u64, len: u64) -> Result<u64, RangeError> {
        check_range(offset, len, self.len)?;
        let outside = RangeError::Outside {
            offset,
            len,
            of: self.len,
        };
        self.addr.checked_add(offset).ok_or(outside)
    }

    /// For sending to a peer: address, length, key, each in network order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes
    }

    /// What [`RemoteRegion::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> RemoteRegion {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            l4,
            l5,
            l6,
            l7,
            k0,
            k1,
            k2,
            k3,
        ] = *bytes;
        RemoteRegion {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]),
            rkey: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
        }
    }
}

/// Eight aligned bytes of a peer's memory region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteWord {
    addr: u64,
    rkey: RKey,
}

impl RemoteWord {
    pub(crate) fn addr(self) -> u64 {
        self.addr
    }

    pub(crate) fn rkey(self) -> RKey {
        self.rkey
    }
}

/// Offset and length of a range within `len` bytes.
fn bounds(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), RangeError> {
    let wide = |bound: Bound<&usize>| bound.map(|at| *at as u64);
    let range = (wide(range.start_bound()), wide(range.end_bound()));
    let (offset, part) = bounds64(&range, len as u64)?;
    Ok((offset as usize, part as usize))
}

fn bounds64(range: &impl RangeBounds<u64>, len: u64) -> Result<(u64, u64), RangeError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len.max(start),
    };
    let part = end
        .checked_sub(start)
        .ok_or(RangeError::Backwards { start, end })?;
    check_range(start, part, len)?;
    Ok((start, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteRegion = RemoteRegion {
        addr: 0x1122_3344_5566_7788,
        len: 100,
        rkey: RKey(0x99aa_bbcc),
    };

    #[test]
    fn a_remote_region_survives_its_bytes() {
        let bytes = REMOTE.to_bytes();
        assert_eq!(bytes[..4], [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(RemoteRegion::from_bytes(&bytes), REMOTE);
    }

    #[test]
    fn parts_lie_within_the_whole() {
        assert_eq!(REMOTE.slice(..).unwrap(), REMOTE);
        let part = REMOTE.slice(10..=19).unwrap();
        assert_eq!((part.addr, part.len), (REMOTE.addr + 10, 10));
        assert!(part.slice(..11).is_err());
        assert!(REMOTE.slice(101..).is_err());
        assert_eq!(REMOTE.slice(100..).unwrap().len, 0);
        let backwards = REMOTE.slice((Bound::Included(5), Bound::Excluded(4)));
        assert_eq!(backwards, Err(RangeError::Backwards { start: 5, end: 4 }));
    }

    #[test]
    fn a_remote_word_is_aligned_and_within_the_whole() {
        assert!(REMOTE.word(88).is_ok());
        assert!(matches!(REMOTE.word(96), Err(RangeError::Outside { .. })));
        assert!(matches!(REMOTE.word(4), Err(RangeError::Misaligned { .. })));
    }

    #[test]
    fn a_peers_impossible_address_is_refused() {
        let liar = RemoteRegion {
            addr: u64::MAX - 7,
            ..REMOTE
        };
        assert!(liar.word(64).is_err());
        assert!(liar.slice(50..).is_err());
    }
}
