//! Values that a program may put into its structures, mostly near the ones that mean something.

use super::world::World;
use arbitrary::Arbitrary;
use std::ptr;
use urxe_verbs::ffi::*;

/// Four bytes that are put somewhere into a structure.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Poke(u8, u32);

/// Changes `value` in places.
///
/// # Safety
/// Any bytes are a `T`, or what is not is set anew before it is used.
pub(super) unsafe fn poke<T: Copy>(value: &mut T, pokes: &[Poke]) {
    let room = size_of::<T>() - size_of::<u32>();
    for Poke(at, bytes) in pokes {
        let at = usize::from(*at) % (room + 1);
        // SAFETY: within the structure, wherever its members are.
        unsafe {
            let place = ptr::from_mut(value).byte_add(at).cast::<u32>();
            place.write_unaligned(*bytes);
        }
    }
}

/// How many there shall be of something: a few, or more than there can be. What lies between would only fill memory.
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
            // Above the most entries of a completion queue, which are the most of anything.
            Count::TooMany(count) => count | 1 << 23,
        }
    }
}

/// Bits of a mask: few of the lowest, or any.
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
    /// So far into the program's memory.
    At(u16),
    Anywhere(u64),
}

impl Place {
    pub(super) fn addr(self, world: &World) -> u64 {
        match self {
            Place::At(offset) => world.memory.addr(offset),
            Place::Anywhere(addr) => addr,
        }
    }

    /// The same for what is read at once, which the program must have.
    pub(super) fn own(self, world: &World) -> u64 {
        match self {
            Place::At(offset) => world.memory.addr(offset),
            Place::Anywhere(addr) => world.memory.addr(addr as u16),
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

/// A key, local or remote.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Key {
    Region(u8),
    Window(u8),
    Any(u32),
}

impl Key {
    pub(super) fn get(self, world: &World) -> u32 {
        match self {
            // SAFETY: what is picked is null or lives.
            Key::Region(which) => unsafe {
                world.pick::<ibv_mr>(which).as_ref().map_or(0, |mr| mr.rkey)
            },
            // SAFETY: as above.
            Key::Window(which) => unsafe {
                world.pick::<ibv_mw>(which).as_ref().map_or(0, |mw| mw.rkey)
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
    /// Instead, all of a region, or nearly, or more.
    whole: Option<(u8, i8)>,
}

impl Element {
    /// `own` says that what it names is read at once, and therefore must be there.
    pub(super) fn shown(self, world: &World, own: bool) -> ibv_sge {
        let region = |which| world.pick::<ibv_mr>(which);
        if let Some((which, over)) = self.whole.filter(|_| !own)
            // SAFETY: what is picked is null or lives.
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
            addr: match own {
                true => self.place.own(world),
                false => self.place.addr(world),
            },
            length: self.length.get(),
            lkey: self.key.get(world),
        }
    }
}

/// The elements of a work request, and how many the program says that there are.
#[derive(Arbitrary, Debug)]
pub(super) struct Elements {
    list: Vec<Element>,
    /// A number that no queue takes, in place of the right one.
    wrong: Option<i32>,
}

impl Elements {
    /// The list, which must outlive the pointer to it, and the number.
    pub(super) fn shown(&self, world: &World, own: bool) -> (Vec<ibv_sge>, i32) {
        let list: Vec<_> = self.list.iter().map(|e| e.shown(world, own)).collect();
        let count = match self.wrong {
            Some(number) if number < 0 => number,
            Some(number) => number | 1 << 20,
            None => list.len() as i32,
        };
        (list, count)
    }
}

/// Where a peer's memory is.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Remote {
    place: Place,
    key: Key,
}

impl Remote {
    pub(super) fn get(self, world: &World) -> (u64, u32) {
        (self.place.addr(world), self.key.get(world))
    }
}

/// What a memory window is bound to.
#[derive(Arbitrary, Debug)]
pub(super) struct Range {
    region: u8,
    place: Place,
    length: Length,
    access: Bits,
}

impl Range {
    pub(super) fn shown(&self, world: &World) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: world.pick(self.region),
            addr: self.place.addr(world),
            length: self.length.get().into(),
            mw_access_flags: self.access.get(),
        }
    }
}

/// The way to this host, at an index of its own, changed in places.
pub(super) fn address(pokes: &[Poke]) -> ibv_ah_attr {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw };
    attr.grh.hop_limit = 64;
    attr.is_global = 1;
    attr.port_num = 1;
    // SAFETY: it is numbers.
    unsafe { poke(&mut attr, pokes) };
    attr
}
