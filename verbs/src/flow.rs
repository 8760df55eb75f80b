//! Flow steering for raw packet queue pairs, and the counters of flows.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use urxe_driver::Qp;
use urxe_driver::raw::{Action, Flow, FlowCounter, Header, Pattern, Select};

use super::context::context_of;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::qp::pair_of;
use super::query::check_port;

impl Handle for ibv_flow {
    type State = Steering;
}

/// The library's state behind an `ibv_flow`.
#[derive(Debug)]
pub(super) struct Steering {
    pair: Arc<Qp>,
    number: u64,
    _qp: Use,
    _counters: Option<Use>,
}

/// Implements `ibv_create_flow` of a context.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `flow_attr` must be null or
/// point to readable attributes that `num_of_specs` specifications follow. Each of these must have
/// the type and the size that its header gives. Counters that they name must be null or live.
pub(super) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    flow_attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    entry::pointer("ibv_create_flow", || {
        // SAFETY: `qp` is null or live, and `flow_attr` null or readable: the caller's contract,
        // section Safety. `context` is read only after `pair_of` has rejected a null `qp`, and
        // without a reference.
        let (pair, attr, context) = unsafe {
            (
                pair_of(qp)?,
                entry::read(flow_attr)?,
                (&raw const (*qp).context).read(),
            )
        };
        check_port(attr.port)?;
        // The host's network stack receives the frames in any case, as `DONT_TRAP` requests.
        if attr.comp_mask != 0 || attr.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: `num_of_specs` specifications follow the attributes: the caller's contract,
        // section Safety.
        let specs = unsafe { read_specs(flow_attr, attr.num_of_specs) }?;
        let select = match attr.r#type {
            IBV_FLOW_ATTR_NORMAL if specs.patterns.is_empty() => Select::All,
            IBV_FLOW_ATTR_NORMAL => Select::Matching(specs.patterns),
            _ if attr.num_of_specs > 0 => return Err(Errno(libc::EINVAL)),
            IBV_FLOW_ATTR_ALL_DEFAULT | IBV_FLOW_ATTR_SNIFFER => Select::All,
            IBV_FLOW_ATTR_MC_DEFAULT => Select::Multicast,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let flow = Flow {
            priority: attr.priority,
            select,
            action: specs.action,
            counter: specs.counters.map(|counters| Arc::clone(&counters.counter)),
        };
        let number = pair
            .driver
            .add_flow(flow)
            .map_err(|error| match error.kind() {
                io::ErrorKind::Unsupported => Errno(libc::EOPNOTSUPP),
                _ => Errno::from(error),
            })?;
        let handle = ibv_flow {
            comp_mask: 0,
            context,
            handle: object::number(),
        };
        let state = Steering {
            pair: Arc::clone(&pair.driver),
            number,
            _qp: pair.flows.add(),
            _counters: specs.counters.map(|counters| counters.users.add()),
        };
        Ok(object::make(handle, state))
    })
}

/// Implements `ibv_destroy_flow` of a context.
///
/// # Safety
/// `flow` must be null or a live flow created by this library. No other call may use it now or
/// later.
pub(super) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    entry::status("ibv_destroy_flow", || {
        if flow.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `flow` is non-null (checked above) and live, and no other call uses it: the
        // caller's contract, section Safety.
        let state = unsafe { object::free(flow) };
        state.pair.remove_flow(state.number);
        Ok(())
    })
}

/// The specifications of a flow.
struct Specs<'a> {
    patterns: Vec<Pattern>,
    action: Action,
    counters: Option<&'a Counters>,
}

/// Reads the specifications that follow the attributes of a flow.
///
/// # Safety
/// `count` readable specifications must follow `attr`. Each must have the type and the size that
/// its header gives. Counters that they name must be null or live for `'a`.
unsafe fn read_specs<'a>(attr: *const ibv_flow_attr, count: u8) -> Result<Specs<'a>, Errno> {
    let mut specs = Specs {
        patterns: Vec::new(),
        action: Action::Deliver,
        counters: None,
    };
    let mut at = attr.wrapping_add(1).cast::<u8>();
    for _ in 0..count {
        // SAFETY: `at` is the start of one of the `count` specifications, each of which starts with
        // a header: the caller's contract, section Safety.
        let header = unsafe { at.cast::<ibv_flow_spec_spec_hdr>().read_unaligned() };
        let spec = Spec {
            at,
            size: header.size.into(),
        };
        // SAFETY: the specification has the type and size of its header, and its counters are null
        // or live: the caller's contract, section Safety.
        unsafe {
            match header.r#type {
                IBV_FLOW_SPEC_ETH => specs.patterns.push(ethernet(&spec.read()?)),
                IBV_FLOW_SPEC_IPV4 => specs.patterns.push(ipv4(&spec.read()?)),
                IBV_FLOW_SPEC_IPV4_EXT => specs.patterns.push(ipv4_ext(&spec.read()?)?),
                IBV_FLOW_SPEC_IPV6 => specs.patterns.push(ipv6(&spec.read()?)),
                IBV_FLOW_SPEC_TCP => specs.patterns.push(ports(Header::Tcp, &spec.read()?)),
                IBV_FLOW_SPEC_UDP => specs.patterns.push(ports(Header::Udp, &spec.read()?)),
                IBV_FLOW_SPEC_ACTION_DROP => specs.action = Action::Drop,
                IBV_FLOW_SPEC_ACTION_COUNT => {
                    let count: ibv_flow_spec_counter_action = spec.read()?;
                    specs.counters = Some(object::state_of(count.counters)?);
                }
                // Tunnels and inner headers, tags, and actions that only hardware performs.
                _ => return Err(Errno(libc::EOPNOTSUPP)),
            }
        }
        at = at.wrapping_add(spec.size);
    }
    Ok(specs)
}

/// A specification in the program's memory.
struct Spec {
    at: *const u8,
    size: usize,
}

impl Spec {
    /// Reads the specification as a `T`.
    ///
    /// # Errors
    /// `EINVAL` if it is shorter than a `T`.
    ///
    /// # Safety
    /// `at` must point to `size` readable bytes, and the type of the specification must be `T`.
    unsafe fn read<T: Copy>(&self) -> Result<T, Errno> {
        if self.size < size_of::<T>() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `size` readable bytes hold a `T` (checked above), of that type: the caller's
        // contract, section Safety. The read needs no alignment.
        Ok(unsafe { self.at.cast::<T>().read_unaligned() })
    }
}

fn ethernet(spec: &ibv_flow_spec_eth) -> Pattern {
    let bytes = |filter: &ibv_flow_eth_filter| {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&filter.dst_mac);
        bytes[6..12].copy_from_slice(&filter.src_mac);
        bytes[12..14].copy_from_slice(&filter.ether_type.to_ne_bytes());
        bytes[14..].copy_from_slice(&filter.vlan_tag.to_ne_bytes());
        bytes
    };
    Pattern::any(Header::Ethernet).with(0, &bytes(&spec.val), &bytes(&spec.mask))
}

/// The offset of the addresses in an IPv4 header. The other offsets are those of the type of
/// service, the time to live and the protocol.
const IPV4_ADDRESSES: usize = 12;
const IPV4_TOS: usize = 1;
const IPV4_TTL: usize = 8;
const IPV4_PROTOCOL: usize = 9;

/// Returns the pattern for addresses. They are in network byte order already.
fn ipv4_addresses(val: [u32; 2], mask: [u32; 2]) -> Pattern {
    let at = |index: usize| IPV4_ADDRESSES + 4 * index;
    (0..2).fold(Pattern::any(Header::Ipv4), |pattern, index| {
        let (val, mask) = (val[index].to_ne_bytes(), mask[index].to_ne_bytes());
        pattern.with(at(index), &val, &mask)
    })
}

fn ipv4(spec: &ibv_flow_spec_ipv4) -> Pattern {
    let addresses = |filter: &ibv_flow_ipv4_filter| [filter.src_ip, filter.dst_ip];
    ipv4_addresses(addresses(&spec.val), addresses(&spec.mask))
}

fn ipv4_ext(spec: &ibv_flow_spec_ipv4_ext) -> Result<Pattern, Errno> {
    let (val, mask) = (&spec.val, &spec.mask);
    if mask.flags != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let addresses = |filter: &ibv_flow_ipv4_ext_filter| [filter.src_ip, filter.dst_ip];
    Ok(ipv4_addresses(addresses(val), addresses(mask))
        .with(IPV4_TOS, &[val.tos], &[mask.tos])
        .with(IPV4_TTL, &[val.ttl], &[mask.ttl])
        .with(IPV4_PROTOCOL, &[val.proto], &[mask.proto]))
}

fn ipv6(spec: &ibv_flow_spec_ipv6) -> Pattern {
    let bytes = |filter: &ibv_flow_ipv6_filter| {
        let mut bytes = [0; 40];
        // 4 bits of version, 8 of traffic class, 20 of flow label.
        let first =
            u32::from(filter.traffic_class) << 20 | u32::from_be(filter.flow_label) & 0x000f_ffff;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[6] = filter.next_hdr;
        bytes[7] = filter.hop_limit;
        bytes[8..24].copy_from_slice(&filter.src_ip);
        bytes[24..].copy_from_slice(&filter.dst_ip);
        bytes
    };
    Pattern::any(Header::Ipv6).with(0, &bytes(&spec.val), &bytes(&spec.mask))
}

fn ports(header: Header, spec: &ibv_flow_spec_tcp_udp) -> Pattern {
    let bytes = |filter: &ibv_flow_tcp_udp_filter| {
        let [a, b] = filter.src_port.to_ne_bytes();
        let [c, d] = filter.dst_port.to_ne_bytes();
        [a, b, c, d]
    };
    Pattern::any(header).with(0, &bytes(&spec.val), &bytes(&spec.mask))
}

impl Handle for ibv_counters {
    type State = Counters;
}

/// The library's state behind an `ibv_counters`.
#[derive(Debug)]
pub(super) struct Counters {
    counter: Arc<FlowCounter>,
    /// The counter that each index of a reading reports.
    places: Mutex<Vec<Option<ibv_counter_description>>>,
    /// The flows that count with it.
    users: Users,
    _context: Use,
}

/// The maximum number of indices of a reading.
const MAX_PLACES: usize = 64;

/// Implements `create_counters` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr` must be null or point to readable
/// attributes.
pub(super) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init_attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    entry::pointer("ibv_create_counters", || {
        // SAFETY: `context` is null or an opened device, and `init_attr` null or readable: the
        // caller's contract, section Safety.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(init_attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let state = Counters {
            counter: Arc::default(),
            places: Mutex::default(),
            users: Users::default(),
            _context: device.users.add(),
        };
        Ok(object::make(ibv_counters { context }, state))
    })
}

/// Implements `destroy_counters` of a context. `EBUSY` while a flow counts with it.
///
/// # Safety
/// `counters` must be null or live counters created by this library. No other call may use them now
/// or later.
pub(super) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    entry::status("ibv_destroy_counters", || {
        // SAFETY: `counters` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(counters) }?.users.check_none()?;
        // SAFETY: `counters` is live, and no other call uses it: the caller's contract, section
        // Safety. No flow uses it (checked above).
        drop(unsafe { object::free(counters) });
        Ok(())
    })
}

/// Implements `attach_counters_point_flow` of a context: sets the counter that an index of a
/// reading reports. A flow names its counters when it is created, so `flow` must be null.
///
/// # Safety
/// `counters` must be null or live counters created by this library. `attr` must be null or point
/// to readable attributes.
pub(super) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    entry::status("ibv_attach_counters_point_flow", || {
        // SAFETY: `counters` is null or live, and `attr` null or readable: the caller's contract,
        // section Safety.
        let (counters, attr) = unsafe { (object::state_of(counters)?, entry::read(attr)?) };
        if attr.comp_mask != 0 || !flow.is_null() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let known = [IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES].contains(&attr.counter_desc);
        let place = attr.index as usize;
        if !known || place >= MAX_PLACES {
            return Err(Errno(libc::EINVAL));
        }
        // A flow that counts already has counted packets without this index.
        counters.users.check_none()?;
        let mut places = counters
            .places
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let len = places.len().max(place + 1);
        places.resize(len, None);
        places[place] = Some(attr.counter_desc);
        Ok(())
    })
}

/// Implements `read_counters` of a context.
///
/// # Safety
/// `counters` must be null or live counters created by this library. `counters_value` must be null
/// or point to `ncounters` writable `u64`.
pub(super) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    counters_value: *mut u64,
    ncounters: u32,
    flags: u32,
) -> c_int {
    entry::status("ibv_read_counters", || {
        // SAFETY: `counters` is null or live: the caller's contract, section Safety.
        let counters = unsafe { object::state_of(counters) }?;
        if flags & !IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let places = counters
            .places
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for index in 0..ncounters as usize {
            let value = match places.get(index).copied().flatten() {
                Some(IBV_COUNTER_PACKETS) => counters.counter.packets.load(Ordering::Relaxed),
                Some(_) => counters.counter.bytes.load(Ordering::Relaxed),
                None => 0,
            };
            // SAFETY: `counters_value` is null or points to `ncounters` writable values, and `index
            // < ncounters`: the caller's contract, section Safety. `entry::write` rejects null at
            // index 0.
            unsafe { entry::write(counters_value.wrapping_add(index), value) }?;
        }
        Ok(())
    })
}
