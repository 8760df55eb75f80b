//! Values of structure members, mostly near the valid ones.

use super::harness::Harness;
use arbitrary::Arbitrary;
use std::ptr;
use urxe_verbs::ffi::*;

/// Four bytes that overwrite a part of a structure.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct ByteOverwrite(u8, u32);

/// Overwrites parts of `value`.
///
/// # Safety
/// Any bytes must be a valid `T`, or the caller must set the members for which they are not.
pub(super) unsafe fn poke<T: Copy>(value: &mut T, pokes: &[ByteOverwrite]) {
    let last = size_of::<T>() - size_of::<u32>();
    for ByteOverwrite(at, bytes) in pokes {
        let at = usize::from(*at) % (last + 1);
        // SAFETY: `at + 4` is at most the size of `T`, so the write is within `value`.
        unsafe {
            let place = ptr::from_mut(value).byte_add(at).cast::<u32>();
            place.write_unaligned(*bytes);
        }
    }
}

/// A number of entries: a few, some, or more than the limit. Others would only take memory.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Count {
    Few(u8),
    More(u16),
    TooMany(u32),
}

impl Count {
    pub(super) fn get(self) -> u32 {
        match self {
            Count::Few(count) => count.into(),
            Count::More(count) => u32::from(count) % 1000,
            // More than the maximum size of a completion queue, the largest limit.
            Count::TooMany(count) => count | 1 << 23,
        }
    }
}

/// Bits of a mask: the low byte, or all.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Bits {
    Low(u8),
    Any(u32),
}

impl Bits {
    pub(super) fn get(self) -> u32 {
        match self {
            Bits::Low(bits) => bits.into(),
            Bits::Any(bits) => bits,
        }
    }
}

/// An address in a work request.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Place {
    /// An offset in the program's memory.
    At(u16),
    Anywhere(u64),
}

impl Place {
    pub(super) fn addr(self, harness: &Harness) -> u64 {
        match self {
            Place::At(offset) => harness.memory.addr(offset),
            Place::Anywhere(addr) => addr,
        }
    }

    /// The address for data that the call itself reads, which must be in the program's memory.
    pub(super) fn readable(self, harness: &Harness) -> u64 {
        match self {
            Place::At(offset) => harness.memory.addr(offset),
            Place::Anywhere(addr) => harness.memory.addr(addr as u16),
        }
    }
}

/// A length in a work request.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Length {
    Short(u8),
    Middle(u16),
    Any(u32),
}

impl Length {
    pub(super) fn get(self) -> u32 {
        match self {
            Length::Short(length) => length.into(),
            Length::Middle(length) => length.into(),
            Length::Any(length) => length,
        }
    }
}

/// A local or remote key.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Key {
    Region(u8),
    Window(u8),
    Any(u32),
}

impl Key {
    pub(super) fn get(self, harness: &Harness) -> u32 {
        match self {
            // SAFETY: `pick` returns null or a live object.
            Key::Region(which) => unsafe {
                harness
                    .pick::<ibv_mr>(which)
                    .as_ref()
                    .map_or(0, |mr| mr.rkey)
            },
            // SAFETY: `pick` returns null or a live object.
            Key::Window(which) => unsafe {
                harness
                    .pick::<ibv_mw>(which)
                    .as_ref()
                    .map_or(0, |mw| mw.rkey)
            },
            Key::Any(key) => key,
        }
    }
}

/// A scatter/gather element.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Element {
    place: Place,
    length: Length,
    key: Key,
    /// Replaces the element by a whole region, or one byte less or more.
    whole: Option<(u8, i8)>,
}

impl Element {
    /// Returns the element. With `readable`, its memory must be the program's, as the call reads
    /// it.
    pub(super) fn to_verbs(self, harness: &Harness, readable: bool) -> ibv_sge {
        let region = |which| harness.pick::<ibv_mr>(which);
        if let Some((which, over)) = self.whole.filter(|_| !readable)
            // SAFETY: `pick` returns null or a live object.
            && let Some(region) = unsafe { region(which).as_ref() }
        {
            let length = (region.length as u32).saturating_add_signed(over.signum().into());
            return ibv_sge {
                addr: region.addr.addr() as u64,
                length,
                lkey: region.lkey,
            };
        }
        ibv_sge {
            addr: match readable {
                true => self.place.readable(harness),
                false => self.place.addr(harness),
            },
            length: self.length.get(),
            lkey: self.key.get(harness),
        }
    }
}

/// The elements of a work request, and the number that the program passes.
#[derive(Arbitrary, Debug)]
pub(super) struct Elements {
    list: Vec<Element>,
    /// An invalid number in place of the right one.
    wrong: Option<i32>,
}

impl Elements {
    /// Returns the list, which must outlive the pointer to it, and the number.
    pub(super) fn to_verbs(&self, harness: &Harness, readable: bool) -> (Vec<ibv_sge>, i32) {
        let list: Vec<_> = self
            .list
            .iter()
            .map(|e| e.to_verbs(harness, readable))
            .collect();
        let count = match self.wrong {
            Some(number) if number < 0 => number,
            Some(number) => number | 1 << 20,
            None => list.len() as i32,
        };
        (list, count)
    }
}

/// An address and key of the peer's memory.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Remote {
    place: Place,
    key: Key,
}

impl Remote {
    pub(super) fn get(self, harness: &Harness) -> (u64, u32) {
        (self.place.addr(harness), self.key.get(harness))
    }
}

/// The memory that a window is bound to.
#[derive(Arbitrary, Debug)]
pub(super) struct Range {
    region: u8,
    place: Place,
    length: Length,
    access: Bits,
}

impl Range {
    pub(super) fn to_verbs(&self, harness: &Harness) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: harness.pick(self.region),
            addr: self.place.addr(harness),
            length: self.length.get().into(),
            mw_access_flags: self.access.get(),
        }
    }
}

/// Returns the address of this host, overwritten in places.
pub(super) fn address(pokes: &[ByteOverwrite]) -> ibv_ah_attr {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw };
    attr.grh.hop_limit = 64;
    attr.is_global = 1;
    attr.port_num = 1;
    // SAFETY: all members are integers or integer arrays, for which any bytes are valid.
    unsafe { poke(&mut attr, pokes) };
    attr
}
