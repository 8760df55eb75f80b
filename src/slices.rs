//! The memory of a work request: slices of regions, or one buffer.
#![forbid(unsafe_code)]

use crate::buffer::{Extent, LocalBuffer};
use crate::mr::LocalSlice;
use crate::post_error::PostError;
use std::fmt;
use std::ops::Deref;
use urxe_proto::work::Sge;

/// A list of memory slices. Up to two are stored without an allocation.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::SliceList;
///
/// let (a, b) = urxe::testing::pair()?;
/// let memory = b.pd().register(64, RemoteAccess::empty())?;
/// let receive = ReceiveRequest::into([memory.slice(..2)?, memory.slice(8..)?]);
/// b.post_receive(receive)?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// // The completion returns the slices.
/// let slices: SliceList = b.cq().wait()?.buffers;
/// assert_eq!((slices[0].len(), slices[1].offset()), (2, 8));
/// assert_eq!(memory.to_vec(8..11)?, b"llo");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct SliceList(Slices);

#[derive(Clone, Default)]
enum Slices {
    #[default]
    None,
    One(LocalSlice),
    Two([LocalSlice; 2]),
    More(Vec<LocalSlice>),
}

impl Deref for SliceList {
    type Target = [LocalSlice];

    fn deref(&self) -> &[LocalSlice] {
        match &self.0 {
            Slices::None => &[],
            Slices::One(slice) => std::slice::from_ref(slice),
            Slices::Two(slices) => slices,
            Slices::More(slices) => slices,
        }
    }
}

impl From<LocalSlice> for SliceList {
    fn from(slice: LocalSlice) -> Self {
        SliceList(Slices::One(slice))
    }
}

impl From<Vec<LocalSlice>> for SliceList {
    fn from(slices: Vec<LocalSlice>) -> Self {
        SliceList(Slices::More(slices))
    }
}

impl<const N: usize> From<[LocalSlice; N]> for SliceList {
    fn from(slices: [LocalSlice; N]) -> Self {
        let mut slices = slices.into_iter();
        SliceList(match (N, slices.next(), slices.next()) {
            (1, Some(slice), None) => Slices::One(slice),
            (2, Some(first), Some(second)) => Slices::Two([first, second]),
            (_, first, second) => {
                Slices::More(first.into_iter().chain(second).chain(slices).collect())
            }
        })
    }
}

impl From<SliceList> for Vec<LocalSlice> {
    fn from(list: SliceList) -> Self {
        match list.0 {
            Slices::None => Vec::new(),
            Slices::One(slice) => vec![slice],
            Slices::Two(slices) => slices.into(),
            Slices::More(slices) => slices,
        }
    }
}

impl<'a> IntoIterator for &'a SliceList {
    type Item = &'a LocalSlice;
    type IntoIter = std::slice::Iter<'a, LocalSlice>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for SliceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The memory that a work request owns until its completion.
#[derive(Debug)]
pub(crate) enum Memory {
    Slices(SliceList),
    Buffer(LocalBuffer),
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Slices(SliceList::default())
    }
}

/// Scatter/gather elements. Up to two are stored without an allocation.
pub(crate) enum Elements {
    Few([Sge; 2], usize),
    Many(Vec<Sge>),
}

impl Deref for Elements {
    type Target = [Sge];

    fn deref(&self) -> &[Sge] {
        match self {
            Elements::Few(elements, len) => &elements[..*len],
            Elements::Many(elements) => elements,
        }
    }
}

impl Memory {
    /// The length in bytes.
    #[inline]
    pub(crate) fn len(&self, extent: Extent) -> u64 {
        match self {
            Memory::Slices(slices) => slices.iter().map(|slice| slice.len() as u64).sum(),
            Memory::Buffer(buffer) => buffer.extent(extent) as u64,
        }
    }

    /// Checks the protection domain and the number of elements.
    #[inline]
    pub(crate) fn check(&self, pd: u64, max: u32) -> Result<(), PostError> {
        let (given, same) = match self {
            Memory::Slices(slices) => (slices.len(), slices.iter().all(|slice| slice.pd() == pd)),
            Memory::Buffer(buffer) => match buffer.pd() {
                Some(of_buffer) => (1, of_buffer == pd),
                None => (0, true),
            },
        };
        if given > max as usize {
            return Err(PostError::TooManySlices { given, max });
        }
        match same {
            true => Ok(()),
            false => Err(PostError::OtherProtectionDomain),
        }
    }

    /// The scatter/gather elements.
    #[inline]
    pub(crate) fn elements(&self, extent: Extent) -> Elements {
        match self {
            Memory::Slices(SliceList(Slices::None)) => Elements::Few([Sge::default(); 2], 0),
            Memory::Slices(SliceList(Slices::One(slice))) => {
                Elements::Few([slice.sge(), Sge::default()], 1)
            }
            Memory::Slices(SliceList(Slices::Two(slices))) => {
                Elements::Few([slices[0].sge(), slices[1].sge()], 2)
            }
            Memory::Slices(SliceList(Slices::More(slices))) => {
                Elements::Many(slices.iter().map(LocalSlice::sge).collect())
            }
            Memory::Buffer(buffer) => match buffer.sge(extent) {
                Some(element) => Elements::Few([element, Sge::default()], 1),
                None => Elements::Few([Sge::default(); 2], 0),
            },
        }
    }

    /// The buffer, if it is one.
    pub(crate) fn into_buffer(self) -> Option<LocalBuffer> {
        match self {
            Memory::Slices(_) => None,
            Memory::Buffer(buffer) => Some(buffer),
        }
    }
}
