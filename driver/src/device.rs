//! Devices: one for each network interface that is up (see ARCHITECTURE.md).

use crate::cm;
use crate::engine;
use crate::event_queue::lock;
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::per_process::PerProcess;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use urxe_net::{Address, Interface, LocalAddress, OpenError, list_interfaces};
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;

/// What device names start with; the interface's name follows.
pub const NAME_PREFIX: &str = "urxe_";

/// The number of the one port that a device has.
pub const PORT: u8 = 1;

/// How many GIDs a port has room for.
pub const GID_TABLE_LEN: usize = 256;

/// Whether a port carries packets; the numbers of `enum ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PortState {
    /// The interface is down.
    Down = 1,
    /// It is up.
    Active = 4,
}

/// A device: what programs see of a network interface.
#[derive(Debug)]
pub struct Device {
    name: String,
    interface: String,
    index: u32,
    loopback: bool,
    guid: [u8; 8],
    port: RwLock<Port>,
    /// Whether the interface is gone.
    gone: AtomicBool,
    /// Where changes are told: the events of those who have it open.
    listeners: Mutex<Vec<Weak<AsyncEvents>>>,
    /// Whether its link has another address, which its users were not told.
    moved: AtomicBool,
    /// Who is told what a program's identifiers of the connection manager are told, by where it is.
    users: Mutex<HashMap<usize, Weak<dyn DeviceUser>>>,
    /// Whether datagrams are taken at all of its addresses, those to come included.
    open_everywhere: AtomicBool,
}

/// Who uses a device and is told what becomes of it, by a thread that holds no lock.
pub(crate) trait DeviceUser: Send + Sync + fmt::Debug {
    /// The interface is gone.
    fn device_removed(&self);

    /// The interface has another link address.
    fn link_address_changed(&self);
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Port {
    state: PortState,
    interface_mtu: u32,
    mac: Option<[u8; 6]>,
    /// The GID table. An address keeps its index as long as it is there; index 0 is an IPv4 address
    /// where there was one when the device was found.
    gids: Vec<Option<IpAddr>>,
}

/// The devices of this host, the one with the default route first, the loopback last.
///
/// # Errors
/// When the kernel does not tell the interfaces.
pub fn devices() -> io::Result<Vec<Arc<Device>>> {
    let interfaces = list_interfaces()?;
    let usable = interfaces
        .iter()
        .filter(|interface| unusable(interface).is_none());
    Ok(usable.map(known_or_new).collect())
}

/// The interfaces that make no device, and why.
///
/// # Errors
/// When the kernel does not tell the interfaces.
pub fn unusable_interfaces() -> io::Result<Vec<(String, &'static str)>> {
    let interfaces = list_interfaces()?;
    let why = |interface: &Interface| Some((interface.name.clone(), unusable(interface)?));
    Ok(interfaces.iter().filter_map(why).collect())
}

/// Why an interface makes no device.
fn unusable(interface: &Interface) -> Option<&'static str> {
    if !interface.up {
        return Some("it is down (`ip link set dev NAME up`)");
    }
    if interface.addresses.is_empty() {
        return Some("it has no address (`ip address add`)");
    }
    if Mtu::for_interface(interface.mtu).is_none() {
        return Some("its MTU is too small for RoCE packets");
    }
    None
}

/// The devices that are in use. All users share one object for each, so that all see its changes.
static KNOWN: PerProcess<Mutex<Vec<Weak<Device>>>> = PerProcess::new();

fn known() -> MutexGuard<'static, Vec<Weak<Device>>> {
    lock(KNOWN.get(Mutex::default))
}

fn known_or_new(interface: &Interface) -> Arc<Device> {
    let mut known = known();
    known.retain(|device| device.strong_count() > 0);
    let found = known
        .iter()
        .filter_map(Weak::upgrade)
        .find(|device| device.index == interface.index && device.interface == interface.name);
    if let Some(device) = found {
        device.update(interface);
        return device;
    }
    let device = Arc::new(Device::new(interface));
    known.push(Arc::downgrade(&device));
    device
}

/// The local addresses of the device of this name, if somebody has it.
pub(crate) fn addresses_of(name: &str) -> Vec<LocalAddress> {
    let known: Vec<_> = known().iter().filter_map(Weak::upgrade).collect();
    let devices = known.iter().filter(|device| device.name == name);
    devices.flat_map(|device| device.sources()).collect()
}

impl Device {
    fn new(interface: &Interface) -> Device {
        let mut port = Port {
            state: PortState::Down,
            interface_mtu: 0,
            mac: None,
            gids: Vec::new(),
        };
        port.update(interface);
        Device {
            name: format!("{NAME_PREFIX}{}", interface.name),
            interface: interface.name.clone(),
            index: interface.index,
            loopback: interface.loopback,
            guid: eui64(mac(interface)),
            port: RwLock::new(port),
            gone: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            moved: AtomicBool::new(false),
            users: Mutex::default(),
            open_everywhere: AtomicBool::new(false),
        }
    }

    /// Its name: `urxe_` and the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The interface's number.
    pub fn interface_index(&self) -> u32 {
        self.index
    }

    /// Whether it is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// The node GUID, in network order: the EUI-64 of the interface's MAC address, so it stays.
    pub fn guid(&self) -> [u8; 8] {
        self.guid
    }

    /// Whether the port carries packets.
    pub fn port_state(&self) -> PortState {
        self.port().state
    }

    /// The interface's MTU, in bytes.
    pub fn interface_mtu(&self) -> u32 {
        self.port().interface_mtu
    }

    /// The largest path MTU whose packets fit the interface.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::for_interface(self.port().interface_mtu).unwrap_or(Mtu::B256)
    }

    /// Packets for queue pairs of this process that had a partition key or a queue key that is not
    /// theirs (`P_KeyViolations` and `Q_KeyViolations` of 14.2.5.6, beyond whose 16 bits they count).
    pub fn key_violations(&self) -> (u64, u64) {
        let counted = engine::get().totals_of(&self.name).transport;
        (counted.bad_pkey, counted.bad_qkey)
    }

    /// The GID with this index; `None` where the table has an empty entry or ends.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.port()
            .gids
            .get(index)
            .copied()
            .flatten()
            .map(Gid::from_ip)
    }

    /// The GID table: index and address.
    pub fn gids(&self) -> Vec<(usize, IpAddr)> {
        let port = self.port();
        port.gids
            .iter()
            .enumerate()
            .filter_map(|(i, ip)| Some((i, (*ip)?)))
            .collect()
    }

    /// The local address that packets with this source GID come from.
    pub fn source(&self, gid_index: u8) -> Option<LocalAddress> {
        let ip = self
            .port()
            .gids
            .get(usize::from(gid_index))
            .copied()
            .flatten()?;
        Some(LocalAddress::new(ip, self.index))
    }

    /// All local addresses, in the order of their GIDs.
    pub(crate) fn sources(&self) -> impl Iterator<Item = LocalAddress> + use<> {
        let index = self.index;
        let gids = self.gids();
        gids.into_iter()
            .map(move |(_, ip)| LocalAddress::new(ip, index))
    }

    /// Opens all of its addresses, and from now on those that come later.
    ///
    /// # Errors
    /// When none can be opened.
    pub(crate) fn open_everywhere(&self) -> Result<(), OpenError> {
        self.open_everywhere.store(true, Ordering::Release);
        engine::get().open_all(self.sources())
    }

    /// Opens addresses that have come, if that is wanted.
    fn open_new(&self) {
        if self.open_everywhere.load(Ordering::Acquire)
            && let Err(error) = engine::get().open_all(self.sources())
        {
            tracing::warn!(device = self.name, %error, "no datagrams arrive at new addresses");
        }
    }

    /// Whose events tell of changes of this device.
    pub(crate) fn listen(&self, events: &Arc<AsyncEvents>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
    }

    /// From now on `user` is told what becomes of the device.
    pub(crate) fn used_by(&self, user: Weak<dyn DeviceUser>) {
        lock(&self.users).insert(user.as_ptr().addr(), user);
    }

    /// `user` is told no more.
    pub(crate) fn not_used_by(&self, user: &dyn DeviceUser) {
        lock(&self.users).remove(&std::ptr::from_ref(user).addr());
    }

    /// Tells its users what they do not know. They take locks, and so do those who look at interfaces
    /// when they call for a list: this is for a thread that holds none.
    fn tell_users(&self) {
        let moved = self.moved.swap(false, Ordering::AcqRel);
        let gone = self.gone.load(Ordering::Acquire);
        if !moved && !gone {
            return;
        }
        let users: Vec<_> = lock(&self.users)
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for user in users {
            if gone {
                user.device_removed();
            } else {
                user.link_address_changed();
            }
        }
    }

    /// Takes what the kernel says now.
    fn update(&self, interface: &Interface) {
        self.change(|port| port.update(interface));
    }

    /// The interface is gone, and will not come back: one of the same name is another.
    fn lost(&self) {
        self.change(|port| {
            port.state = PortState::Down;
            port.gids.fill(None);
        });
        if !self.gone.swap(true, Ordering::AcqRel) {
            self.tell(EventType::DeviceFatal, &EventObject::Device);
        }
    }

    /// Changes the port, and tells who listens what changed.
    fn change(&self, change: impl FnOnce(&mut Port)) {
        let mut port = self.port.write().unwrap_or_else(PoisonError::into_inner);
        let before = port.clone();
        change(&mut port);
        let mut changes = Vec::new();
        if port.gids != before.gids {
            changes.push(EventType::GidChange);
        }
        match (before.state, port.state) {
            (PortState::Down, PortState::Active) => changes.push(EventType::PortActive),
            (PortState::Active, PortState::Down) => changes.push(EventType::PortErr),
            _ => {}
        }
        if port.mac != before.mac {
            self.moved.store(true, Ordering::Release);
        }
        drop(port);
        if changes.contains(&EventType::PortErr) {
            engine::get().counters_of(&self.name).link_downed.add(1);
        }
        for kind in changes {
            self.tell(kind, &EventObject::Port(PORT));
        }
    }

    /// Tells an event to those who have it open.
    fn tell(&self, kind: EventType, object: &EventObject) {
        for events in lock(&self.listeners).iter().filter_map(Weak::upgrade) {
            events.push(AsyncEvent {
                kind,
                object: object.clone(),
            });
        }
    }

    fn port(&self) -> std::sync::RwLockReadGuard<'_, Port> {
        self.port.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port {
    fn update(&mut self, interface: &Interface) {
        self.interface_mtu = interface.mtu;
        self.mac = interface.mac;
        self.state = if interface.up {
            PortState::Active
        } else {
            PortState::Down
        };
        let mut fresh: Vec<IpAddr> = interface.addresses.iter().map(Address::ip).collect();
        // IPv4 before IPv6, and of IPv6 what has a scope beyond the link before what has not.
        fresh.sort_by_key(|ip| match ip {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
            IpAddr::V6(_) => 1,
        });
        for entry in &mut self.gids {
            match entry {
                Some(ip) if !fresh.contains(ip) => *entry = None,
                _ => {}
            }
        }
        fresh.retain(|ip| !self.gids.contains(&Some(*ip)));
        for ip in fresh {
            match self.gids.iter().position(Option::is_none) {
                Some(free) => self.gids[free] = Some(ip),
                None if self.gids.len() < GID_TABLE_LEN => self.gids.push(Some(ip)),
                None => {}
            }
        }
    }
}

/// The interface's MAC address, or, where it has none, what tells it from others of the host.
fn mac(interface: &Interface) -> [u8; 6] {
    let [a, b, c, d] = interface.index.to_be_bytes();
    interface.mac.unwrap_or([0, 0, a, b, c, d])
}

/// The EUI-64 of a MAC address, as IPv6 interface identifiers have it (RFC 4291, appendix A).
fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// Looks at the interfaces again, for the devices that somebody has, and tells whom it concerns. No lock
/// may be held.
pub(crate) fn refresh() {
    let interfaces = match list_interfaces() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::debug!(%error, "the kernel does not tell the interfaces");
            return;
        }
    };
    let known: Vec<_> = known().iter().filter_map(Weak::upgrade).collect();
    for device in &known {
        match interfaces
            .iter()
            .find(|interface| interface.index == device.index)
        {
            Some(interface) => device.update(interface),
            None => device.lost(),
        }
        device.tell_users();
        device.open_new();
    }
    cm::addresses_changed();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::child_finishes;

    #[test]
    fn child_lists_devices_though_a_thread_of_its_parent_did() {
        let _held = known();
        child_finishes(|| {
            devices().unwrap();
        });
    }
}
