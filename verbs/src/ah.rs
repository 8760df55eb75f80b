//! Address handles: the destinations of datagrams.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use urxe_driver::{self as driver, Device};
use urxe_proto::ids::Gid;
use urxe_proto::ud::NetworkHeader;

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use};
use super::qp::address_from;

impl Handle for ibv_ah {
    type State = AddressHandle;
}

/// The library's state behind an `ibv_ah`.
#[derive(Debug)]
pub(super) struct AddressHandle {
    pub driver: Arc<driver::AddressHandle>,
    _pd: Use,
}

/// Creates an address handle.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `attr` must be null or
/// point to readable attributes.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    entry::pointer("ibv_create_ah", || {
        // SAFETY: `pd` is null or live, and `attr` null or readable: the caller's contract, section
        // Safety. `context` is read only after `object::state_of` has rejected a null `pd`, and
        // without a reference.
        let (domain, attr, context) = unsafe {
            let domain = object::state_of(pd)?;
            (
                domain,
                entry::read(attr)?,
                (&raw const (*pd).context).read(),
            )
        };
        // SAFETY: `context` is the domain's own context, which outlives the domain.
        let opened = &unsafe { context_of(context) }?.driver;
        let driver = opened.create_ah(&domain.driver, address_from(&attr)?)?;
        let handle = ibv_ah {
            context,
            pd,
            handle: object::number(),
        };
        let _pd = domain.users.add();
        Ok(object::make(handle, AddressHandle { driver, _pd }))
    })
}

/// Destroys an address handle. Datagrams that were posted with it are still sent.
///
/// # Safety
/// `ah` must be null or a live address handle created by this library. No other call may use it now
/// or later.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    entry::status("ibv_destroy_ah", || {
        if ah.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `ah` is non-null (checked above) and live, and no other call uses it: the
        // caller's contract, section Safety.
        drop(unsafe { object::free(ah) });
        Ok(())
    })
}

/// Fills in the address attributes of the route back to the sender of a datagram.
///
/// # Safety
/// `context` must be null or an opened device. `wc` and `grh` must be null or readable, and
/// `ah_attr` null or writable, for one structure each.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    entry::status_or_minus_one("ibv_init_ah_from_wc", || {
        // SAFETY: `context` is null or an opened device, and `wc` null or readable: the caller's
        // contract, section Safety.
        let (opened, wc) = unsafe { (context_of(context)?, entry::read(wc)?) };
        let mut attr = ibv_ah_attr::zeroed();
        attr.dlid = wc.slid;
        attr.sl = wc.sl;
        attr.src_path_bits = wc.dlid_path_bits;
        attr.port_num = port_num;
        if wc.wc_flags & IBV_WC_GRH != 0 {
            if grh.is_null() {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: `grh` is non-null (checked above) and readable: the caller's contract,
            // section Safety. It is read as bytes, for which any alignment and any value are valid.
            let header = unsafe { grh.cast::<[u8; GRH]>().read() };
            attr.is_global = 1;
            attr.grh = route_back(&header, opened.driver.device())?;
        }
        // SAFETY: `ah_attr` is null or writable: the caller's contract, section Safety.
        unsafe { entry::write(ah_attr, attr) }
    })
}

/// Creates an address handle for the route back to the sender of a datagram.
///
/// # Safety
/// `pd` must be null or a live protection domain created by this library. `wc` and `grh` must be
/// null or readable for one structure each.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::zeroed();
    let context = if pd.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: `pd` is non-null (checked above) and live: the caller's contract, section Safety.
        // `context` is read without a reference.
        unsafe { (&raw const (*pd).context).read() }
    };
    // SAFETY: `context` is null or the domain's own, `attr` is a local, and `wc` and `grh` are null
    // or readable: the caller's contract, section Safety.
    match unsafe { ibv_init_ah_from_wc(context, port_num, wc, grh, &raw mut attr) } {
        // SAFETY: `pd` is null or live: the caller's contract, section Safety. `attr` is a local.
        0 => unsafe { ibv_create_ah(pd, &raw mut attr) },
        _ => ptr::null_mut(),
    }
}

/// The length of a GRH in bytes, and of the IPv4 header with padding in its place.
const GRH: usize = size_of::<ibv_grh>();

fn route_back(header: &[u8; GRH], device: &Device) -> Result<ibv_global_route, Errno> {
    let header = NetworkHeader::parse(header).ok_or(Errno(libc::EPROTONOSUPPORT))?;
    let gids = device.gids().into_iter();
    let index = gids
        .filter(|(_, ip)| Gid::from_ip(*ip) == header.destination)
        .find_map(|(index, _)| u8::try_from(index).ok());
    Ok(ibv_global_route {
        dgid: ibv_gid {
            raw: header.source.0,
        },
        flow_label: header.flow_label,
        sgid_index: index.ok_or(Errno(libc::EINVAL))?,
        hop_limit: header.hop_limit,
        traffic_class: header.traffic_class,
    })
}
