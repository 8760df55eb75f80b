//! Registered memory in blocks of one size. Each block has one owner, or is free.
#![forbid(unsafe_code)]

use crate::free_list::FreeList;
use std::sync::Arc;
use std::task::{Poll, Waker};
use urxe_driver::owned::OwnedRegion;
use urxe_proto::work::Sge;

/// One registration, divided into blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    region: OwnedRegion,
    /// The size of a block.
    size: usize,
    free: FreeList,
}

/// One block. It returns to the free ones when it is dropped.
#[derive(Debug)]
pub(crate) struct Block {
    blocks: Arc<Blocks>,
    offset: usize,
}

impl Blocks {
    /// Divides a region into `count` blocks of `size` bytes, of which one starts every `stride`
    /// bytes. The region must have room for them.
    pub(crate) fn new(region: OwnedRegion, size: usize, stride: usize, count: usize) -> Blocks {
        Blocks {
            region,
            size,
            free: FreeList::new((0..count).rev().map(|number| number * stride).collect()),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn take(self: &Arc<Self>) -> Option<Block> {
        let offset = self.free.take()?;
        Some(self.block(offset))
    }

    /// See [`FreeList::poll_take`].
    pub(crate) fn poll_take(
        self: &Arc<Self>,
        ticket: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Block> {
        let offset = self.free.poll_take(ticket, waker);
        offset.map(|offset| self.block(offset))
    }

    /// See [`FreeList::leave`].
    pub(crate) fn leave(&self, ticket: u64) {
        self.free.leave(ticket);
    }

    /// The number of free blocks.
    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    fn block(self: &Arc<Self>, offset: usize) -> Block {
        Block {
            blocks: Arc::clone(self),
            offset,
        }
    }
}

impl Block {
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.blocks.size
    }

    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The registration that it is a part of.
    #[inline]
    pub(crate) fn region(&self) -> &OwnedRegion {
        &self.blocks.region
    }

    /// The scatter/gather element of its first `len` bytes, at most 2^32 - 1.
    #[inline]
    pub(crate) fn sge(&self, len: usize) -> Sge {
        let mr = self.region().mr();
        Sge {
            addr: mr.addr() + self.offset as u64,
            length: u32::try_from(len).unwrap_or(u32::MAX),
            lkey: mr.lkey(),
        }
    }

    /// Deregisters the memory and returns its bytes, if the block is all of the registration.
    pub(crate) fn into_vec(self) -> Result<Vec<u8>, Block> {
        let is_whole = self.region().mr().len() == self.size() as u64;
        if !is_whole || Arc::strong_count(&self.blocks) > 1 {
            return Err(self);
        }
        let blocks = Arc::clone(&self.blocks);
        // Dropping the block releases its reference.
        drop(self);
        let blocks = Arc::into_inner(blocks).expect("this is the only reference");
        Ok(blocks.region.into_vec())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.blocks.free.put(self.offset);
    }
}
