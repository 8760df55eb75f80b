//! Address handles, which say where datagrams go.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use urxe_driver::{self as driver, Device};
use urxe_proto::ids::Gid;
use urxe_proto::ud::NetworkHeader;

use super::attributes::address_from;
use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use};

impl Handle for ibv_ah {
    type Ours = AddressHandle;
}

/// What stands behind an `ibv_ah`.
#[derive(Debug)]
pub(super) struct AddressHandle {
    pub driver: Arc<driver::AddressHandle>,
    _pd: Use,
}

/// # Safety
/// The pointers are null, or a protection domain of ours and attributes.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    entry::pointer("ibv_create_ah", || {
        // SAFETY: the caller's promise; the last makes no reference.
        let (domain, attr, context) = unsafe {
            let domain = object::ours(pd)?;
            (
                domain,
                entry::read(attr)?,
                (&raw const (*pd).context).read(),
            )
        };
        // SAFETY: the domain's own context, which outlives it.
        let opened = &unsafe { context_of(context) }?.driver;
        let driver = opened.create_ah(&domain.driver, address_from(&attr)?)?;
        let shown = ibv_ah {
            context,
            pd,
            handle: object::number(),
        };
        let _pd = domain.users.add();
        Ok(object::make(shown, AddressHandle { driver, _pd }))
    })
}

/// Datagrams that wait to be sent to it are sent all the same.
///
/// # Safety
/// `ah` is null or an address handle of ours, and used for nothing else any more.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    entry::status("ibv_destroy_ah", || {
        if ah.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        drop(unsafe { object::free(ah) });
        Ok(())
    })
}

/// The way back to the sender of a datagram.
///
/// # Safety
/// The pointers are null or good for one structure each; `context` is an opened device.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    entry::status_or_minus_one("ibv_init_ah_from_wc", || {
        // SAFETY: the caller's promise.
        let (device, wc) = unsafe { (context_of(context)?.driver.device(), entry::read(wc)?) };
        let mut attr = ibv_ah_attr::zeroed();
        attr.dlid = wc.slid;
        attr.sl = wc.sl;
        attr.src_path_bits = wc.dlid_path_bits;
        attr.port_num = port_num;
        if wc.wc_flags & IBV_WC_GRH != 0 {
            if grh.is_null() {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: as above; any bytes are a header, wherever in a buffer they are.
            let header = unsafe { grh.cast::<[u8; GRH]>().read() };
            attr.is_global = 1;
            attr.grh = route_back(&header, device)?;
        }
        // SAFETY: as above.
        unsafe { entry::write(ah_attr, attr) }
    })
}

/// # Safety
/// The pointers are null or good for one structure each; `pd` is a protection domain of ours.
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
        // SAFETY: the caller's promise; this makes no reference.
        unsafe { (&raw const (*pd).context).read() }
    };
    // SAFETY: the caller's promise; a null context is caught.
    match unsafe { ibv_init_ah_from_wc(context, port_num, wc, grh, &raw mut attr) } {
        // SAFETY: as above.
        0 => unsafe { ibv_create_ah(pd, &raw mut attr) },
        _ => ptr::null_mut(),
    }
}

/// The bytes of a GRH, or of what is in its place.
const GRH: usize = size_of::<ibv_grh>();

fn route_back(header: &[u8; GRH], device: &Device) -> Result<ibv_global_route, Errno> {
    let header = NetworkHeader::parse(header).ok_or(Errno(libc::EPROTONOSUPPORT))?;
    let ours = device.gids().into_iter();
    let index = ours
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
