//! Memory windows: keys for parts of memory regions, given and taken by work requests (10.6.7).
//!
//! A window of type 1 gets a new key each time it is bound; one of type 2 lets the program choose
//! the low 8 bits of it, belongs to the queue pair that bound it (the specification's type 2B), and
//! has to be invalidated before it is bound again.
//!
//! Windows stand in the table of regions, where packets look for keys. Binding happens while packets
//! are handled and the table is held for reading, so what a window is bound to has a lock of its own.
//! It is the last in the order of locks: nothing is locked while it is held.

use crate::event_queue::lock;
use crate::pd::Pd;
use crate::regions::{KEY_VARIANT, Place, RegionTable, regions, regions_mut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use urxe_proto::host::{Access, MemoryError, WindowBind};
use urxe_proto::ids::{LKey, Qpn, RKey};

/// The two kinds of windows; the numbers of `enum ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum WindowType {
    /// Any queue pair of the protection domain may use it.
    One = 1,
    /// It belongs to the queue pair through which it was bound.
    Two = 2,
}

/// What may be asked of a window, whatever remote access the region itself grants. The local rights
/// that programs ask for with it mean nothing here.
const SUPPORTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT)
    .union(Access::ZERO_BASED);

/// Access that changes the region's memory.
const CHANGES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// A window, as the table of regions has it.
#[derive(Debug)]
pub(crate) struct Window {
    /// The protection domain's number.
    pd: u64,
    kind: WindowType,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The whole key.
    key: u32,
    bound: Option<Binding>,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
struct Binding {
    region: LKey,
    /// The queue pair that may use it, if that is only one.
    qpn: Option<Qpn>,
    access: Access,
    /// The region's address for its first byte.
    addr: u64,
    len: u64,
}

impl RegionTable {
    /// See [`urxe_proto::host::Memory::bind_window`].
    pub(crate) fn bind_window(
        &self,
        pd: &Pd,
        qpn: Qpn,
        bind: &WindowBind,
    ) -> Result<(), MemoryError> {
        let window = self.window(bind.window.0)?;
        // All belong to the same domain (C10-72).
        if window.pd != pd.id() {
            return Err(MemoryError::Key);
        }
        let mut state = lock(&window.state);
        // The key of one of type 1 is not the program's business.
        if window.kind == WindowType::Two && state.key != bind.window.0 {
            return Err(MemoryError::Key);
        }
        // The program has to invalidate one of type 2 first, and cannot do that by binding nothing
        // (o10-37.2.30, o10-37.2.40).
        if window.kind == WindowType::Two && (state.bound.is_some() || bind.len == 0) {
            return Err(MemoryError::Window);
        }
        let bound = match bind.len {
            0 => None,
            _ => Some(self.binding(pd, qpn, window.kind, bind)?),
        };
        self.release(state.bound.take());
        if let Some(region) = bound.and_then(|bound| self.region(bound.region)) {
            region.windows.fetch_add(1, Ordering::AcqRel);
        }
        state.key = (bind.window.0 & !KEY_VARIANT) | (bind.new_key.0 & KEY_VARIANT);
        state.bound = bound;
        Ok(())
    }

    /// Checks what a window is to be bound to.
    fn binding(
        &self,
        pd: &Pd,
        qpn: Qpn,
        kind: WindowType,
        bind: &WindowBind,
    ) -> Result<Binding, MemoryError> {
        if !SUPPORTED.contains(bind.access) {
            return Err(MemoryError::Permission);
        }
        // o10-36.2.2
        if kind == WindowType::One && bind.access.contains(Access::ZERO_BASED) {
            return Err(MemoryError::Window);
        }
        let region = self.find(bind.region.0, pd.id())?;
        // C10-73, and C10-74 on what changes memory. Addresses of a window are the region's, which
        // one whose addresses count from 0 does not have.
        if !region.access.contains(Access::MW_BIND)
            || region.access.contains(Access::ZERO_BASED)
            || (bind.access.intersects(CHANGES) && !region.access.contains(Access::LOCAL_WRITE))
        {
            return Err(MemoryError::Permission);
        }
        // C10-75
        region.locate(bind.addr, bind.len)?;
        Ok(Binding {
            region: bind.region,
            qpn: (kind == WindowType::Two).then_some(qpn),
            access: bind.access,
            addr: bind.addr,
            len: bind.len,
        })
    }

    /// A queue pair, or its peer, takes the key away (10.6.7.2.7): only windows of type 2 can lose
    /// it so, and only through the queue pair that they belong to.
    pub(crate) fn invalidate(&self, pd: &Pd, qpn: Qpn, rkey: RKey) -> Result<(), MemoryError> {
        let window = self.window(rkey.0)?;
        if window.pd != pd.id() {
            return Err(MemoryError::Key);
        }
        let mut state = lock(&window.state);
        if state.key != rkey.0 {
            return Err(MemoryError::Key);
        }
        if window.kind != WindowType::Two {
            return Err(MemoryError::Window);
        }
        match state.bound {
            Some(Binding { qpn: owner, .. }) if owner != Some(qpn) => Err(MemoryError::Window),
            // One that is free already stays so.
            bound => {
                self.release(bound);
                state.bound = None;
                Ok(())
            }
        }
    }

    /// The queue pair goes: windows that belong to it are free again.
    pub(crate) fn free_windows_of(&self, qpn: Qpn) {
        for window in self.windows.values() {
            let mut state = lock(&window.state);
            if state.bound.is_some_and(|bound| bound.qpn == Some(qpn)) {
                self.release(state.bound.take());
            }
        }
    }

    /// The region has gone, with windows bound to it: their keys lead nowhere any more.
    pub(crate) fn free_windows_on(&self, region: LKey) {
        for window in self.windows.values() {
            let mut state = lock(&window.state);
            if state.bound.is_some_and(|bound| bound.region == region) {
                state.bound = None;
            }
        }
    }

    /// Where memory lies that a peer names by a window's key.
    pub(crate) fn through_window(
        &self,
        pd: &Pd,
        qpn: Qpn,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Place, MemoryError> {
        let window = self.window(rkey.0)?;
        let state = lock(&window.state);
        let bound = match state.bound {
            Some(bound) if state.key == rkey.0 && window.pd == pd.id() => bound,
            _ => return Err(MemoryError::Key),
        };
        if bound.qpn.is_some_and(|owner| owner != qpn) {
            return Err(MemoryError::Key);
        }
        if !bound.access.contains(access) {
            return Err(MemoryError::Permission);
        }
        let first = match bound.access.contains(Access::ZERO_BASED) {
            true => 0,
            false => bound.addr,
        };
        let offset = addr.checked_sub(first).ok_or(MemoryError::Range)?;
        if offset.checked_add(len).is_none_or(|end| end > bound.len) {
            return Err(MemoryError::Range);
        }
        let region = self.find(bound.region.0, pd.id())?;
        region.locate(bound.addr + offset, len)
    }

    pub(crate) fn window(&self, key: u32) -> Result<&Window, MemoryError> {
        let window = self.windows.get(&(key & !KEY_VARIANT));
        window.ok_or(MemoryError::Key)
    }

    /// A window is not bound to its region any more.
    fn release(&self, bound: Option<Binding>) {
        if let Some(region) = bound.and_then(|bound| self.region(bound.region)) {
            region.windows.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A memory window. Dropping it deallocates it, bound or not (10.6.7.2.1).
#[derive(Debug)]
pub struct Mw {
    pd: Arc<Pd>,
    kind: WindowType,
    /// Names it in the table.
    index: u32,
}

impl Mw {
    /// Allocates a window that is bound to nothing.
    ///
    /// Allocating, and dropping, wait for who uses the table of regions: a thread must not do
    /// either while it has a [`crate::qp::Posting`].
    pub fn allocate(pd: &Arc<Pd>, kind: WindowType) -> Mw {
        let mut table = regions_mut();
        let key = table.free_key();
        let window = Window {
            pd: pd.id(),
            kind,
            state: Mutex::new(State { key, bound: None }),
        };
        let index = key & !KEY_VARIANT;
        table.windows.insert(index, window);
        Mw {
            pd: Arc::clone(pd),
            kind,
            index,
        }
    }

    /// Its key now. Not to be asked for by a thread that has a [`crate::qp::Posting`].
    pub fn rkey(&self) -> RKey {
        let held = regions();
        let window = held.table().windows.get(&self.index);
        RKey(window.map_or(self.index, |window| lock(&window.state).key))
    }

    /// Its type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let mut table = regions_mut();
        if let Some(window) = table.windows.remove(&self.index) {
            table.release(lock(&window.state).bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::{Change, Mr};
    use urxe_proto::host::AtomicOp;

    const QPN: Qpn = Qpn::new(0x11);
    const OTHER_QPN: Qpn = Qpn::new(0x12);
    const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
    const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    /// A region of 64 bytes, and a window of the same domain.
    struct Fixture {
        mr: Mr,
        mw: Mw,
        pd: Arc<Pd>,
        data: Box<[u64; 8]>,
    }

    impl Fixture {
        fn new(kind: WindowType, access: Access) -> Self {
            let pd = Pd::new();
            let mut data = Box::new([0_u64; 8]);
            let addr = data.as_mut_ptr() as u64;
            // SAFETY: the memory goes after the region.
            let mr = unsafe { Mr::register(&pd, addr, 64, addr, access) }.unwrap();
            let mw = Mw::allocate(&pd, kind);
            Fixture { mr, mw, pd, data }
        }

        /// The bind of bytes 16 to 32.
        fn wish(&self, access: Access) -> WindowBind {
            let window = self.mw.rkey();
            WindowBind {
                window,
                new_key: RKey(window.0.wrapping_add(1)),
                region: self.mr.lkey(),
                addr: self.mr.addr() + 16,
                len: 16,
                access,
            }
        }

        fn bind(&self, wish: &WindowBind) -> Result<(), MemoryError> {
            regions().table().bind_window(&self.pd, QPN, wish)
        }

        fn invalidate(&self, qpn: Qpn, key: RKey) -> Result<(), MemoryError> {
            regions().table().invalidate(&self.pd, qpn, key)
        }

        /// Writes so many bytes from byte `offset` of the region on, through the window's key.
        fn write(&self, offset: u64, len: usize) -> Result<(), MemoryError> {
            self.write_as(QPN, self.mw.rkey(), self.mr.addr() + offset, len)
        }

        fn write_as(&self, qpn: Qpn, key: RKey, addr: u64, len: usize) -> Result<(), MemoryError> {
            let data = vec![7; len];
            let held = regions();
            held.table().remote_write(&self.pd, qpn, key, addr, &data)
        }
    }

    use MemoryError::{Key, Permission, Range};

    #[test]
    fn a_window_opens_its_range_with_its_own_rights() {
        let fixture = Fixture::new(WindowType::One, BINDABLE);
        assert_eq!(fixture.write(16, 8), Err(Key));
        fixture.bind(&fixture.wish(Access::REMOTE_WRITE)).unwrap();
        fixture.write(16, 16).unwrap();
        fixture.write(24, 8).unwrap();
        assert_eq!(fixture.write(15, 8), Err(Range));
        assert_eq!(fixture.write(25, 8), Err(Range));
        let (key, addr) = (fixture.mw.rkey(), fixture.mr.addr() + 16);
        let held = regions();
        let read = held
            .table()
            .remote_read(&fixture.pd, QPN, key, addr, &mut [0; 8]);
        let add = AtomicOp::FetchAdd(1);
        let atomic = held.table().remote_atomic(&fixture.pd, QPN, key, addr, add);
        assert_eq!((read, atomic), (Err(Permission), Err(Permission)));
        // The region's own key grants nothing that the region does not.
        assert_eq!(
            held.table()
                .remote_write(&fixture.pd, QPN, fixture.mr.rkey(), addr, &[1; 8]),
            Err(Permission)
        );
        drop(held);
        assert_eq!(
            fixture.data[1..5],
            [0, 0x0707_0707_0707_0707, 0x0707_0707_0707_0707, 0]
        );
    }

    #[test]
    fn binding_type_1_again_changes_its_key_and_the_old_one_is_void() {
        let fixture = Fixture::new(WindowType::One, BINDABLE);
        let addr = fixture.mr.addr() + 16;
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let first = fixture.mw.rkey();
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let second = fixture.mw.rkey();
        assert_ne!(first, second);
        assert_eq!(fixture.write_as(QPN, first, addr, 8), Err(Key));
        fixture.write_as(OTHER_QPN, second, addr, 8).unwrap();
    }

    #[test]
    fn binding_type_1_to_nothing_unbinds_it() {
        let fixture = Fixture::new(WindowType::One, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        assert!(fixture.mr.has_windows());
        let nothing = WindowBind {
            region: LKey(0),
            addr: 0,
            len: 0,
            ..fixture.wish(Access::empty())
        };
        fixture.bind(&nothing).unwrap();
        assert!(!fixture.mr.has_windows());
        assert_eq!(fixture.write(16, 8), Err(Key));
        assert_eq!(fixture.write(16, 0), Err(Key));
    }

    #[test]
    fn the_low_byte_of_a_type_2_key_is_the_programs() {
        let fixture = Fixture::new(WindowType::Two, BINDABLE);
        let before = fixture.mw.rkey();
        let new_key = RKey(0xffff_ff00 | (before.0.wrapping_add(77) & 0xff));
        let wish = WindowBind {
            new_key,
            ..fixture.wish(READ_WRITE)
        };
        fixture.bind(&wish).unwrap();
        let after = fixture.mw.rkey();
        assert_eq!(after.0, (before.0 & !0xff) | (new_key.0 & 0xff));
        fixture.write(16, 8).unwrap();
        assert_eq!(
            fixture.write_as(QPN, before, fixture.mr.addr() + 16, 8),
            Err(Key)
        );
    }

    #[test]
    fn type_2_is_bound_with_its_present_key_only() {
        let fixture = Fixture::new(WindowType::Two, BINDABLE);
        let window = RKey(fixture.mw.rkey().0 ^ 1);
        let wish = WindowBind {
            window,
            ..fixture.wish(READ_WRITE)
        };
        assert_eq!(fixture.bind(&wish), Err(Key));
    }

    #[test]
    fn type_2_has_to_be_invalidated_before_it_is_bound_again() {
        let fixture = Fixture::new(WindowType::Two, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let again = fixture.wish(READ_WRITE);
        assert_eq!(fixture.bind(&again), Err(MemoryError::Window));
        let nothing = WindowBind { len: 0, ..again };
        assert_eq!(fixture.bind(&nothing), Err(MemoryError::Window));
        fixture.invalidate(QPN, fixture.mw.rkey()).unwrap();
        assert_eq!(fixture.write(16, 8), Err(Key));
        fixture.bind(&again).unwrap();
        fixture.write(16, 8).unwrap();
    }

    #[test]
    fn type_2_belongs_to_the_queue_pair_that_bound_it() {
        let fixture = Fixture::new(WindowType::Two, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let (key, addr) = (fixture.mw.rkey(), fixture.mr.addr() + 16);
        assert_eq!(fixture.write_as(OTHER_QPN, key, addr, 8), Err(Key));
        assert_eq!(fixture.invalidate(OTHER_QPN, key), Err(MemoryError::Window));
        fixture.write_as(QPN, key, addr, 8).unwrap();
    }

    #[test]
    fn type_2_is_free_when_its_queue_pair_goes() {
        let fixture = Fixture::new(WindowType::Two, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        regions().table().free_windows_of(OTHER_QPN);
        assert!(fixture.mr.has_windows());
        regions().table().free_windows_of(QPN);
        assert!(!fixture.mr.has_windows());
        assert_eq!(fixture.write(16, 8), Err(Key));
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
    }

    #[test]
    fn only_keys_of_type_2_windows_can_be_invalidated() {
        let fixture = Fixture::new(WindowType::One, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let refused = fixture.invalidate(QPN, fixture.mw.rkey());
        assert_eq!(refused, Err(MemoryError::Window));
        assert_eq!(fixture.invalidate(QPN, fixture.mr.rkey()), Err(Key));
        let other = regions()
            .table()
            .invalidate(&Pd::new(), QPN, fixture.mw.rkey());
        assert_eq!(other, Err(Key));
        fixture.write(16, 8).unwrap();
    }

    #[test]
    fn zero_based_windows_are_named_from_0_and_type_1_cannot_be_one() {
        let wish = READ_WRITE | Access::ZERO_BASED;
        let one = Fixture::new(WindowType::One, BINDABLE);
        assert_eq!(one.bind(&one.wish(wish)), Err(MemoryError::Window));
        let two = Fixture::new(WindowType::Two, BINDABLE);
        two.bind(&two.wish(wish)).unwrap();
        let key = two.mw.rkey();
        two.write_as(QPN, key, 8, 8).unwrap();
        assert_eq!(two.write_as(QPN, key, 9, 8), Err(Range));
        assert_eq!(two.write(16, 8), Err(Range));
        assert_eq!(two.data[2..5], [0, 0x0707_0707_0707_0707, 0]);
    }

    #[test]
    fn the_region_must_allow_binding_and_its_own_writing() {
        let cases = [
            (Access::LOCAL_WRITE, Access::REMOTE_READ, Err(Permission)),
            (Access::MW_BIND, Access::REMOTE_READ, Ok(())),
            (Access::MW_BIND, Access::REMOTE_WRITE, Err(Permission)),
            (Access::MW_BIND, Access::REMOTE_ATOMIC, Err(Permission)),
            (BINDABLE, READ_WRITE | Access::REMOTE_ATOMIC, Ok(())),
            (BINDABLE | Access::ZERO_BASED, READ_WRITE, Err(Permission)),
            (
                BINDABLE,
                READ_WRITE | Access::from_bits_retain(1 << 15),
                Err(Permission),
            ),
        ];
        for (region, window, expected) in cases {
            let fixture = Fixture::new(WindowType::Two, region);
            let bound = fixture.bind(&fixture.wish(window));
            assert_eq!(bound, expected, "{window:?} on {region:?}");
        }
    }

    #[test]
    fn the_range_must_lie_within_the_region() {
        let fixture = Fixture::new(WindowType::One, BINDABLE);
        let wish = fixture.wish(READ_WRITE);
        for (addr, len) in [
            (wish.addr, 49),
            (fixture.mr.addr() - 1, 16),
            (wish.addr, u64::MAX),
            (u64::MAX, 16),
        ] {
            let wish = WindowBind { addr, len, ..wish };
            assert_eq!(fixture.bind(&wish), Err(Range));
        }
        fixture.bind(&WindowBind { len: 48, ..wish }).unwrap();
    }

    #[test]
    fn window_region_and_queue_pair_belong_to_one_domain() {
        let (fixture, other) = (
            Fixture::new(WindowType::Two, BINDABLE),
            Fixture::new(WindowType::Two, BINDABLE),
        );
        let wish = fixture.wish(READ_WRITE);
        let by_other = regions().table().bind_window(&other.pd, QPN, &wish);
        assert_eq!(by_other, Err(Key));
        let region = other.mr.lkey();
        assert_eq!(fixture.bind(&WindowBind { region, ..wish }), Err(Key));
    }

    #[test]
    fn a_failed_bind_changes_nothing() {
        let fixture = Fixture::new(WindowType::One, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let key = fixture.mw.rkey();
        let wish = WindowBind {
            len: 65,
            ..fixture.wish(READ_WRITE)
        };
        assert_eq!(fixture.bind(&wish), Err(Range));
        assert_eq!(fixture.mw.rkey(), key);
        fixture.write(16, 8).unwrap();
        assert!(fixture.mr.has_windows());
    }

    #[test]
    fn a_region_with_windows_is_not_reregistered() {
        let mut fixture = Fixture::new(WindowType::One, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let change = Change {
            access: Some(Access::LOCAL_WRITE),
            ..Change::default()
        };
        // SAFETY: the memory outlives the region.
        let refused = unsafe { fixture.mr.reregister(&change) };
        assert_eq!(refused.unwrap_err().errno(), libc::EBUSY);
        fixture.write(16, 8).unwrap();
    }

    #[test]
    fn windows_and_regions_go_in_any_order() {
        let Fixture { mr, mw, pd, data } = Fixture::new(WindowType::One, BINDABLE);
        let fixture = Fixture {
            mr,
            mw,
            pd: Arc::clone(&pd),
            data,
        };
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let (key, addr) = (fixture.mw.rkey(), fixture.mr.addr() + 16);
        let Fixture { mr, mw, data, .. } = fixture;
        drop(mr);
        let gone = regions().table().remote_write(&pd, QPN, key, addr, &[1; 8]);
        assert_eq!(gone, Err(Key));
        drop(mw);
        assert_eq!(data[2], 0);

        let fixture = Fixture::new(WindowType::Two, BINDABLE);
        fixture.bind(&fixture.wish(READ_WRITE)).unwrap();
        let Fixture { mr, mw, .. } = fixture;
        drop(mw);
        assert!(!mr.has_windows());
    }
}
