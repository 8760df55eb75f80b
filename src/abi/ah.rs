//! Address handles, which say where datagrams go.

use std::ffi::c_int;
use std::mem::offset_of;
use std::net::Ipv4Addr;
use std::ptr;
use std::sync::Arc;

use urxe_driver::{self as driver, Device};
use urxe_proto::ids::Gid;

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

/// A GRH, or 20 bytes of anything and an IPv4 header (A17.4.5.2).
const GRH: usize = size_of::<ibv_grh>();
const IPV4_AT: usize = 20;
/// Version 4, and the header's length without options.
const IPV4_PLAIN: u8 = 0x45;
const FLOW_LABEL: u32 = 0xf_ffff;

fn route_back(header: &[u8; GRH], device: &Device) -> Result<ibv_global_route, Errno> {
    let ipv4 = &header[IPV4_AT..];
    let word = |at: usize| u32::from_be_bytes([ipv4[at], ipv4[at + 1], ipv4[at + 2], ipv4[at + 3]]);
    let (from, to, route) = if ipv4[0] == IPV4_PLAIN && checksum_is_right(ipv4) {
        let address = |at| Gid::from(Ipv4Addr::from_bits(word(at)));
        let route = (0, ipv4[8], ipv4[1]);
        (address(12), address(16), route)
    } else if header[0] >> 4 == 6 {
        let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let gid = |at: usize| {
            let mut raw = [0; 16];
            raw.copy_from_slice(&header[at..at + 16]);
            Gid(raw)
        };
        let class = (first >> 20) as u8;
        let route = (first & FLOW_LABEL, header[7], class);
        let (from, to) = (offset_of!(ibv_grh, sgid), offset_of!(ibv_grh, dgid));
        (gid(from), gid(to), route)
    } else {
        return Err(Errno(libc::EPROTONOSUPPORT));
    };
    let ours = device.gids().into_iter();
    let index = ours
        .filter(|(_, ip)| Gid::from_ip(*ip) == to)
        .find_map(|(index, _)| u8::try_from(index).ok());
    let (flow_label, hop_limit, traffic_class) = route;
    Ok(ibv_global_route {
        dgid: ibv_gid { raw: from.0 },
        flow_label,
        sgid_index: index.ok_or(Errno(libc::EINVAL))?,
        hop_limit,
        traffic_class,
    })
}

/// The sum of an IPv4 header's words, its own checksum included, is all ones (RFC 791).
fn checksum_is_right(header: &[u8]) -> bool {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}
