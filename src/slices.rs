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
    None,
    One(Sge),
    Two([Sge; 2]),
    More(Vec<Sge>),
}

impl Deref for Elements {
    type Target = [Sge];

    #[inline(always)]
    fn deref(&self) -> &[Sge] {
        match self {
            Elements::One(element) => std::slice::from_ref(element),
            other => other.several(),
        }
    }
}

impl Elements {
    #[inline(never)]
    fn several(&self) -> &[Sge] {
        match self {
            Elements::None => &[],
            Elements::One(element) => std::slice::from_ref(element),
            Elements::Two(elements) => elements,
            Elements::More(elements) => elements,
        }
    }
}

// Not inlined into a post, where each match on the number of slices would be a jump for buffers
// too.
impl SliceList {
    #[inline(never)]
    fn total(&self) -> u64 {
        self.iter().map(|slice| slice.len() as u64).sum()
    }

    #[inline(never)]
    fn check(&self, pd: u64, max: u32) -> Result<(), PostError> {
        check(self.len(), max, self.iter().all(|slice| slice.pd() == pd))
    }

    #[inline(never)]
    fn elements(&self) -> Elements {
        match &**self {
            [] => Elements::None,
            [one] => Elements::One(one.sge()),
            [one, two] => Elements::Two([one.sge(), two.sge()]),
            more => Elements::More(more.iter().map(LocalSlice::sge).collect()),
        }
    }
}

impl Memory {
    /// The length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self, extent: Extent) -> u64 {
        match self {
            Memory::Buffer(buffer) => buffer.extent(extent) as u64,
            Memory::Slices(slices) => slices.total(),
        }
    }

    /// Checks the protection domain and the number of elements.
    #[inline(always)]
    pub(crate) fn check(&self, pd: u64, max: u32) -> Result<(), PostError> {
        match self {
            Memory::Buffer(buffer) => match buffer.pd() {
                Some(of_buffer) => check(1, max, of_buffer == pd),
                None => Ok(()),
            },
            Memory::Slices(slices) => slices.check(pd, max),
        }
    }

    /// The scatter/gather elements.
    #[inline(always)]
    pub(crate) fn elements(&self, extent: Extent) -> Elements {
        match self {
            Memory::Buffer(buffer) => buffer.sge(extent).map_or(Elements::None, Elements::One),
            Memory::Slices(slices) => slices.elements(),
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

/// Checks the number of elements, and that they are of the right protection domain.
#[inline(always)]
fn check(given: usize, max: u32, same_pd: bool) -> Result<(), PostError> {
    if given > max as usize {
        return Err(PostError::TooManySlices { given, max });
    }
    match same_pd {
        true => Ok(()),
        false => Err(PostError::OtherProtectionDomain),
    }
}
