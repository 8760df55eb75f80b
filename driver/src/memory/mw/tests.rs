use super::*;
use crate::memory::mr::{Change, Mr};
use std::sync::atomic::AtomicU64;
use urxe_proto::host::AtomicOp;

const QPN: Qpn = Qpn::new(0x11);
const OTHER_QPN: Qpn = Qpn::new(0x12);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A region of 64 bytes, and a window of the same protection domain.
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
        // SAFETY: `Fixture` drops `mr` before `data`, and accesses `data` only between remote
        // accesses.
        let mr = unsafe { Mr::register(&pd, addr, 64, addr, access) }.unwrap();
        let mw = Mw::allocate(&pd, kind);
        Fixture { mr, mw, pd, data }
    }

    /// Returns the bind of bytes 16 to 32 of the region.
    fn request(&self, access: Access) -> WindowBind {
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

    fn bind(&self, request: &WindowBind) -> Result<(), MemoryError> {
        regions().table().bind_window(&self.pd, QPN, request)
    }

    fn invalidate(&self, qpn: Qpn, key: RKey) -> Result<(), MemoryError> {
        regions().table().invalidate(&self.pd, qpn, key)
    }

    /// Writes `len` bytes from byte `offset` of the region on, by the window's key.
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
    fixture
        .bind(&fixture.request(Access::REMOTE_WRITE))
        .unwrap();
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
    // The region's own key grants only the access of the region.
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
fn rebinding_type_1_invalidates_the_old_key() {
    let fixture = Fixture::new(WindowType::One, BINDABLE);
    let addr = fixture.mr.addr() + 16;
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let first = fixture.mw.rkey();
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let second = fixture.mw.rkey();
    assert_ne!(first, second);
    assert_eq!(fixture.write_as(QPN, first, addr, 8), Err(Key));
    fixture.write_as(OTHER_QPN, second, addr, 8).unwrap();
}

#[test]
fn binding_type_1_to_nothing_unbinds_it() {
    let fixture = Fixture::new(WindowType::One, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    assert!(fixture.mr.has_windows());
    let nothing = WindowBind {
        region: LKey(0),
        addr: 0,
        len: 0,
        ..fixture.request(Access::empty())
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
    let request = WindowBind {
        new_key,
        ..fixture.request(READ_WRITE)
    };
    fixture.bind(&request).unwrap();
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
    let request = WindowBind {
        window,
        ..fixture.request(READ_WRITE)
    };
    assert_eq!(fixture.bind(&request), Err(Key));
}

#[test]
fn type_2_has_to_be_invalidated_before_it_is_bound_again() {
    let fixture = Fixture::new(WindowType::Two, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let again = fixture.request(READ_WRITE);
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
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let (key, addr) = (fixture.mw.rkey(), fixture.mr.addr() + 16);
    assert_eq!(fixture.write_as(OTHER_QPN, key, addr, 8), Err(Key));
    assert_eq!(fixture.invalidate(OTHER_QPN, key), Err(MemoryError::Window));
    fixture.write_as(QPN, key, addr, 8).unwrap();
}

#[test]
fn destroying_the_queue_pair_unbinds_type_2() {
    let fixture = Fixture::new(WindowType::Two, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    regions().table().free_windows_of(OTHER_QPN);
    assert!(fixture.mr.has_windows());
    regions().table().free_windows_of(QPN);
    assert!(!fixture.mr.has_windows());
    assert_eq!(fixture.write(16, 8), Err(Key));
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
}

#[test]
fn only_keys_of_type_2_windows_can_be_invalidated() {
    let fixture = Fixture::new(WindowType::One, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let refused = fixture.invalidate(QPN, fixture.mw.rkey());
    assert_eq!(refused, Err(MemoryError::Window));
    assert_eq!(fixture.invalidate(QPN, fixture.mr.rkey()), Err(Key));
    let key = fixture.mw.rkey();
    let other = regions().table().invalidate(&Pd::new(), QPN, key);
    assert_eq!(other, Err(Key));
    fixture.write(16, 8).unwrap();
}

#[test]
fn zero_based_windows_need_type_2() {
    let request = READ_WRITE | Access::ZERO_BASED;
    let one = Fixture::new(WindowType::One, BINDABLE);
    assert_eq!(one.bind(&one.request(request)), Err(MemoryError::Window));
    let two = Fixture::new(WindowType::Two, BINDABLE);
    two.bind(&two.request(request)).unwrap();
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
        (BINDABLE, Access::FLUSH_GLOBAL, Ok(())),
        (BINDABLE, Access::FLUSH_PERSISTENT, Err(Permission)),
        (
            BINDABLE,
            READ_WRITE | Access::from_bits_retain(1 << 15),
            Err(Permission),
        ),
    ];
    for (region, window, expected) in cases {
        let fixture = Fixture::new(WindowType::Two, region);
        let bound = fixture.bind(&fixture.request(window));
        assert_eq!(bound, expected, "{window:?} on {region:?}");
    }
}

#[test]
fn window_range_must_be_within_the_region() {
    let fixture = Fixture::new(WindowType::One, BINDABLE);
    let request = fixture.request(READ_WRITE);
    for (addr, len) in [
        (request.addr, 49),
        (fixture.mr.addr() - 1, 16),
        (request.addr, u64::MAX),
        (u64::MAX, 16),
    ] {
        let request = WindowBind {
            addr,
            len,
            ..request
        };
        assert_eq!(fixture.bind(&request), Err(Range));
    }
    fixture.bind(&WindowBind { len: 48, ..request }).unwrap();
}

#[test]
fn window_region_and_queue_pair_belong_to_one_domain() {
    let (fixture, other) = (
        Fixture::new(WindowType::Two, BINDABLE),
        Fixture::new(WindowType::Two, BINDABLE),
    );
    let request = fixture.request(READ_WRITE);
    let by_other = regions().table().bind_window(&other.pd, QPN, &request);
    assert_eq!(by_other, Err(Key));
    let region = other.mr.lkey();
    assert_eq!(fixture.bind(&WindowBind { region, ..request }), Err(Key));
}

#[test]
fn a_failed_bind_changes_nothing() {
    let fixture = Fixture::new(WindowType::One, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let key = fixture.mw.rkey();
    let request = WindowBind {
        len: 65,
        ..fixture.request(READ_WRITE)
    };
    assert_eq!(fixture.bind(&request), Err(Range));
    assert_eq!(fixture.mw.rkey(), key);
    fixture.write(16, 8).unwrap();
    assert!(fixture.mr.has_windows());
}

#[test]
fn a_region_with_windows_is_not_reregistered() {
    let mut fixture = Fixture::new(WindowType::One, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let change = Change {
        access: Some(Access::LOCAL_WRITE),
        ..Change::default()
    };
    // SAFETY: the fixture's memory outlives its region.
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
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let (key, addr) = (fixture.mw.rkey(), fixture.mr.addr() + 16);
    let Fixture { mr, mw, data, .. } = fixture;
    drop(mr);
    let gone = regions().table().remote_write(&pd, QPN, key, addr, &[1; 8]);
    assert_eq!(gone, Err(Key));
    drop(mw);
    assert_eq!(data[2], 0);

    let fixture = Fixture::new(WindowType::Two, BINDABLE);
    fixture.bind(&fixture.request(READ_WRITE)).unwrap();
    let Fixture { mr, mw, .. } = fixture;
    drop(mw);
    assert!(!mr.has_windows());
}

/// An access in progress while the window is unbound must not change memory afterwards. The main
/// thread unbinds once the first byte of a long write has arrived, and then stores a mark in the
/// last bytes of that write's range.
#[test]
fn unbinding_waits_for_an_access_in_progress() {
    const LEN: usize = 64 << 20;
    const MARK: u64 = 0x4d41_524b;
    let pd = Pd::new();
    let mut memory = memmap2::MmapMut::map_anon(LEN).unwrap();
    let addr = memory.as_mut_ptr() as u64;
    // SAFETY: the mapping is dropped after the region, and accessed by atomics only until then.
    let mr = unsafe { Mr::register(&pd, addr, LEN as u64, addr, BINDABLE) }.unwrap();
    // SAFETY: the mapping is aligned to a page and has LEN bytes, of which these are the first and
    // the last eight. It outlives both references.
    let (first, last) = unsafe {
        let end = addr + LEN as u64 - 8;
        (
            AtomicU64::from_ptr(addr as *mut u64),
            AtomicU64::from_ptr(end as *mut u64),
        )
    };
    let data = vec![7; LEN];
    for _ in 0..5 {
        let mw = Mw::allocate(&pd, WindowType::One);
        let bind = |len| WindowBind {
            window: mw.rkey(),
            new_key: RKey(mw.rkey().0.wrapping_add(1)),
            region: mr.lkey(),
            addr,
            len,
            access: Access::REMOTE_WRITE,
        };
        let (bound, unbound) = (bind(LEN as u64), bind(0));
        regions().table().bind_window(&pd, QPN, &bound).unwrap();
        let key = mw.rkey();
        first.store(0, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let (pd, data) = (&pd, &data);
            let writer = scope.spawn(move || {
                let held = regions();
                held.table().remote_write(pd, OTHER_QPN, key, addr, data)
            });
            while first.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            regions().table().bind_window(pd, QPN, &unbound).unwrap();
            last.store(MARK, Ordering::Relaxed);
            writer.join().unwrap().unwrap();
        });
        assert_eq!(last.load(Ordering::Relaxed), MARK);
    }
}
