//! Tables of the objects that packets name: memory by key, queue pairs by number. A lookup takes
//! constant time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;
use urxe_proto::ids::Qpn;

/// The bits of a key that a lookup ignores: the low byte, which belongs to the program for memory
/// windows (10.6.7.2.6), and changes with every bind (`ibv_inc_rkey`).
pub const KEY_VARIANT: u32 = 0xff;

/// A map by key, which ignores the key's low byte.
#[derive(Debug)]
pub struct ByKey<T>(HashMap<u32, T, BuildHasherDefault<KeyHasher>>);

impl<T> Default for ByKey<T> {
    fn default() -> Self {
        ByKey(HashMap::default())
    }
}

impl<T> ByKey<T> {
    /// Returns the value of `key`.
    pub fn get(&self, key: u32) -> Option<&T> {
        self.0.get(&(key & !KEY_VARIANT))
    }

    /// Returns the value of `key`, for changing it.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.0.get_mut(&(key & !KEY_VARIANT))
    }

    /// Sets the value of `key`, and replaces any earlier one.
    pub fn insert(&mut self, key: u32, named: T) {
        self.0.insert(key & !KEY_VARIANT, named);
    }

    /// Removes the value of `key`, and returns it.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        self.0.remove(&(key & !KEY_VARIANT))
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }
}

/// A weak hash, for keys that this process chooses and that are random already.
#[derive(Default, Clone, Copy, Debug)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, key: u32) {
        // The hash table uses the top bits too, so the key is spread over them.
        self.0 = (self.0.rotate_left(32) ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The numbers, from a random one on, among which [`ByNumber::add`] prefers one. The search stays
/// short when most of those that fit are taken.
const PREFERRED_PLACES: usize = 1024;

/// A map by number, for the numbers of one process.
#[derive(Debug)]
pub struct ByNumber<T> {
    /// By the low bits of the number, those that the process chooses.
    slots: Vec<Option<Arc<T>>>,
    first: u32,
    count: usize,
}

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        ByNumber {
            slots: Vec::new(),
            first: 0,
            count: 0,
        }
    }
}

impl<T> ByNumber<T> {
    /// Returns the object with this number.
    pub fn get(&self, number: Qpn) -> Option<&Arc<T>> {
        self.slots.get(self.place(number)?)?.as_ref()
    }

    /// Adds the object that `make` makes for a free number in `range`, which must be the same in
    /// every call. The number is random, so that it cannot be guessed; one for which `fits` returns
    /// true is preferred, among the next 1,024 numbers. `None` when no number is free.
    ///
    /// # Errors
    /// The error of `make`; the number stays free.
    pub fn add<E>(
        &mut self,
        range: RangeInclusive<u32>,
        fits: impl Fn(Qpn) -> bool,
        make: impl FnOnce(Qpn) -> Result<Arc<T>, E>,
    ) -> Result<Option<Arc<T>>, E> {
        let size = range.clone().count();
        self.first = *range.start();
        if self.slots.is_empty() {
            self.slots.resize(size, None);
        }
        if self.count == size {
            return Ok(None);
        }
        let start = urxe_net::random::below(size);
        let number = |at: usize| Qpn::new(self.first + at as u32);
        let places = || (start..size).chain(0..start);
        let is_free = |at: &usize| self.slots[*at].is_none();
        let mut near = places().take(PREFERRED_PLACES);
        let preferred = near.find(|at| is_free(at) && fits(number(*at)));
        let Some(free) = preferred.or_else(|| places().find(is_free)) else {
            return Ok(None);
        };
        let made = make(number(free))?;
        self.slots[free] = Some(Arc::clone(&made));
        self.count += 1;
        Ok(Some(made))
    }

    /// Removes the object with this number, which is then free, and returns it.
    pub fn remove(&mut self, number: Qpn) -> Option<Arc<T>> {
        let at = self.place(number)?;
        let removed = self.slots.get_mut(at)?.take();
        if removed.is_some() {
            self.count -= 1;
        }
        removed
    }

    /// Returns all objects.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.slots.iter().flatten()
    }

    fn place(&self, number: Qpn) -> Option<usize> {
        Some(number.get().checked_sub(self.first)? as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_byte_of_a_key_does_not_select_the_region() {
        let mut table = ByKey::default();
        table.insert(0x1234_5678, 'a');
        table.insert(0x1234_5778, 'b');
        assert_eq!(table.get(0x1234_56ff), Some(&'a'));
        table.insert(0x1234_5600, 'c');
        assert_eq!(table.values().count(), 2);
        assert_eq!(table.remove(0x1234_5601), Some('c'));
        assert_eq!(table.get(0x1234_5678), None);
    }

    #[test]
    fn a_number_is_assigned_once_until_freed() {
        let mut table = ByNumber::default();
        let add = |table: &mut ByNumber<Qpn>| {
            let made = table.add(7..=9, |_| true, |number| Ok::<_, ()>(Arc::new(number)));
            made.unwrap().map(|number| *number)
        };
        let mut given: Vec<_> = (0..3).map(|_| add(&mut table).unwrap().get()).collect();
        given.sort_unstable();
        assert_eq!(given, [7, 8, 9]);
        assert_eq!(add(&mut table), None);
        assert!(table.remove(Qpn::new(8)).is_some());
        assert!(table.remove(Qpn::new(8)).is_none());
        assert_eq!(add(&mut table), Some(Qpn::new(8)));
        assert_eq!(table.get(Qpn::new(8)).map(|number| number.get()), Some(8));
        for outside in [0, 6, 10] {
            assert!(table.get(Qpn::new(outside)).is_none());
        }
        assert_eq!(table.iter().count(), 3);
    }

    #[test]
    fn a_number_that_fits_is_preferred() {
        let mut table = ByNumber::default();
        let mut add = || {
            let make = |number| Ok::<_, ()>(Arc::new(number));
            let added = table.add(8..=15, |number| number.get() % 4 == 1, make);
            *added.unwrap().unwrap()
        };
        let fitting = [add(), add()].map(Qpn::get);
        assert!(fitting == [9, 13] || fitting == [13, 9]);
        assert_ne!(add().get() % 4, 1, "no other number fits");
    }

    #[test]
    fn a_failed_creation_leaves_its_number_free() {
        let mut table = ByNumber::<()>::default();
        assert_eq!(
            table.add(7..=7, |_| true, |_| Err("no memory")),
            Err("no memory")
        );
        let made = table.add(7..=7, |_| false, |_| Ok::<_, ()>(Arc::new(())));
        assert!(made.unwrap().is_some());
    }
}
