//! Queries of an opened device: attributes of the device and its port, GIDs, P_Keys.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};

use urxe_driver::Device;
use urxe_driver::cq::MAX_CQE;
use urxe_driver::device::{GID_TABLE_LEN, PORT, PortState};
use urxe_driver::dm::MAX_DM_SIZE;
use urxe_driver::odp;
use urxe_driver::qp::{MAX_QP_WR, MAX_SGE};
use urxe_driver::raw::{HashFields, MAX_ENTRIES};
use urxe_driver::srq::{MAX_SRQ_SGE, MAX_SRQ_WR};
use urxe_proto::ids::{Gid, PKey};
use urxe_proto::mtu::Mtu;
use urxe_proto::rc::MAX_RD_ATOMIC;
use urxe_proto::work::MAX_MESSAGE;

use super::context::context_of;
use super::device::c_string;
use super::entry;
use super::errno::Errno;
use super::ffi::*;

/// The vendor ID that software devices report: no OUI.
const VENDOR: u32 = 0xff_ffff;

/// The reported maximum of queue pairs. It is available in every slot: the upper 8 of the 24 bits of
/// a queue pair number are the process's slot, and slot 0 lacks the numbers 0 and 1.
const MAX_QP: c_int = 65_533;

/// The reported maximum for objects that only memory limits. Programs may size arrays by it.
const UNLIMITED: c_int = 1 << 20;

/// The page sizes: every power of two from 4 KiB on.
const PAGE_SIZES: u64 = 0xffff_f000;

/// The on-demand paging capabilities. All operations support it, because data is always copied in
/// the same way.
const ODP_RELIABLE: u32 =
    ODP_UNRELIABLE | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
/// ATOMIC WRITE and FLUSH exist for RC only.
const ODP_RC: u32 = ODP_RELIABLE | IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE;
const ODP_UNRELIABLE: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;

/// The longest delay of an acknowledgement, which may wait for a thread to wake: 4.096 us x 2^15,
/// which is 134 ms.
const ACK_DELAY: u8 = 15;

/// The frequency of the device's clock, which counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// Device capabilities that the kernel defines (`enum ib_uverbs_device_cap_flags`) and rdma-core's
/// header does not.
const DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

/// The length of the P_Key table.
const PKEYS: u16 = 1;

/// Physical port states (IBA 14.2.5.6).
const PHYSICAL_DISABLED: u8 = 3;
const PHYSICAL_LINK_UP: u8 = 5;

fn odp_caps() -> ibv_odp_caps {
    ibv_odp_caps {
        general_caps: u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT),
        per_transport_caps: ibv_odp_caps_per_transport_caps {
            rc_odp_caps: ODP_RC,
            uc_odp_caps: ODP_UNRELIABLE | IBV_ODP_SUPPORT_WRITE,
            ud_odp_caps: ODP_UNRELIABLE,
        },
    }
}

fn device_attributes(device: &Device) -> ibv_device_attr {
    let guid = u64::from_ne_bytes(device.guid());
    let mut attr = ibv_device_attr::zeroed();
    attr.fw_ver = c_string(env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = PAGE_SIZES;
    attr.vendor_id = VENDOR;
    attr.max_qp = MAX_QP;
    attr.max_qp_wr = MAX_QP_WR.cast_signed();
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_AUTO_PATH_MIG
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    attr.max_sge = MAX_SGE.cast_signed();
    attr.max_sge_rd = MAX_SGE.cast_signed();
    attr.max_cq = UNLIMITED;
    attr.max_cqe = MAX_CQE.cast_signed();
    attr.max_mr = UNLIMITED;
    attr.max_mw = UNLIMITED;
    attr.max_pd = UNLIMITED;
    attr.max_qp_rd_atom = c_int::from(MAX_RD_ATOMIC);
    attr.max_res_rd_atom = c_int::from(MAX_RD_ATOMIC) * MAX_QP;
    attr.max_qp_init_rd_atom = c_int::from(MAX_RD_ATOMIC);
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_srq = UNLIMITED;
    attr.max_srq_wr = MAX_SRQ_WR.cast_signed();
    attr.max_srq_sge = MAX_SRQ_SGE.cast_signed();
    attr.max_mcast_grp = UNLIMITED;
    attr.max_mcast_qp_attach = MAX_QP;
    attr.max_total_mcast_qp_attach = UNLIMITED;
    attr.max_ah = UNLIMITED;
    attr.max_pkeys = PKEYS;
    attr.local_ca_ack_delay = ACK_DELAY;
    attr.phys_port_cnt = PORT;
    attr
}

/// Reads the device attributes.
///
/// # Safety
/// `context` must be null or an opened device. `device_attr` must be null or point to writable
/// attributes.
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    device_attr: *mut ibv_device_attr,
) -> c_int {
    entry::status("ibv_query_device", || {
        // SAFETY: `context` is null or an opened device, and `device_attr` null or writable: the
        // caller's contract, section Safety.
        unsafe {
            let opened = context_of(context)?;
            entry::write(device_attr, device_attributes(opened.driver.device()))
        }
    })
}

/// Implements `query_device_ex` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `input` must be null or readable. `attr` must be
/// null or point to `attr_size` writable bytes.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    entry::status("ibv_query_device_ex", || {
        // SAFETY: `input` is non-null (checked first) and readable: the caller's contract, section
        // Safety.
        if !input.is_null() && unsafe { entry::read(input) }?.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr_size < offset_of!(ibv_device_attr_ex, odp_caps) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { context_of(context) }?;
        let device = opened.driver.device();
        // Members that stay zero report absent features: TSO, raw packet offloads, tag matching,
        // PCI atomics, and on-demand paging if the kernel does not offer it.
        let mut all = ibv_device_attr_ex::zeroed();
        all.orig_attr = device_attributes(device);
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = CLOCK_KHZ;
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags);
        all.device_cap_flags_ex |= DEVICE_FLUSH_GLOBAL | DEVICE_ATOMIC_WRITE;
        all.rss_caps = ibv_rss_caps {
            supported_qpts: 1 << IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: UNLIMITED.cast_unsigned(),
            max_rwq_indirection_table_size: MAX_ENTRIES as u32,
            rx_hash_fields_mask: HashFields::all().bits(),
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
        };
        all.max_wq_type_rq = UNLIMITED.cast_unsigned();
        all.packet_pacing_caps = ibv_packet_pacing_caps {
            qp_rate_limit_min: 1,
            qp_rate_limit_max: u32::MAX,
            supported_qpts: 1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD,
        };
        all.cq_mod_caps = ibv_cq_moderation_caps {
            max_cq_count: u16::MAX,
            max_cq_period: u16::MAX,
        };
        if odp::is_available() {
            all.odp_caps = odp_caps();
            all.xrc_odp_caps = ODP_RELIABLE;
        }
        all.max_dm_size = MAX_DM_SIZE as u64;
        all.phys_port_cnt_ex = u32::from(PORT);
        // SAFETY: `attr` is null or points to `attr_size` writable bytes: the caller's contract,
        // section Safety.
        unsafe { entry::write_as_known(attr, attr_size, &all) }
    })
}

/// Implements `query_rt_values` of a context: reads the clock of the completion timestamps. As in
/// drivers of hardware it is one number of ticks, in `tv_nsec`.
///
/// # Safety
/// `context` must be null or an opened device. `values` must be null or point to a readable and
/// writable structure.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    entry::status("ibv_query_rt_values_ex", || {
        // SAFETY: `context` is null or an opened device, and `values` null or readable: the
        // caller's contract, section Safety.
        let requested = unsafe {
            context_of(context)?;
            entry::read(values)?
        };
        if requested.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut result = requested;
        if requested.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            result.raw_clock = libc::timespec {
                tv_sec: 0,
                tv_nsec: urxe_net::now().0.cast_signed(),
            };
        }
        // SAFETY: `values` is writable: the caller's contract, section Safety.
        unsafe { entry::write(values, result) }
    })
}

/// The maximum of the violation counters, which have 16 bits and saturate (IBA 14.2.5.6).
const MAX_VIOLATIONS: u64 = 0xffff;

fn port_attributes(device: &Device) -> ibv_port_attr {
    let active = device.port_state() == PortState::Active;
    let mut attr = ibv_port_attr::zeroed();
    attr.state = device.port_state() as ibv_port_state;
    attr.max_mtu = ibv_mtu::from(Mtu::B4096 as u8);
    attr.active_mtu = ibv_mtu::from(device.active_mtu() as u8);
    attr.gid_tbl_len = GID_TABLE_LEN as c_int;
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = MAX_MESSAGE as u32;
    let (pkey, qkey) = device.key_violations();
    let saturate = |count: u64| count.min(MAX_VIOLATIONS) as u32;
    (attr.bad_pkey_cntr, attr.qkey_viol_cntr) = (saturate(pkey), saturate(qkey));
    attr.pkey_tbl_len = PKEYS;
    attr.max_vl_num = 1;
    let (width, lane) = device.speed().lanes();
    attr.active_width = width as u8;
    attr.active_speed = lane as u8;
    attr.active_speed_ex = u32::from(attr.active_speed);
    attr.phys_state = if active {
        PHYSICAL_LINK_UP
    } else {
        PHYSICAL_DISABLED
    };
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr.flags = IBV_QPF_GRH_REQUIRED;
    attr
}

/// Checks a port number.
///
/// # Errors
/// `EINVAL` if it is not that of the only port.
pub(super) fn check_port(number: impl Into<u32>) -> Result<(), Errno> {
    if number.into() == u32::from(PORT) {
        Ok(())
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// Implements `query_port` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `port_attr` must be null or point to `port_attr_len`
/// writable bytes.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
    port_attr_len: usize,
) -> c_int {
    entry::status("ibv_query_port", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { context_of(context) }?;
        let device = opened.driver.device();
        check_port(port_num)?;
        // SAFETY: `port_attr` is null or points to `port_attr_len` writable bytes: the caller's
        // contract, section Safety.
        unsafe { entry::write_as_known(port_attr, port_attr_len, &port_attributes(device)) }
    })
}

/// Reads the port attributes for programs that know only the first part of the structure.
///
/// # Safety
/// `context` must be null or an opened device. `port_attr` must be null or point to
/// [`COMPAT_PORT_ATTR_LEN`] writable bytes.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: `context` is null or an opened device, and `port_attr` null or writable for this
    // length: the caller's contract, section Safety.
    unsafe { query_port(context, port_num, port_attr.cast(), COMPAT_PORT_ATTR_LEN) }
}

/// Returns the GID with this index, or `None` for an empty entry.
fn gid_at(device: &Device, index: impl TryInto<usize>) -> Result<Option<Gid>, Errno> {
    match index.try_into() {
        Ok(index) if index < GID_TABLE_LEN => Ok(device.gid(index)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn gid_entry(device: &Device, gid: Gid, index: usize) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index: index as u32,
        port_num: u32::from(PORT),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: device.interface_index(),
    }
}

/// Reads an entry of the GID table; all zeros for an empty one.
///
/// # Safety
/// `context` must be null or an opened device. `gid` must be null or point to a writable GID.
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    entry::status_or_minus_one("ibv_query_gid", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { context_of(context) }?;
        let device = opened.driver.device();
        check_port(port_num)?;
        let raw = gid_at(device, index)?.unwrap_or_default().0;
        // SAFETY: `gid` is null or writable: the caller's contract, section Safety.
        unsafe { entry::write(gid, ibv_gid { raw }) }
    })
}

/// Reads an entry of the GID table with its type and interface; `ENODATA` for an empty one.
///
/// # Safety
/// `context` must be null or an opened device. `entry` must be null or point to `entry_size`
/// writable bytes.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    entry::status("ibv_query_gid_ex", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { context_of(context) }?;
        let device = opened.driver.device();
        check_entries(flags, entry_size)?;
        check_port(port_num)?;
        let gid = gid_at(device, gid_index)?.ok_or(Errno(libc::ENODATA))?;
        let known = gid_entry(device, gid, gid_index as usize);
        // SAFETY: `entry` is null or points to `entry_size` writable bytes: the caller's contract,
        // section Safety.
        unsafe { entry::write_as_known(entry, entry_size, &known) }
    })
}

/// Checks the flags and the entry size of a GID query. No flags are defined, and no version of the
/// entry was smaller.
fn check_entries(flags: u32, entry_size: usize) -> Result<(), Errno> {
    if flags != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if entry_size < size_of::<ibv_gid_entry>() {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// Reads the entries of the GID table that are not empty. Returns their number, or a negative errno
/// value.
///
/// # Safety
/// `context` must be null or an opened device. `entries` must be null or point to `max_entries *
/// entry_size` writable bytes.
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    entry::count("ibv_query_gid_table", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { context_of(context) }?;
        let device = opened.driver.device();
        check_entries(flags, entry_size)?;
        let gids = device.gids();
        if gids.len() > max_entries {
            return Err(Errno(libc::EINVAL));
        }
        for (place, (index, ip)) in gids.iter().enumerate() {
            let known = gid_entry(device, Gid::from_ip(*ip), *index);
            let at = entries.wrapping_byte_add(place * entry_size);
            // SAFETY: `entries` is null or points to `max_entries` writable entries, and `place <
            // max_entries` (checked above): the caller's contract, section Safety. `write_as_known`
            // rejects null at the first entry.
            unsafe { entry::write_as_known(at, entry_size, &known)? };
        }
        Ok(gids.len())
    })
}

/// Reads the type of a GID by sysfs's numbers: 1 is RoCEv2. An empty entry has type 0, RoCEv1, as
/// in rdma-core.
///
/// # Safety
/// `context` must be null or an opened device. `kind` must be null or point to a writable `u32`.
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    const SYSFS_ROCE_V1: u32 = 0;
    const SYSFS_ROCE_V2: u32 = 1;
    entry::status_or_minus_one("ibv_query_gid_type", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        let opened = unsafe { context_of(context) }?;
        let device = opened.driver.device();
        check_port(port_num)?;
        let found = match gid_at(device, index)? {
            Some(_) => SYSFS_ROCE_V2,
            None => SYSFS_ROCE_V1,
        };
        // SAFETY: `kind` is null or writable: the caller's contract, section Safety.
        unsafe { entry::write(kind, found) }
    })
}

/// Reads an entry of the P_Key table, in network byte order.
///
/// # Safety
/// `context` must be null or an opened device. `pkey` must be null or point to a writable `u16`.
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    entry::status_or_minus_one("ibv_query_pkey", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        unsafe { context_of(context) }?;
        check_port(port_num)?;
        if !(0..c_int::from(PKEYS)).contains(&index) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `pkey` is null or writable: the caller's contract, section Safety.
        unsafe { entry::write(pkey, PKey::DEFAULT.0.to_be()) }
    })
}

/// Returns the index of a P_Key, given in network byte order.
///
/// # Safety
/// `context` must be null or an opened device.
pub unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    entry::number("ibv_get_pkey_index", || {
        // SAFETY: `context` is null or an opened device: the caller's contract, section Safety.
        unsafe { context_of(context) }?;
        check_port(port_num)?;
        if u16::from_be(pkey) == PKey::DEFAULT.0 {
            Ok(0)
        } else {
            Err(Errno(libc::EINVAL))
        }
    })
}
