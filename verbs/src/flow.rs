//! Flow steering of raw packet queue pairs, and the counters of flows.

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
    type Ours = Steering;
}

/// What stands behind an `ibv_flow`.
#[derive(Debug)]
pub(super) struct Steering {
    pair: Arc<Qp>,
    number: u64,
    _qp: Use,
    _counters: Option<Use>,
}

/// `ibv_create_flow` of a context.
///
/// # Safety
/// The pointers are null, or a queue pair of ours and attributes that their specifications follow.
pub(super) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    flow_attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    entry::pointer("ibv_create_flow", || {
        // SAFETY: the caller's promise; the last makes no reference.
        let (pair, attr, context) = unsafe {
            (
                pair_of(qp)?,
                entry::read(flow_attr)?,
                (&raw const (*qp).context).read(),
            )
        };
        check_port(attr.port)?;
        // The host's network stack sees the frames in any case, which is what DONT_TRAP asks for.
        if attr.comp_mask != 0 || attr.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: the caller's promise.
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
        let shown = ibv_flow {
            comp_mask: 0,
            context,
            handle: object::number(),
        };
        let ours = Steering {
            pair: Arc::clone(&pair.driver),
            number,
            _qp: pair.flows.add(),
            _counters: specs.counters.map(|counters| counters.users.add()),
        };
        Ok(object::make(shown, ours))
    })
}

/// `ibv_destroy_flow` of a context.
///
/// # Safety
/// `flow` is null or a flow of ours, and used for nothing else any more.
pub(super) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    entry::status("ibv_destroy_flow", || {
        if flow.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        let ours = unsafe { object::free(flow) };
        ours.pair.remove_flow(ours.number);
        Ok(())
    })
}

/// What the specifications of a flow say.
struct Specs<'a> {
    patterns: Vec<Pattern>,
    action: Action,
    counters: Option<&'a Counters>,
}

/// # Safety
/// So many specifications follow the attributes, each as long as it says.
unsafe fn read_specs<'a>(attr: *const ibv_flow_attr, count: u8) -> Result<Specs<'a>, Errno> {
    let mut specs = Specs {
        patterns: Vec::new(),
        action: Action::Deliver,
        counters: None,
    };
    let mut at = attr.wrapping_add(1).cast::<u8>();
    for _ in 0..count {
        // SAFETY: the caller's promise.
        let header = unsafe { at.cast::<ibv_flow_spec_spec_hdr>().read_unaligned() };
        let spec = Spec {
            at,
            size: header.size.into(),
        };
        // SAFETY: as above: each is of the type that its header says.
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
                    specs.counters = Some(object::ours(count.counters)?);
                }
                // Tunnels and what they hold, tags, and what only hardware does to packets.
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
    /// # Safety
    /// It is a `T`, as long as it says.
    unsafe fn read<T: Copy>(&self) -> Result<T, Errno> {
        if self.size < size_of::<T>() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
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

/// Where the addresses are in an IPv4 header; the others are the type of service, the time to live
/// and the protocol.
const IPV4_ADDRESSES: usize = 12;
const IPV4_TOS: usize = 1;
const IPV4_TTL: usize = 8;
const IPV4_PROTOCOL: usize = 9;

/// Addresses are in network order there already.
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
        // Four bits of version, eight of traffic class, twenty of flow label.
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
    type Ours = Counters;
}

/// What stands behind an `ibv_counters`.
#[derive(Debug)]
pub(super) struct Counters {
    counter: Arc<FlowCounter>,
    /// What each place of a reading shows.
    places: Mutex<Vec<Option<ibv_counter_description>>>,
    /// The flows that count.
    users: Users,
    _context: Use,
}

/// The most places of a reading.
const MAX_PLACES: usize = 64;

/// `create_counters` of a context.
///
/// # Safety
/// The pointers are null, or an opened device and attributes.
pub(super) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init_attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    entry::pointer("ibv_create_counters", || {
        // SAFETY: the caller's promise.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(init_attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let ours = Counters {
            counter: Arc::default(),
            places: Mutex::default(),
            users: Users::default(),
            _context: device.users.add(),
        };
        Ok(object::make(ibv_counters { context }, ours))
    })
}

/// `destroy_counters` of a context. `EBUSY` while a flow counts there.
///
/// # Safety
/// `counters` is null or counters of ours, and used for nothing else any more.
pub(super) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    entry::status("ibv_destroy_counters", || {
        // SAFETY: the caller's promise.
        unsafe { object::ours(counters) }?.users.check_none()?;
        // SAFETY: as above, and nothing uses it.
        drop(unsafe { object::free(counters) });
        Ok(())
    })
}

/// `attach_counters_point_flow` of a context: says what a reading shows in a place. The flow is what
/// names the counters when it is made, so none is given here.
///
/// # Safety
/// The pointers are null, or counters of ours and attributes.
pub(super) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    entry::status("ibv_attach_counters_point_flow", || {
        // SAFETY: the caller's promise.
        let (counters, attr) = unsafe { (object::ours(counters)?, entry::read(attr)?) };
        if attr.comp_mask != 0 || !flow.is_null() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let known = [IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES].contains(&attr.counter_desc);
        let place = attr.index as usize;
        if !known || place >= MAX_PLACES {
            return Err(Errno(libc::EINVAL));
        }
        // A flow that counts already would have counted for less than it shows.
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

/// `read_counters` of a context.
///
/// # Safety
/// The pointers are null, or counters of ours and room for `ncounters` values.
pub(super) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    counters_value: *mut u64,
    ncounters: u32,
    flags: u32,
) -> c_int {
    entry::status("ibv_read_counters", || {
        // SAFETY: the caller's promise.
        let counters = unsafe { object::ours(counters) }?;
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
            // SAFETY: as above.
            unsafe { entry::write(counters_value.wrapping_add(index), value) }?;
        }
        Ok(())
    })
}
