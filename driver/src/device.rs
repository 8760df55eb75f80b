//! Devices: one for each usable network interface that is selected (see ARCHITECTURE.md).

mod selection;
mod speed;
mod watched;

use crate::counters;
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::per_process::PerProcess;
use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use urxe_net::{Address, Interface, LocalAddress, list_interfaces, variable};
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;

pub use selection::{NAME_PREFIX, Selection, SelectionError, VARIABLE};
pub use speed::{LaneSpeed, Speed, SpeedError, Width};

/// The number of a device's only port.
pub const PORT: u8 = 1;

/// The number of entries of a port's GID table.
pub const GID_TABLE_LEN: usize = 256;

/// The state of a port; the values of `enum ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PortState {
    /// The interface is down.
    Down = 1,
    /// The interface is up.
    Active = 4,
}

/// A device: a network interface as verbs applications see it.
#[derive(Debug)]
pub struct Device {
    name: String,
    speed: Speed,
    interface: String,
    index: u32,
    loopback: bool,
    guid: [u8; 8],
    port: RwLock<Port>,
    /// Whether the interface was removed.
    gone: AtomicBool,
    /// The event queues of the contexts that have the device open.
    listeners: Mutex<Vec<Weak<AsyncEvents>>>,
    /// Whether the link address has changed and the users have not been notified.
    moved: AtomicBool,
    /// The connection manager identifiers to notify, by their address in memory.
    users: Mutex<HashMap<usize, Weak<dyn DeviceUser>>>,
    /// Whether datagrams are received at all of its addresses, including future ones.
    open_everywhere: AtomicBool,
}

/// A user of a device that is notified of changes, by a thread that holds no lock.
pub(crate) trait DeviceUser: Send + Sync + fmt::Debug {
    /// Called after the interface was removed.
    fn device_removed(&self);

    /// Called after the link address of the interface has changed.
    fn link_address_changed(&self);
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Port {
    state: PortState,
    interface_mtu: u32,
    mac: Option<[u8; 6]>,
    /// The GID table. An address keeps its index as long as the interface has it. Index 0 is an
    /// IPv4 address if the interface had one when the device was created.
    gids: Vec<Option<IpAddr>>,
}

/// Returns the devices of this process: the selected ones in the order of [`Selection`]. Without a
/// selection, all devices of this host, the one with the default route first; the loopback device
/// is one of them only if no other device is active.
///
/// # Errors
/// The error of the system call if the kernel does not list the interfaces, or a
/// [`SelectionError`] as an error of kind [`io::ErrorKind::InvalidInput`].
pub fn devices() -> io::Result<Vec<Arc<Device>>> {
    chosen_devices(usable_interfaces()?)
}

/// Like [`devices`], for calls that are made for each connection.
///
/// # Errors
/// As for [`devices`].
pub(crate) fn watched_devices() -> io::Result<Vec<Arc<Device>>> {
    chosen_devices(usable(watched::interfaces()?))
}

fn chosen_devices(mut interfaces: Vec<Interface>) -> io::Result<Vec<Arc<Device>>> {
    choose(selection()?, &mut interfaces);
    Ok(interfaces.iter().map(known_or_new).collect())
}

/// Returns the devices that a program can name: those of [`devices`] and, without a selection, also
/// the loopback device, as the last one.
///
/// # Errors
/// As for [`devices`].
pub fn devices_by_name() -> io::Result<Vec<Arc<Device>>> {
    match selection()? {
        Some(_) => devices(),
        None => all_devices(),
    }
}

/// Keeps the selected interfaces, in the order of their devices.
///
/// The loopback device of one host cannot reach that of another, but both have the same addresses.
/// UCX takes the two for connected: it spreads large messages over all pairs of devices, and the
/// transfer hangs. Mooncake pairs devices in the same way. So programs that use all devices get the
/// loopback device only where they have no other.
fn choose(selection: Option<&Selection>, interfaces: &mut Vec<Interface>) {
    match selection {
        Some(selection) => {
            interfaces.retain(|interface| selection.rank(&interface.name).is_some());
            // The sort is stable: the interfaces of one pattern keep their order.
            interfaces.sort_by_key(|interface| selection.rank(&interface.name));
        }
        None if has_link(interfaces) => interfaces.retain(|interface| !interface.loopback),
        None => {}
    }
}

/// Returns whether a device other than the loopback device is active.
fn has_link(interfaces: &[Interface]) -> bool {
    let mut others = interfaces.iter().filter(|interface| !interface.loopback);
    others.any(|interface| interface.running)
}

/// Returns all devices of this host, including those that are not selected.
///
/// # Errors
/// The error of the system call if the kernel does not list the interfaces.
pub(crate) fn all_devices() -> io::Result<Vec<Arc<Device>>> {
    Ok(usable_interfaces()?.iter().map(known_or_new).collect())
}

fn usable_interfaces() -> io::Result<Vec<Interface>> {
    list_interfaces().map(usable)
}

fn usable(mut interfaces: Vec<Interface>) -> Vec<Interface> {
    interfaces.retain(|interface| unusable(interface).is_none());
    interfaces
}

/// Returns the interfaces that have no device, each with the reason.
///
/// # Errors
/// As for [`devices`].
pub fn interfaces_without_device() -> io::Result<Vec<(String, String)>> {
    let selection = selection()?;
    let interfaces = list_interfaces()?;
    let mut chosen = usable_interfaces()?;
    choose(selection, &mut chosen);
    let not_chosen = match selection {
        Some(_) => "URXE_DEVICES leaves it out",
        None => "it connects to no other host (`URXE_DEVICES=*` includes it)",
    };
    let why = |interface: &Interface| {
        let is_chosen = chosen.iter().any(|chosen| chosen.index == interface.index);
        let why = unusable(interface).or_else(|| (!is_chosen).then_some(not_chosen));
        Some((
            interface.name.clone(),
            why?.replace("NAME", &interface.name),
        ))
    };
    Ok(interfaces.iter().filter_map(why).collect())
}

/// Returns a message if there are devices, but none is selected.
pub fn explain_empty_selection() -> Option<String> {
    let selection = selection().ok()??;
    let usable = usable_interfaces().ok()?;
    if usable.is_empty() || usable.iter().any(|i| selection.rank(&i.name).is_some()) {
        return None;
    }
    let names: Vec<&str> = usable.iter().map(|i| i.name.as_str()).collect();
    Some(format!(
        "no devices: {VARIABLE}={selection} selects none of the usable interfaces, which are {}: \
         select one of these, or unset {VARIABLE} for all",
        names.join(", ")
    ))
}

/// The selection, `None` for all devices. It does not change: programs list devices repeatedly and
/// rely on the same result.
static SELECTION: OnceLock<Option<Selection>> = OnceLock::new();

/// Selects the devices of this process, in place of [`VARIABLE`]. Has no effect after the devices
/// were listed.
pub fn select(selection: Selection) {
    // An earlier selection is kept.
    let _ = SELECTION.set(Some(selection));
}

/// Returns the selection of this process, which is read from the environment once.
fn selection() -> io::Result<Option<&'static Selection>> {
    if let Some(selection) = SELECTION.get() {
        return Ok(selection.as_ref());
    }
    let text = variable(VARIABLE).filter(|text| !text.is_empty());
    let parsed = text.map(|text| text.parse::<Selection>()).transpose();
    let selection = parsed.map_err(|error| {
        let message = format!("{VARIABLE}: {error}");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    Ok(SELECTION.get_or_init(|| selection).as_ref())
}

/// Returns the name and the speed of the device of an interface.
fn described(interface: &str) -> (String, Speed) {
    // A selection that is not understood is an error where devices are listed.
    match selection() {
        Ok(Some(selection)) => selection.device(interface),
        _ => (selection::device_name(interface), Speed::default()),
    }
}

/// Returns why an interface has no device, with `NAME` in place of its name; `None` if it has one.
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

/// The devices in use. All users of a device share one object, so that all see its changes.
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

/// Returns whether this host has this address, on a device of this process or not. A link-local
/// address counts as none, since it may belong to another host on another link.
pub(crate) fn has_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is_link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let has = |device: &Arc<Device>| device.gids().iter().any(|(_, gid)| *gid == ip);
    !is_link_local && all_devices().is_ok_and(|devices| devices.iter().any(has))
}

/// Returns the devices with this name that are in use. An interface that was removed may still have
/// one beside its successor.
fn in_use(name: &str) -> Vec<Arc<Device>> {
    let mut known: Vec<_> = known().iter().filter_map(Weak::upgrade).collect();
    known.retain(|device| device.name == name);
    known
}

/// Returns the local addresses of the device with this name, if it is in use.
pub(crate) fn addresses_of(name: &str) -> Vec<LocalAddress> {
    let devices = in_use(name);
    devices.iter().flat_map(|device| device.sources()).collect()
}

/// Returns the numbers of contexts and of connection manager identifiers of the device with this
/// name.
pub(crate) fn users_of(name: &str) -> (u64, u64) {
    let (mut contexts, mut ids) = (0, 0);
    for device in in_use(name) {
        let listeners = lock(&device.listeners);
        contexts += listeners.iter().filter(|l| l.strong_count() > 0).count() as u64;
        drop(listeners);
        let users = lock(&device.users);
        ids += users.values().filter(|u| u.strong_count() > 0).count() as u64;
    }
    (contexts, ids)
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
        let (name, speed) = described(&interface.name);
        Device {
            name,
            speed,
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

    /// Returns its name: the one that [`VARIABLE`] gives it, or else `urxe_` and the name of the
    /// interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the link speed that it reports: the one in [`VARIABLE`], or else 40 Gbit/s.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the index of the interface.
    pub fn interface_index(&self) -> u32 {
        self.index
    }

    /// Returns whether the interface is the loopback.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Returns the node GUID in network order: the EUI-64 of the interface's MAC address, so it is
    /// stable.
    pub fn guid(&self) -> [u8; 8] {
        self.guid
    }

    /// Returns the state of the port.
    pub fn port_state(&self) -> PortState {
        self.port().state
    }

    /// Returns the MTU of the interface, in bytes.
    pub fn interface_mtu(&self) -> u32 {
        self.port().interface_mtu
    }

    /// Returns the largest path MTU whose packets fit the MTU of the interface.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::for_interface(self.port().interface_mtu).unwrap_or(Mtu::B256)
    }

    /// Returns the GID with this index; `None` for an empty entry, and beyond the end of the table.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.port()
            .gids
            .get(index)
            .copied()
            .flatten()
            .map(Gid::from_ip)
    }

    /// Returns the index and the address of each GID.
    pub fn gids(&self) -> Vec<(usize, IpAddr)> {
        let port = self.port();
        port.gids
            .iter()
            .enumerate()
            .filter_map(|(i, ip)| Some((i, (*ip)?)))
            .collect()
    }

    /// Returns the local address of packets with this source GID.
    pub fn source(&self, gid_index: u8) -> Option<LocalAddress> {
        let ip = self
            .port()
            .gids
            .get(usize::from(gid_index))
            .copied()
            .flatten()?;
        Some(LocalAddress::new(ip, self.index))
    }

    /// Returns all local addresses, in the order of their GIDs.
    pub(crate) fn sources(&self) -> impl Iterator<Item = LocalAddress> + use<> {
        let index = self.index;
        let gids = self.gids();
        gids.into_iter()
            .map(move |(_, ip)| LocalAddress::new(ip, index))
    }

    /// Has all of its addresses kept open from now on, new ones included.
    pub(crate) fn set_open_everywhere(&self) {
        self.open_everywhere.store(true, Ordering::Release);
    }

    /// Returns whether all of its addresses are kept open.
    pub(crate) fn is_open_everywhere(&self) -> bool {
        self.open_everywhere.load(Ordering::Acquire)
    }

    /// Adds an event queue to which changes of this device are pushed.
    pub(crate) fn listen(&self, events: &Arc<AsyncEvents>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
    }

    /// Registers a user to notify of changes of the device.
    pub(crate) fn used_by(&self, user: Weak<dyn DeviceUser>) {
        lock(&self.users).insert(user.as_ptr().addr(), user);
    }

    /// Removes a user.
    pub(crate) fn not_used_by(&self, user: &dyn DeviceUser) {
        lock(&self.users).remove(&std::ptr::from_ref(user).addr());
    }

    /// Notifies its users of changes of which they have not been notified. The caller must hold no
    /// lock: the users take locks, and hold them while they list the interfaces.
    fn notify_users(&self) {
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

    /// Applies the kernel's present state of the interface.
    fn update(&self, interface: &Interface) {
        self.change(|port| port.update(interface));
    }

    /// Marks the interface as removed. This is final: a new interface with the same name is another
    /// interface.
    fn lost(&self) {
        self.change(|port| {
            port.state = PortState::Down;
            port.gids.fill(None);
        });
        if !self.gone.swap(true, Ordering::AcqRel) {
            self.push_event(EventType::DeviceFatal, &EventObject::Device);
        }
    }

    /// Returns the numbers of received packets with a wrong partition key and with a wrong queue
    /// key, for queue pairs of this process (`P_KeyViolations` and `Q_KeyViolations` of 14.2.5.6;
    /// these counters are wider than the 16 bits there).
    pub fn key_violations(&self) -> (u64, u64) {
        counters::of_device(&self.name).key_violations().into()
    }

    /// Changes the port, and pushes an event to the listeners for each change.
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
            counters::of_device(&self.name).link_downed.add(1);
        }
        for kind in changes {
            self.push_event(kind, &EventObject::Port(PORT));
        }
    }

    /// Pushes an event to all event queues of the device.
    fn push_event(&self, kind: EventType, object: &EventObject) {
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
        // IPv4 before IPv6; of IPv6, link-local addresses last.
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

/// Returns the interface's MAC address, or one made of the interface's index if it has none.
fn mac(interface: &Interface) -> [u8; 6] {
    let [a, b, c, d] = interface.index.to_be_bytes();
    interface.mac.unwrap_or([0, 0, a, b, c, d])
}

/// Returns the EUI-64 of a MAC address, as in IPv6 interface identifiers (RFC 4291, appendix A).
fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// Lists the interfaces, updates the devices in use, notifies their users, and returns the devices.
/// The caller must hold no lock.
pub(crate) fn refresh() -> Vec<Arc<Device>> {
    let known: Vec<_> = known().iter().filter_map(Weak::upgrade).collect();
    let interfaces = match list_interfaces() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::debug!(%error, "the interfaces cannot be listed");
            return known;
        }
    };
    for device in &known {
        match interfaces
            .iter()
            .find(|interface| interface.index == device.index)
        {
            Some(interface) => device.update(interface),
            None => device.lost(),
        }
        device.notify_users();
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::child_finishes;

    #[test]
    fn a_forked_child_lists_devices_while_the_parents_lock_was_held() {
        let _held = known();
        child_finishes(|| {
            devices().unwrap();
        });
    }
}
