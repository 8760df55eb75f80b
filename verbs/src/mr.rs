//! Memory regions, of the program's memory, of device memory and of DMA buffers.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_driver::Mr;
use urxe_driver::dmabuf::DmaBuf;
use urxe_driver::mr::Change;
use urxe_driver::odp::{self, Advice};
use urxe_proto::host::Access;
use urxe_proto::ids::LKey;

use super::context::context_of;
use super::dm;
use super::entry;
use super::errno::{self, Errno};
use super::ffi::*;
use super::import::{Exported, Listing};
use super::object::{self, Handle, Use};
use super::post::element_from;

impl Handle for ibv_mr {
    type Ours = Region;
}

/// What stands behind an `ibv_mr`.
#[derive(Debug)]
pub(super) struct Region {
    registration: Arc<Registration>,
    _listing: Option<Listing>,
    /// That an imported region uses its domain.
    _pd: Option<Use>,
}

/// A registration, which several may have imported. The region goes first: what it needs is not needed
/// after it.
#[derive(Debug)]
pub(super) struct Registration {
    /// `None` once it has ended. It comes before the table of regions in the order of locks, so nobody
    /// who posts may take it: what posting asks for stands beside it.
    inner: Mutex<Option<Inner>>,
    lkey: LKey,
    /// The number of its protection domain; [`ENDED`] once it has ended.
    domain: AtomicU64,
    memory: Memory,
}

/// No protection domain's number.
const ENDED: u64 = 0;

/// What re-registration changes.
#[derive(Debug)]
struct Inner {
    driver: Mr,
    pd: Use,
}

/// What a region's memory is.
#[derive(Debug)]
enum Memory {
    /// The program's.
    Program,
    /// There is none.
    Null,
    /// A part of device memory.
    Device(#[expect(dead_code, reason = "counts while it lives")] Use),
    /// A part of a DMA buffer.
    DmaBuf(#[expect(dead_code, reason = "mapped while it lives")] DmaBuf),
}

impl Registration {
    fn inner(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Region {
    /// Its key for work requests, and the number of its protection domain.
    ///
    /// # Errors
    /// `EINVAL` if it was deregistered by another that had imported it.
    pub fn key_and_domain(&self) -> Result<(LKey, u64), Errno> {
        match self.registration.domain.load(Ordering::Acquire) {
            ENDED => Err(Errno(libc::EINVAL)),
            domain => Ok((self.registration.lkey, domain)),
        }
    }
}

/// Access that devices may do without is not asked for.
fn access_from(flags: c_uint) -> Access {
    Access::from_bits_retain(flags & !IBV_ACCESS_OPTIONAL_RANGE)
}

/// Makes the object.
///
/// # Safety
/// `pd` is a protection domain of ours.
unsafe fn make(
    pd: *mut ibv_pd,
    driver: Mr,
    addr: *mut c_void,
    memory: Memory,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's promise; the member is read without a reference to the whole.
    let (domain, context) = unsafe { (object::ours(pd)?, (&raw const (*pd).context).read()) };
    let shown = ibv_mr {
        context,
        pd,
        addr,
        length: driver.len() as usize,
        handle: object::number(),
        lkey: driver.lkey().0,
        rkey: driver.rkey().0,
    };
    // SAFETY: the domain's own context, which outlives it.
    let session = &unsafe { context_of(context) }?.session;
    let pd = domain.users.add();
    let registration = Arc::new(Registration {
        lkey: driver.lkey(),
        domain: AtomicU64::new(driver.pd().id()),
        inner: Mutex::new(Some(Inner { driver, pd })),
        memory,
    });
    let exported = Exported::Mr(Arc::downgrade(&registration));
    let ours = Region {
        registration,
        _listing: Some(session.export(shown.handle, exported)),
        _pd: None,
    };
    Ok(object::make(shown, ours))
}

/// Makes another `ibv_mr` for a registration. It has no address, as by rdma-core.
///
/// # Safety
/// `pd` is a protection domain of ours.
pub(super) unsafe fn import(
    pd: *mut ibv_pd,
    handle: u32,
    registration: Arc<Registration>,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's promise; the member is read without a reference to the whole.
    let (domain, context) = unsafe { (object::ours(pd)?, (&raw const (*pd).context).read()) };
    let inner = registration.inner();
    let driver = &inner.as_ref().ok_or(Errno(libc::EINVAL))?.driver;
    let shown = ibv_mr {
        context,
        pd,
        addr: ptr::null_mut(),
        length: driver.len() as usize,
        handle,
        lkey: driver.lkey().0,
        rkey: driver.rkey().0,
    };
    drop(inner);
    let ours = Region {
        registration,
        _listing: None,
        _pd: Some(domain.users.add()),
    };
    Ok(object::make(shown, ours))
}

/// Registers memory that work requests and peers name by addresses from `iova` on.
///
/// # Safety
/// `pd` is null or a protection domain of ours; the memory stays mapped until it is deregistered.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's promise.
    let domain = unsafe { object::ours(pd) }?;
    let start = addr.expose_provenance() as u64;
    let (len, access) = (length as u64, access_from(access));
    // SAFETY: the caller's promise, which is that of every C program that registers memory.
    let driver = unsafe { Mr::register(&domain.driver, start, len, iova, access) }?;
    // SAFETY: as above.
    unsafe { make(pd, driver, addr, Memory::Program) }
}

/// Registers a part of a DMA buffer.
///
/// # Safety
/// `pd` is null or a protection domain of ours.
unsafe fn register_dmabuf(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    const ALLOWED: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);
    // SAFETY: the caller's promise.
    let domain = unsafe { object::ours(pd) }?;
    let access = access_from(access);
    let page = rustix::param::page_size() as u64;
    if !ALLOWED.contains(access) || iova % page != offset % page {
        return Err(Errno(libc::EINVAL));
    }
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: it is used while this function runs; a number that is no open file's gives an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let map = DmaBuf::map(fd, offset, length, access.contains(Access::LOCAL_WRITE))?;
    let (addr, len) = (map.addr(), length as u64);
    // SAFETY: it is mapped as long as the region lives, and for writing if that is asked for.
    let driver = unsafe { Mr::register_mapped(&domain.driver, addr, len, iova, access) }?;
    // The offset stands in the place of an address, as rdma-core has it.
    let shown = ptr::without_provenance_mut(offset as usize);
    // SAFETY: as above.
    unsafe { make(pd, driver, shown, Memory::DmaBuf(map)) }
}

/// # Safety
/// `pd` is null or a protection domain of ours; the memory stays mapped until it is deregistered.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_mr_iova2", || {
        // SAFETY: the caller's promise.
        unsafe { register(pd, addr, length, iova, access) }
    })
}

/// # Safety
/// As for [`ibv_reg_mr_iova2`].
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// # Safety
/// As for [`ibv_reg_mr_iova2`].
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.addr() as u64;
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// # Safety
/// `pd` is null or a protection domain of ours.
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_dmabuf_mr", || {
        // SAFETY: the caller's promise.
        unsafe { register_dmabuf(pd, offset, length, iova, fd, access.cast_unsigned()) }
    })
}

/// Registers what the members of `attr` that its mask names describe: memory of the program's, of a
/// buffer from `ibv_alloc_buf`, or of a DMA buffer.
///
/// # Safety
/// The pointers are null, or a protection domain of ours and attributes of which those that are named
/// are good; the memory stays mapped until it is deregistered.
pub unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    mr_init_attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_mr_ex", || {
        // SAFETY: the caller's promise.
        let attr = unsafe { entry::read(mr_init_attr) }?;
        let mask = |bits: c_uint| attr.comp_mask & u64::from(bits) != 0;
        // There are no handles for hints to hardware, and later versions may know more members.
        let known = IBV_REG_MR_MASK_IOVA
            | IBV_REG_MR_MASK_ADDR
            | IBV_REG_MR_MASK_FD
            | IBV_REG_MR_MASK_FD_OFFSET
            | IBV_REG_MR_MASK_BUF;
        if attr.comp_mask & !u64::from(known) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let access = attr.access.cast_unsigned();
        let of_file = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
        if mask(IBV_REG_MR_MASK_FD) {
            let addressed = mask(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF);
            let complete = mask(IBV_REG_MR_MASK_FD_OFFSET) && mask(IBV_REG_MR_MASK_IOVA);
            if addressed || !complete {
                return Err(Errno(libc::EINVAL));
            }
            let (offset, length) = (attr.fd_offset, attr.length);
            // SAFETY: the caller's promise.
            return unsafe { register_dmabuf(pd, offset, length, attr.iova, attr.fd, access) };
        }
        if !mask(IBV_REG_MR_MASK_ADDR) || mask(of_file) {
            return Err(Errno(libc::EINVAL));
        }
        if mask(IBV_REG_MR_MASK_BUF) {
            // SAFETY: the caller's promise.
            unsafe { super::buf::check_within(pd, attr.buf, attr.addr, attr.length) }?;
        }
        let iova = match mask(IBV_REG_MR_MASK_IOVA) {
            true => attr.iova,
            false => attr.addr.addr() as u64,
        };
        // SAFETY: the caller's promise.
        unsafe { register(pd, attr.addr, attr.length, iova, access) }
    })
}

/// `alloc_null_mr` of a context: a region that reads as zeros and forgets what is written.
///
/// # Safety
/// `pd` is null or a protection domain of ours.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    entry::pointer("ibv_alloc_null_mr", || {
        // SAFETY: the caller's promise.
        let driver = Mr::null(&unsafe { object::ours(pd) }?.driver);
        // SAFETY: as above.
        unsafe { make(pd, driver, ptr::null_mut(), Memory::Null) }
    })
}

/// `reg_dm_mr` of a context: registers a part of device memory, which is named from 0.
///
/// # Safety
/// The pointers are null, or a protection domain and device memory of ours.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_dm_mr", || {
        // SAFETY: the caller's promise; members are read without a reference to the whole.
        let (domain, memory, same_device) = unsafe {
            let (domain, memory) = (object::ours(pd)?, object::ours(dm)?);
            let of_pd = (&raw const (*pd).context).read();
            (domain, memory, dm::context_of(dm) == of_pd)
        };
        let access = access_from(access);
        if !same_device || !access.contains(Access::ZERO_BASED) {
            return Err(Errno(libc::EINVAL));
        }
        let (addr, using) = memory.part(dm_offset, length)?;
        // SAFETY: the memory stays as long as it is used, and can be read and written.
        let driver =
            unsafe { Mr::register_mapped(&domain.driver, addr, length as u64, 0, access) }?;
        // SAFETY: as above.
        unsafe { make(pd, driver, ptr::null_mut(), Memory::Device(using)) }
    })
}

/// Changes a region. When it fails the region is as it was, though programs should not rely on that
/// where the code says that the region is lost.
///
/// # Safety
/// `mr` is null or a memory region of ours; the memory stays mapped until it is deregistered; `pd` is
/// a protection domain of ours if it is to be changed.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    entry::value("ibv_rereg_mr", IBV_REREG_MR_ERR_CMD, || {
        // SAFETY: the caller's promise.
        match unsafe { reregister(mr, flags.cast_unsigned(), pd, addr, length, access) } {
            Ok(()) => 0,
            Err((code, error)) => {
                errno::set(error);
                code
            }
        }
    })
}

/// # Safety
/// As for [`ibv_rereg_mr`].
unsafe fn reregister(
    mr: *mut ibv_mr,
    flags: ibv_rereg_mr_flags,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<(), (ibv_rereg_mr_err_code, Errno)> {
    const WRONG: (ibv_rereg_mr_err_code, Errno) = (IBV_REREG_MR_ERR_INPUT, Errno(libc::EINVAL));
    let failed = |error: Errno| (IBV_REREG_MR_ERR_CMD, error);
    let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let grants = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    // SAFETY: the caller's promise; so below.
    let region = unsafe { object::ours(mr) }.map_err(|_| WRONG)?;
    if !matches!(region.registration.memory, Memory::Program)
        || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (moves && (length == 0 || addr.is_null()))
        || (access != 0 && !grants)
    {
        return Err(WRONG);
    }
    if flags == 0 {
        return Err(failed(Errno(libc::EINVAL)));
    }
    let domain = match flags & IBV_REREG_MR_CHANGE_PD {
        0 => None,
        // SAFETY: as above.
        _ => Some(unsafe { object::ours(pd) }.map_err(failed)?),
    };
    let change = Change {
        place: moves.then(|| (addr.expose_provenance() as u64, length as u64)),
        access: grants.then(|| access_from(access.cast_unsigned())),
        pd: domain.map(|domain| &domain.driver),
    };
    let mut inner = region.registration.inner();
    let inner = inner.as_mut().ok_or(WRONG)?;
    // SAFETY: the caller's promise.
    let changed = unsafe { inner.driver.reregister(&change) };
    changed.map_err(|error| failed(error.into()))?;
    if let Some(domain) = domain {
        inner.pd = domain.users.add();
        let number = domain.driver.id();
        region.registration.domain.store(number, Ordering::Release);
        // SAFETY: as above; this makes no reference.
        unsafe { (&raw mut (*mr).pd).write(pd) };
    }
    if moves {
        // SAFETY: as above.
        unsafe {
            (&raw mut (*mr).addr).write(addr);
            (&raw mut (*mr).length).write(length);
        }
    }
    Ok(())
}

/// Returns when nobody uses the memory any more. `EBUSY` while memory windows are bound to it.
///
/// # Safety
/// `mr` is null or a memory region of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    entry::status("ibv_dereg_mr", || {
        // SAFETY: the caller's promise.
        let registration = &unsafe { object::ours(mr) }?.registration;
        let mut inner = registration.inner();
        if inner
            .as_ref()
            .is_some_and(|inner| inner.driver.has_windows())
        {
            return Err(Errno(libc::EBUSY));
        }
        // Whoever else has imported it has it no longer.
        registration.domain.store(ENDED, Ordering::Release);
        let ended = inner.take();
        drop(inner);
        drop(ended);
        // SAFETY: the caller's promise.
        drop(unsafe { object::free(mr) });
        Ok(())
    })
}

/// `advise_mr` of a context.
///
/// # Safety
/// The pointers are null, or a protection domain of ours and so many elements.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    entry::status("ibv_advise_mr", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { object::ours(pd) }?;
        let advice = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Read,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::Write,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::Present,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || num_sges == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let wait = flags & IBV_ADVISE_MR_FLAG_FLUSH != 0;
        for index in 0..num_sges as usize {
            // SAFETY: as above; a null list is caught.
            let element = unsafe { entry::read(sg_list.wrapping_add(index)) }?;
            odp::advise(&domain.driver, advice, &[element_from(&element)], wait)?;
        }
        Ok(())
    })
}
