use super::*;
use urxe_proto::host::{AtomicOp, MemoryError};
use urxe_proto::ids::Qpn;
use urxe_proto::work::Sge;

const QPN: Qpn = Qpn::new(0x11);

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

fn register(pd: &Arc<Pd>, data: &mut [u64], access: Access) -> Mr {
    let addr = data.as_mut_ptr() as u64;
    // SAFETY: each test declares the slice before the region, so the slice is dropped after it.
    unsafe { Mr::register(pd, addr, (data.len() * 8) as u64, addr, access) }.unwrap()
}

#[test]
fn remote_access_needs_key_range_permission_and_protection_domain() {
    let pd = Pd::new();
    let mut data = vec![0_u64; 4];
    let mr = register(&pd, &mut data, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let (addr, rkey) = (mr.addr(), mr.rkey());
    let held = regions();
    let table = held.table();
    table
        .remote_write(&pd, QPN, rkey, addr + 8, &[1; 24])
        .unwrap();
    let write = |rkey, addr| table.remote_write(&pd, QPN, rkey, addr, &[1; 8]);
    assert_eq!(write(rkey, addr + 25), Err(MemoryError::Range));
    assert_eq!(write(rkey, addr - 1), Err(MemoryError::Range));
    assert_eq!(write(rkey, u64::MAX - 3), Err(MemoryError::Range));
    assert_eq!(write(RKey(rkey.0 ^ 1), addr), Err(MemoryError::Key));
    let read = table.remote_read(&pd, QPN, rkey, addr, &mut [0; 8]);
    assert_eq!(read, Err(MemoryError::Permission));
    let other = table.remote_write(&Pd::new(), QPN, rkey, addr, &[1; 8]);
    assert_eq!(other, Err(MemoryError::Key));
    drop(held);
    drop(mr);
    let gone = regions()
        .table()
        .remote_write(&pd, QPN, rkey, addr, &[1; 8]);
    assert_eq!(gone, Err(MemoryError::Key));
    assert_eq!(data[0], 0);
    assert_eq!(data[1], u64::from_ne_bytes([1; 8]));
}

#[test]
fn elements_are_walked_from_any_offset() {
    let pd = Pd::new();
    let mut data: Vec<u64> = (0..64).collect();
    let mr = register(&pd, &mut data, ALL);
    let sge = |offset: u64, length| Sge {
        addr: mr.addr() + offset,
        length,
        lkey: mr.lkey(),
    };
    let sges = [sge(0, 3), sge(100, 0), sge(8, 5), sge(16, 9)];
    let held = regions();
    let mut whole = [0; 17];
    held.table().gather(&pd, &sges, 0, &mut whole).unwrap();
    for start in 0..17 {
        let mut part = vec![0; 17 - start];
        held.table()
            .gather(&pd, &sges, start as u64, &mut part)
            .unwrap();
        assert_eq!(part, whole[start..]);
    }
    let beyond = held.table().gather(&pd, &sges, 1, &mut [0; 17]);
    assert_eq!(beyond, Err(MemoryError::Range));
}

#[test]
fn atomics_return_the_previous_value() {
    let pd = Pd::new();
    let mut data = vec![5_u64; 2];
    let mr = register(&pd, &mut data, ALL);
    let held = regions();
    let atomic = |op| {
        held.table()
            .remote_atomic(&pd, QPN, mr.rkey(), mr.addr() + 8, op)
            .unwrap()
    };
    assert_eq!(atomic(AtomicOp::FetchAdd(3)), 5);
    assert_eq!(
        atomic(AtomicOp::CompareSwap {
            compare: 1,
            swap: 9
        }),
        8
    );
    assert_eq!(
        atomic(AtomicOp::CompareSwap {
            compare: 8,
            swap: 9
        }),
        8
    );
    assert_eq!(atomic(AtomicOp::FetchAdd(u64::MAX)), 9);
    drop(held);
    drop(mr);
    assert_eq!(data, [5, 8]);
}

#[test]
fn zero_based_regions_are_addressed_from_0() {
    let pd = Pd::new();
    let mut data = vec![0_u64; 2];
    let mr = register(&pd, &mut data, ALL | Access::ZERO_BASED);
    regions()
        .table()
        .remote_write(&pd, QPN, mr.rkey(), 8, &[2; 8])
        .unwrap();
    drop(mr);
    assert_eq!(data, [0, u64::from_ne_bytes([2; 8])]);
}

/// Reads `len` bytes at `addr` by the region's local key.
fn read(pd: &Pd, mr: &Mr, addr: u64, len: u32) -> Result<Vec<u8>, MemoryError> {
    let mut out = vec![0xee; len as usize];
    let sge = Sge {
        addr,
        length: len,
        lkey: mr.lkey(),
    };
    regions().table().gather(pd, &[sge], 0, &mut out)?;
    Ok(out)
}

fn write(pd: &Pd, mr: &Mr, addr: u64) -> Result<(), MemoryError> {
    let sge = Sge {
        addr,
        length: 8,
        lkey: mr.lkey(),
    };
    regions().table().scatter(pd, &[sge], 0, &[7; 8])
}

#[test]
fn the_null_region_reads_zeros_discards_writes_and_is_local() {
    let pd = Pd::new();
    let mr = Mr::null(&pd);
    for addr in [0, 12345, u64::MAX - 8] {
        write(&pd, &mr, addr).unwrap();
        assert_eq!(read(&pd, &mr, addr, 8), Ok(vec![0; 8]));
    }
    assert_eq!(read(&Pd::new(), &mr, 0, 8), Err(MemoryError::Key));
    let held = regions();
    let peer = held.table().remote_read(&pd, QPN, mr.rkey(), 0, &mut [1]);
    assert_eq!(peer, Err(MemoryError::Permission));
}

#[test]
fn an_on_demand_region_needs_no_memory_until_it_is_used() {
    let pd = Pd::new();
    let page = rustix::param::page_size();
    let map = memmap2::MmapMut::map_anon(2 * page).unwrap();
    let (addr, second) = (map.as_ptr() as u64, map.as_ptr() as u64 + page as u64);
    // SAFETY: the page belongs to `map`, and nothing refers to it.
    assert_eq!(0, unsafe {
        libc::mprotect(second as *mut libc::c_void, page, libc::PROT_NONE)
    });
    // SAFETY: `map` is dropped after the region. Memory that is registered on demand may be
    // inaccessible.
    let mr = unsafe { Mr::register(&pd, addr, 2 * page as u64, addr, ALL | Access::ON_DEMAND) };
    let mr = mr.unwrap();
    write(&pd, &mr, addr).unwrap();
    assert_eq!(
        read(&pd, &mr, addr + 4, 8),
        Ok(vec![7, 7, 7, 7, 0, 0, 0, 0])
    );
    assert_eq!(read(&pd, &mr, second, 1), Err(MemoryError::Fault));
    assert_eq!(write(&pd, &mr, second - 4), Err(MemoryError::Fault));
    let held = regions();
    let add = |addr| {
        let add = AtomicOp::FetchAdd(1);
        held.table().remote_atomic(&pd, QPN, mr.rkey(), addr, add)
    };
    assert_eq!(add(addr + 8), Ok(0));
    assert_eq!(add(addr + 8), Ok(1));
    assert_eq!(add(second), Err(MemoryError::Fault));
    drop(held);
    drop(mr);
}

#[test]
fn the_implicit_region_is_all_of_the_address_space() {
    let pd = Pd::new();
    let mut data = [5_u64, 6];
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    // SAFETY: on-demand memory may be unmapped. This test accesses only `data`, through raw
    // pointers.
    let mr = unsafe { Mr::register(&pd, 0, u64::MAX, 0, access) }.unwrap();
    let addr = &raw mut data as u64;
    assert_eq!(read(&pd, &mr, addr, 1), Ok(vec![5]));
    write(&pd, &mr, addr + 8).unwrap();
    assert_eq!(read(&pd, &mr, 8, 1), Err(MemoryError::Fault));
    drop(mr);
    assert_eq!(data[1], u64::from_ne_bytes([7; 8]));
    // SAFETY: registration is refused, so no memory is accessed.
    let pinned = unsafe { Mr::register(&pd, 0, u64::MAX, 0, Access::LOCAL_WRITE) };
    assert_eq!(pinned.unwrap_err().errno(), libc::EFAULT);
}

#[test]
fn reregister_changes_only_the_selected_attributes() {
    let (pd, other_pd) = (Pd::new(), Pd::new());
    let (mut data, mut other) = (vec![1_u64; 2], vec![2_u64; 4]);
    let mut mr = register(&pd, &mut data, Access::LOCAL_WRITE);
    let (lkey, addr, other_addr) = (mr.lkey(), mr.addr(), other.as_mut_ptr() as u64);
    let peer = |pd: &Pd, addr| {
        let held = regions();
        let key = RKey(lkey.0);
        held.table().remote_write(pd, QPN, key, addr, &[9; 8])
    };
    assert_eq!(peer(&pd, addr), Err(MemoryError::Permission));
    let access = Change {
        access: Some(ALL),
        ..Change::default()
    };
    // SAFETY: `data` was declared before `mr`, so it is dropped after it.
    unsafe { mr.reregister(&access) }.unwrap();
    peer(&pd, addr).unwrap();
    let place = Change {
        place: Some((other_addr, 32)),
        ..Change::default()
    };
    // SAFETY: `other` has 32 bytes, and was declared before `mr`, so it is dropped after it.
    unsafe { mr.reregister(&place) }.unwrap();
    assert_eq!((mr.addr(), mr.len(), mr.lkey()), (other_addr, 32, lkey));
    assert_eq!(peer(&pd, addr), Err(MemoryError::Range));
    peer(&pd, other_addr + 24).unwrap();
    let domain = Change {
        pd: Some(&other_pd),
        ..Change::default()
    };
    // SAFETY: `other` was declared before `mr`, so it is dropped after it.
    unsafe { mr.reregister(&domain) }.unwrap();
    assert_eq!(peer(&pd, other_addr), Err(MemoryError::Key));
    peer(&other_pd, other_addr).unwrap();
    assert_eq!(mr.pd().id(), other_pd.id());
    drop(mr);
    let nines = u64::from_ne_bytes([9; 8]);
    assert_eq!((data[0], other), (nines, vec![nines, 2, 2, nines]));
}

#[test]
fn a_failed_reregister_changes_nothing() {
    let pd = Pd::new();
    let mut data = vec![1_u64; 2];
    let mut mr = register(&pd, &mut data, ALL);
    let addr = mr.addr();
    let changes = [
        (Some((8, 4096)), None, libc::EFAULT),
        (None, Some(Access::REMOTE_WRITE), libc::EINVAL),
        (
            None,
            Some(Access::from_bits_retain(1 << 15)),
            libc::EOPNOTSUPP,
        ),
        (Some((addr, u64::MAX)), None, libc::EINVAL),
    ];
    for (place, access, errno) in changes {
        let change = Change {
            place,
            access,
            pd: None,
        };
        // SAFETY: the change is refused, so no memory is accessed.
        let refused = unsafe { mr.reregister(&change) };
        assert_eq!(refused.unwrap_err().errno(), errno);
        assert_eq!((mr.addr(), mr.len()), (addr, 16));
        write(&pd, &mr, addr + 8).unwrap();
    }
}

#[test]
fn reregistering_without_zero_based_restores_addresses() {
    let pd = Pd::new();
    let mut data = vec![0_u64; 2];
    let mut mr = register(&pd, &mut data, ALL | Access::ZERO_BASED);
    write(&pd, &mr, 0).unwrap();
    let change = Change {
        access: Some(ALL),
        ..Change::default()
    };
    // SAFETY: `data` was declared before `mr`, so it is dropped after it.
    unsafe { mr.reregister(&change) }.unwrap();
    assert_eq!(write(&pd, &mr, 0), Err(MemoryError::Range));
    write(&pd, &mr, mr.addr() + 8).unwrap();
}

#[test]
fn remote_write_needs_local_write() {
    let pd = Pd::new();
    let data = [0_u64; 1];
    // SAFETY: registration is refused, so no memory is accessed.
    let result = unsafe { Mr::register(&pd, data.as_ptr() as u64, 8, 0, Access::REMOTE_WRITE) };
    assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
}
