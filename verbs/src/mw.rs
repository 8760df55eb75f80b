//! Memory windows.

use std::ffi::c_int;

use urxe_driver::Mw;
use urxe_driver::mw::WindowType;
use urxe_driver::tables::KEY_VARIANT;
use urxe_proto::host::{Access, WindowBind};
use urxe_proto::ids::{LKey, RKey};
use urxe_proto::work::{Payload, SendOp, SendWr};

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use};
use super::qp::pair_of;
use super::work_request::flags_from;

impl Handle for ibv_mw {
    type State = Window;
}

/// The library's state behind an `ibv_mw`. `driver` is declared first, so that the window ends
/// before its use of the domain.
#[derive(Debug)]
pub(super) struct Window {
    driver: Mw,
    _pd: Use,
}

/// Implements `alloc_mw` of a context.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    entry::pointer("ibv_alloc_mw", || {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety.
        let domain = unsafe { object::state_of(pd) }?;
        let driver_kind = match kind {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let driver = Mw::allocate(&domain.driver, driver_kind);
        let handle = ibv_mw {
            // SAFETY: `pd` is non-null, since `object::state_of` accepted it, and live: the
            // caller's contract, section Safety. The member is read without a reference.
            context: unsafe { (&raw const (*pd).context).read() },
            pd,
            rkey: driver.rkey().0,
            handle: object::number(),
            r#type: kind,
        };
        let state = Window {
            driver,
            _pd: domain.users.add(),
        };
        Ok(object::make(handle, state))
    })
}

/// Implements `dealloc_mw` of a context. Memory that the window was bound to is no longer
/// accessible through it.
///
/// # Safety
/// `mw` must be null or a live memory window created by this library. No other call may use it now
/// or later.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    entry::status("ibv_dealloc_mw", || {
        if mw.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `mw` is non-null (checked above) and live, and no other call uses it: the
        // caller's contract, section Safety.
        drop(unsafe { object::free(mw) });
        Ok(())
    })
}

/// Makes the operation that binds a window to the range in `info`, with a new low byte for its key.
///
/// # Errors
/// `EINVAL` for a window of another type, and for a range without a region. `EPERM` for a region of
/// another protection domain, as in rdma-core's software provider.
///
/// # Safety
/// `mw` and `info.mr` must be null or live objects created by this library.
unsafe fn bind(
    mw: *mut ibv_mw,
    kind: WindowType,
    new_key: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: `mw` is null or live: the caller's contract, section Safety.
    let window = unsafe { object::state_of(mw) }?;
    if window.driver.kind() != kind {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `mw` is non-null, since `object::state_of` accepted it, and live: the caller's
    // contract, section Safety. The member, which the program may write, is read without a
    // reference.
    let key = unsafe { (&raw const (*mw).rkey).read() };
    let region = if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return Err(Errno(libc::EINVAL));
        }
        LKey(0)
    } else {
        // SAFETY: `info.mr` is non-null (checked above) and live: the caller's contract, section
        // Safety.
        let (lkey, domain) = unsafe { object::state_of(info.mr) }?.key_and_domain()?;
        if domain != window.driver.pd().id() {
            return Err(Errno(libc::EPERM));
        }
        lkey
    };
    Ok(SendOp::BindMw(WindowBind {
        window: RKey(key),
        new_key: RKey(new_key),
        region,
        addr: info.addr,
        len: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
    }))
}

/// Makes the operation that binds a window of type 2, for which the program chooses the low byte of
/// the key.
///
/// # Errors
/// `EINVAL` for a window of type 1, which `ibv_bind_mw` binds, and the errors of [`bind`].
///
/// # Safety
/// The requirements of [`bind`] apply.
pub(super) unsafe fn bind_type_2(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: the contract of `bind` is this function's own, section Safety.
    unsafe { bind(mw, WindowType::Two, rkey, info) }
}

/// Implements `bind_mw` of a context: posts the bind of a window of type 1, which gets its new key
/// at once.
///
/// # Safety
/// `qp` and `mw` must be null or live objects created by this library. `mw_bind` must be null or
/// point to a readable request, whose `bind_info.mr` is null or a live memory region created by
/// this library.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    entry::status("ibv_bind_mw", || {
        // SAFETY: `qp` is null or live, and `mw_bind` null or readable: the caller's contract,
        // section Safety.
        let (pair, bind_attr) = unsafe { (pair_of(qp)?, entry::read(mw_bind)?) };
        if bind_attr.bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `mw` is null or live: the caller's contract, section Safety. The member is read
        // only after `object::state_of` has rejected null and misaligned pointers, and without a
        // reference.
        let key = unsafe {
            object::state_of(mw)?;
            (&raw const (*mw).rkey).read()
        };
        let new_key = (key & !KEY_VARIANT) | (key.wrapping_add(1) & KEY_VARIANT);
        // SAFETY: `mw` and `bind_info.mr` are null or live: the caller's contract, section Safety.
        let op = unsafe { bind(mw, WindowType::One, new_key, &bind_attr.bind_info) }?;
        let flags = flags_from(bind_attr.send_flags)?;
        pair.driver.start_posting().post(&SendWr {
            wr_id: bind_attr.wr_id,
            op,
            flags,
            payload: Payload::Sges(&[]),
            dest: None,
        })?;
        // SAFETY: `mw` is non-null, since `object::state_of` accepted it, and live: the caller's
        // contract, section Safety. The write makes no reference.
        unsafe { (&raw mut (*mw).rkey).write(new_key) };
        Ok(())
    })
}
