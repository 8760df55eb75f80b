//! Memory regions: of program memory, of device memory and of DMA buffers.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use urxe_driver::Mr;
use urxe_driver::dmabuf::DmaBuf;
use urxe_driver::mr::Change;
use urxe_driver::odp::{self, Advice};
use urxe_proto::host::Access;
use urxe_proto::ids::LKey;

use super::buf::check_within;
use super::context::context_of;
use super::dm;
use super::entry;
use super::errno::{self, Errno};
use super::ffi::*;
use super::object::{self, Handle, Use};
use super::registration::{ENDED, Inner, Memory, Registration};
use super::session::{Listed, Listing};
use super::work_request::element_from;

impl Handle for ibv_mr {
    type State = Region;
}

/// The library's state behind an `ibv_mr`.
#[derive(Debug)]
pub(super) struct Region {
    registration: Arc<Registration>,
    _listing: Option<Listing>,
    /// An imported region's use of its protection domain.
    _pd: Option<Use>,
}

impl Region {
    /// Returns the region's key for work requests and the number of its protection domain.
    ///
    /// # Errors
    /// `EINVAL` if the registration was ended through another `ibv_mr` that shares it.
    pub fn key_and_domain(&self) -> Result<(LKey, u64), Errno> {
        match self.registration.domain.load(Ordering::Acquire) {
            ENDED => Err(Errno(libc::EINVAL)),
            domain => Ok((self.registration.lkey, domain)),
        }
    }
}

/// Converts access flags. Flags in the optional range are ignored.
fn access_from(flags: c_uint) -> Access {
    Access::from_bits_retain(flags & !IBV_ACCESS_OPTIONAL_RANGE)
}

/// Makes the `ibv_mr` of a region of the driver.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
unsafe fn make(
    pd: *mut ibv_pd,
    driver: Mr,
    addr: *mut c_void,
    memory: Memory,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: `pd` is null or live: the caller's contract, section Safety. `context` is read only
    // after `object::state_of` has rejected a null `pd`, and without a reference.
    let (domain, context) = unsafe { (object::state_of(pd)?, (&raw const (*pd).context).read()) };
    let handle = ibv_mr {
        context,
        pd,
        addr,
        length: driver.len() as usize,
        handle: object::number(),
        lkey: driver.lkey().0,
        rkey: driver.rkey().0,
    };
    // SAFETY: `context` is the domain's own context, which outlives the domain.
    let session = &unsafe { context_of(context) }?.session;
    let pd = domain.users.add();
    let registration = Arc::new(Registration {
        lkey: driver.lkey(),
        domain: AtomicU64::new(driver.pd().id()),
        inner: Mutex::new(Some(Inner { driver, pd })),
        memory,
    });
    let listed = Listed::Mr(Arc::downgrade(&registration));
    let state = Region {
        registration,
        _listing: Some(session.list(handle.handle, listed)),
        _pd: None,
    };
    Ok(object::make(handle, state))
}

/// Makes another `ibv_mr` for a registration. Its address is null, as in rdma-core.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
pub(super) unsafe fn import(
    pd: *mut ibv_pd,
    handle: u32,
    registration: Arc<Registration>,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: `pd` is null or live: the caller's contract, section Safety. `context` is read only
    // after `object::state_of` has rejected a null `pd`, and without a reference.
    let (domain, context) = unsafe { (object::state_of(pd)?, (&raw const (*pd).context).read()) };
    let inner = registration.inner();
    let driver = &inner.as_ref().ok_or(Errno(libc::EINVAL))?.driver;
    let handle = ibv_mr {
        context,
        pd,
        addr: ptr::null_mut(),
        length: driver.len() as usize,
        handle,
        lkey: driver.lkey().0,
        rkey: driver.rkey().0,
    };
    drop(inner);
    let state = Region {
        registration,
        _listing: None,
        _pd: Some(domain.users.add()),
    };
    Ok(object::make(handle, state))
}

/// Registers memory that work requests and peers address from `iova` on.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `length` bytes at `addr`
/// must stay mapped, with the requested access, until the region is deregistered.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: `pd` is null or live: the caller's contract, section Safety.
    let domain = unsafe { object::state_of(pd) }?;
    let start = addr.expose_provenance() as u64;
    let (len, access) = (length as u64, access_from(access));
    // SAFETY: the memory stays mapped until the region is deregistered: the caller's contract,
    // section Safety. A C program that registers memory accepts it (ibv_reg_mr(3)).
    let driver = unsafe { Mr::register(&domain.driver, start, len, iova, access) }?;
    // SAFETY: `pd` is live: the caller's contract, section Safety.
    unsafe { make(pd, driver, addr, Memory::Program) }
}

/// Registers a part of a DMA buffer.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
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
    // SAFETY: `pd` is null or live: the caller's contract, section Safety.
    let domain = unsafe { object::state_of(pd) }?;
    let access = access_from(access);
    let page = rustix::param::page_size() as u64;
    if !ALLOWED.contains(access) || iova % page != offset % page {
        return Err(Errno(libc::EINVAL));
    }
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: `fd` is not -1 (checked above) and is borrowed only during this call. If it is not an
    // open file, mapping it fails.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let map = DmaBuf::map(fd, offset, length, access.contains(Access::LOCAL_WRITE))?;
    let (addr, len) = (map.addr(), length as u64);
    // SAFETY: `map` keeps the memory mapped as long as the region lives, writable if `access`
    // includes local writes, which remote writes require.
    let driver = unsafe { Mr::register_mapped(&domain.driver, addr, len, iova, access) }?;
    // `addr` of the region holds the offset, as in rdma-core.
    let addr = ptr::without_provenance_mut(offset as usize);
    // SAFETY: `pd` is live: the caller's contract, section Safety.
    unsafe { make(pd, driver, addr, Memory::DmaBuf(map)) }
}

/// Registers memory with addresses from `iova` on.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `length` bytes at `addr`
/// must stay mapped, with the requested access, until the region is deregistered.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_mr_iova2", || {
        // SAFETY: `pd` is null or live, and the memory stays mapped: the caller's contract, section
        // Safety.
        unsafe { register(pd, addr, length, iova, access) }
    })
}

/// Registers memory with addresses from `iova` on.
///
/// # Safety
/// The requirements of [`ibv_reg_mr_iova2`] apply.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract of `ibv_reg_mr_iova2` is this function's own, section Safety.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// Registers memory with its own addresses.
///
/// # Safety
/// The requirements of [`ibv_reg_mr_iova2`] apply.
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.addr() as u64;
    // SAFETY: the contract of `ibv_reg_mr_iova2` is this function's own, section Safety.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// Registers a part of a DMA buffer.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_dmabuf_mr", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety.
        unsafe { register_dmabuf(pd, offset, length, iova, fd, access.cast_unsigned()) }
    })
}

/// Registers the memory that `mr_init_attr` describes: memory of the program, of a buffer from
/// `ibv_alloc_buf`, or of a DMA buffer.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `mr_init_attr` must be
/// null or point to readable attributes. A `buf` that its mask selects must be null or a live
/// buffer created by this library. Memory that `addr` names must stay mapped, with the requested
/// access, until the region is deregistered.
pub unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    mr_init_attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_mr_ex", || {
        // SAFETY: `mr_init_attr` is null or points to readable attributes: the caller's contract,
        // section Safety.
        let attr = unsafe { entry::read(mr_init_attr) }?;
        let mask = |bits: c_uint| attr.comp_mask & u64::from(bits) != 0;
        // DMA handles are hints to hardware and are not supported. Unknown bits are members of
        // later versions.
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
            // SAFETY: `pd` is null or live: the caller's contract, section Safety.
            return unsafe { register_dmabuf(pd, offset, length, attr.iova, attr.fd, access) };
        }
        if !mask(IBV_REG_MR_MASK_ADDR) || mask(of_file) {
            return Err(Errno(libc::EINVAL));
        }
        if mask(IBV_REG_MR_MASK_BUF) {
            // SAFETY: `pd` and `attr.buf` are null or live: the caller's contract, section Safety.
            unsafe { check_within(pd, attr.buf, attr.addr, attr.length) }?;
        }
        let iova = match mask(IBV_REG_MR_MASK_IOVA) {
            true => attr.iova,
            false => attr.addr.addr() as u64,
        };
        // SAFETY: `pd` is null or live, and the memory at `attr.addr` stays mapped: the caller's
        // contract, section Safety.
        unsafe { register(pd, attr.addr, attr.length, iova, access) }
    })
}

/// Registers a part of a buffer.
///
/// # Safety
/// `pd` and `buf` must be null or live objects created by this library. The buffer must not be
/// freed before the region is deregistered.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR),
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf,
    };
    // SAFETY: `attr` is a local, and `pd` and `buf` are null or live: the caller's contract,
    // section Safety. The region lies in the buffer, which stays mapped.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// Implements `alloc_null_mr` of a context: makes a region that reads as zeros and discards writes.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    entry::pointer("ibv_alloc_null_mr", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety.
        let driver = Mr::null(&unsafe { object::state_of(pd) }?.driver);
        // SAFETY: `pd` is live: the caller's contract, section Safety.
        unsafe { make(pd, driver, ptr::null_mut(), Memory::Null) }
    })
}

/// Implements `reg_dm_mr` of a context: registers a part of device memory, with addresses from 0.
///
/// # Safety
/// `pd` must be null or a live protection domain, and `dm` null or live device memory, both created
/// by this library.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    entry::pointer("ibv_reg_dm_mr", || {
        // SAFETY: `pd` and `dm` are null or live: the caller's contract, section Safety. Their
        // members are read only after `object::state_of` has rejected null, and without a
        // reference.
        let (domain, memory, same_device) = unsafe {
            let (domain, memory) = (object::state_of(pd)?, object::state_of(dm)?);
            let of_pd = (&raw const (*pd).context).read();
            (domain, memory, dm::context_of(dm) == of_pd)
        };
        let access = access_from(access);
        if !same_device || !access.contains(Access::ZERO_BASED) {
            return Err(Errno(libc::EINVAL));
        }
        let (addr, using) = memory.part(dm_offset, length)?;
        // SAFETY: `using`, which the region keeps, keeps the device memory alive. It is readable
        // and writable.
        let driver =
            unsafe { Mr::register_mapped(&domain.driver, addr, length as u64, 0, access) }?;
        // SAFETY: `pd` is live: the caller's contract, section Safety.
        unsafe { make(pd, driver, ptr::null_mut(), Memory::Device(using)) }
    })
}

/// Changes a region.
///
/// Returns 0 or an `ibv_rereg_mr_err_code`. On failure the region is unchanged. Programs should not
/// rely on that for codes that declare the region lost (ibv_rereg_mr(3)).
///
/// # Safety
/// `mr` must be null or a live memory region created by this library. If `flags` changes the
/// domain, `pd` must be null or a live protection domain created by this library. The memory of the
/// region must stay mapped, with its access, until it is deregistered.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    entry::value("ibv_rereg_mr", IBV_REREG_MR_ERR_CMD, || {
        // SAFETY: `mr`, `pd` and the memory meet the requirements of `reregister`: the caller's
        // contract, section Safety.
        match unsafe { reregister(mr, flags.cast_unsigned(), pd, addr, length, access) } {
            Ok(()) => 0,
            Err((code, error)) => {
                errno::set(error);
                code
            }
        }
    })
}

/// Changes a region, and returns the code for C with the error.
///
/// # Safety
/// The requirements of [`ibv_rereg_mr`] apply.
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
    // SAFETY: `mr` is null or a live region: the caller's contract, section Safety.
    let region = unsafe { object::state_of(mr) }.map_err(|_| WRONG)?;
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
        // SAFETY: `pd` is null or live, since `flags` changes the domain: the caller's contract,
        // section Safety.
        _ => Some(unsafe { object::state_of(pd) }.map_err(failed)?),
    };
    let change = Change {
        place: moves.then(|| (addr.expose_provenance() as u64, length as u64)),
        access: grants.then(|| access_from(access.cast_unsigned())),
        pd: domain.map(|domain| &domain.driver),
    };
    let mut inner = region.registration.inner();
    let inner = inner.as_mut().ok_or(WRONG)?;
    // SAFETY: the memory stays mapped until the region is deregistered: the caller's contract,
    // section Safety.
    let changed = unsafe { inner.driver.reregister(&change) };
    changed.map_err(|error| failed(error.into()))?;
    if let Some(domain) = domain {
        inner.pd = domain.users.add();
        let number = domain.driver.id();
        region.registration.domain.store(number, Ordering::Release);
        // SAFETY: `mr` is non-null, since `object::state_of` accepted it, and live: the caller's
        // contract, section Safety. The write makes no reference.
        unsafe { (&raw mut (*mr).pd).write(pd) };
    }
    if moves {
        // SAFETY: `mr` is non-null, since `object::state_of` accepted it, and live: the caller's
        // contract, section Safety. The writes make no reference.
        unsafe {
            (&raw mut (*mr).addr).write(addr);
            (&raw mut (*mr).length).write(length);
        }
    }
    Ok(())
}

/// Deregisters a region.
///
/// Returns once the memory is no longer accessed. `EBUSY` while memory windows are bound to it.
///
/// # Safety
/// `mr` must be null or a live memory region created by this library. No other call may use it now
/// or later.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    entry::status("ibv_dereg_mr", || {
        // SAFETY: `mr` is null or a live region: the caller's contract, section Safety.
        let registration = &unsafe { object::state_of(mr) }?.registration;
        let has_windows = |inner: &Inner| inner.driver.has_windows();
        if registration.inner().as_ref().is_some_and(has_windows) {
            return Err(Errno(libc::EBUSY));
        }
        registration.end();
        // SAFETY: `mr` is live, and no other call uses it: the caller's contract, section Safety.
        drop(unsafe { object::free(mr) });
        Ok(())
    })
}

/// Implements `advise_mr` of a context.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `sg_list` must be null or
/// point to `num_sges` readable `ibv_sge` elements.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    entry::status("ibv_advise_mr", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety.
        let domain = unsafe { object::state_of(pd) }?;
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
            // SAFETY: `sg_list` is null or points to `num_sges` readable elements: the caller's
            // contract, section Safety. `entry::read` rejects a null list at the first element.
            let element = unsafe { entry::read(sg_list.wrapping_add(index)) }?;
            odp::advise(&domain.driver, advice, &[element_from(&element)], wait)?;
        }
        Ok(())
    })
}
