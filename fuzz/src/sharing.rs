//! Sharing of port 4791 between processes.
//!
//! The steering program is compared with a second implementation in Rust and with the kernel. Two
//! processes of one host face others that bind names and send arbitrary datagrams and forwarded
//! messages.

mod packet;
mod sockets;
mod traffic;

use arbitrary::Arbitrary;
use libc::{SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM};
use packet::{ATTRIBUTE, FIRST_ID, Packet, QPN, SECOND_ID};
use sockets::{address, flow, own_address, unix};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use traffic::{Traffic, hosts};
use urxe_net::fuzzing::{self, Instruction, SharedPort};
use urxe_net::{Datagram, LocalAddress, MAX_RECEIVE_SOCKETS, Options, SLOTS, Shared};
use urxe_proto::cm::wire::Attribute;

/// Runs the input that `bytes` encode.
///
/// # Panics
/// If a rule is violated.
pub fn check(bytes: &[u8]) {
    // Abstract socket names and ports are shared by the whole process.
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    let _exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    crate::target::with_input(bytes, |input: Input| match input {
        Input::Steering(steering) => steering.run(),
        // In the host's network the names could belong to other processes.
        Input::Names(names) if crate::target::has_own_network() => names.run(),
        Input::Names(_) => {}
        Input::Traffic(traffic) => traffic.run(),
    });
}

/// One of three scenarios.
#[derive(Arbitrary, Debug)]
pub enum Input {
    /// A steering program, and packets for it.
    Steering(Steering),
    /// Names that other sockets hold.
    Names(Names),
    /// Datagrams and messages that arrive.
    Traffic(Traffic),
}

/// The indices of sockets, and packets.
#[derive(Arbitrary, Debug)]
pub struct Steering {
    /// The index of the first socket of each slot.
    order: BTreeMap<u8, u16>,
    others: Option<u16>,
    packets: Vec<Packet>,
    /// The slot, the number and the index of further sockets.
    further: Vec<(u8, u8, u16)>,
}

/// The index of each socket, by its slot and number.
type Order = BTreeMap<(u8, u8), u16>;

/// Executes a classic BPF program as the kernel does (`Documentation/networking/filter.rst`).
///
/// # Panics
/// If the kernel would reject the program.
fn run(program: &[Instruction], packet: &[u8]) -> u32 {
    let load = |at: u32, len: usize| -> Option<u32> {
        let at = at as usize;
        let bytes = packet.get(at..at.checked_add(len)?)?;
        Some(
            bytes
                .iter()
                .fold(0, |value, byte| value << 8 | u32::from(*byte)),
        )
    };
    let (mut accumulator, mut at) = (0_u32, 0);
    loop {
        let (code, if_true, if_false, k) = program[at];
        at += 1;
        let jump = |is: bool| usize::from(if is { if_true } else { if_false });
        match u32::from(code) {
            // A load beyond the end of the packet ends the program with 0.
            code @ (0x20 | 0x28 | 0x30) => {
                let len = match code {
                    0x20 => 4,
                    0x28 => 2,
                    _ => 1,
                };
                match load(k, len) {
                    Some(value) => accumulator = value,
                    None => return 0,
                }
            }
            0x54 => accumulator &= k,
            0x74 => accumulator >>= k,
            0x05 => at += k as usize,
            0x15 => at += jump(accumulator == k),
            0x25 => at += jump(accumulator > k),
            0x06 => return k,
            0x16 => return accumulator,
            code => panic!("instruction {code:#x} is not expected in a steering program"),
        }
    }
}

/// The socket that must get a datagram, as `docs/PORT-SHARING.md` specifies; `None` for any socket.
fn expected(order: &Order, others: Option<u16>, packet: &[u8]) -> Option<u32> {
    let of_slot = |slot: u8, low: u16| {
        let has = |number: &u8| order.contains_key(&(slot, *number));
        let known = (0..MAX_RECEIVE_SOCKETS as u8).take_while(has).count();
        // The largest power of two that is not larger.
        let count = (0..=4).map(|bit| 1 << bit).rfind(|count| *count <= known);
        let number = count.map(|count| low as usize % count);
        let index = match number {
            Some(number) => order.get(&(slot, number as u8)),
            None => order
                .range((slot, 0)..=(slot, u8::MAX))
                .map(|of| of.1)
                .next(),
        };
        index.copied().or(others).map(u32::from)
    };
    // A packet that is too short goes to the first socket, which drops it.
    let byte = |at: usize| packet.get(at).copied();
    let (Some(slot), Some(high), Some(low)) = (byte(QPN), byte(QPN + 1), byte(QPN + 2)) else {
        return Some(0);
    };
    let number = u16::from_be_bytes([high, low]);
    if (slot, number) != (0, 1) {
        return match slot {
            SLOTS => Some(number.into()),
            slot => of_slot(slot, number),
        };
    }
    let (Some(high), Some(low)) = (byte(ATTRIBUTE), byte(ATTRIBUTE + 1)) else {
        return Some(0);
    };
    let attribute = u16::from_be_bytes([high, low]);
    let known = Attribute::ALL
        .into_iter()
        .find(|known| *known as u16 == attribute);
    let at = match known {
        None | Some(Attribute::Req | Attribute::SidrReq) => {
            return order.values().next().map(|index| u32::from(*index));
        }
        Some(Attribute::SidrRep) => FIRST_ID,
        Some(_) => SECOND_ID,
    };
    byte(at).map_or(Some(0), |slot| of_slot(slot, number))
}

/// The number of sockets in the reuseport group.
const SOCKETS: usize = 4;

impl Steering {
    fn run(self) {
        // Few enough that the program has room for all of them.
        let further = self.further.iter().take(64);
        let further = further.map(|(slot, number, index)| ((*slot, number % 20), *index));
        let first = self.order.iter().map(|(slot, index)| ((*slot, 0), *index));
        let mut order: Order = first.chain(further).collect();
        // Slot 255 is reserved for probes.
        order.retain(|(slot, _), _| *slot != SLOTS);
        let program = fuzzing::program(&order, self.others);
        assert!(
            program.len() <= 4096,
            "the kernel's limit is 4096 instructions"
        );
        let port = shared_port();
        port.attach(&order, self.others)
            .expect("the kernel accepts every steering program");
        let flow = flow(Ipv4Addr::LOCALHOST, 50_000, Ipv4Addr::LOCALHOST);
        let own = order.keys().next().map_or(0, |socket| socket.0);
        let other = order.keys().next_back().map_or(0, |socket| socket.0);
        for packet in self.packets.iter().take(16) {
            let bytes = packet.to_bytes(own, other, &flow);
            let expected = expected(&order, self.others, &bytes);
            let found = run(&program, &bytes);
            match expected {
                Some(expected) => assert_eq!(found, expected, "{bytes:02x?}"),
                None => assert!(
                    found > u16::MAX.into(),
                    "{bytes:02x?}: no socket is expected"
                ),
            }
            let reached = port.receiver_of(&bytes).expect("the datagram can be sent");
            let reached = reached.expect("a datagram without a match reaches some socket");
            if (found as usize) < SOCKETS {
                assert_eq!(reached, found as usize, "{bytes:02x?}");
            }
        }
    }
}

/// The sockets for which the kernel executes the programs.
fn shared_port() -> &'static SharedPort {
    static PORT: OnceLock<SharedPort> = OnceLock::new();
    PORT.get_or_init(|| {
        let address = LocalAddress::new(own_address(1).into(), 1);
        SharedPort::open(address, SOCKETS).expect("the sockets can be opened")
    })
}

/// Sockets that hold names of slots, and processes that choose theirs.
#[derive(Arbitrary, Debug)]
pub struct Names {
    owners: Vec<NameOwner>,
    /// One less than the number of processes.
    processes: u8,
}

#[derive(Arbitrary, Debug)]
struct NameOwner {
    number: u8,
    /// Whether it is the second of a slot's names.
    link: bool,
    kind: u8,
    listens: Option<u8>,
}

/// A socket with a name, unless it is taken.
fn bind_name(name: &str, kind: i32) -> Option<OwnedFd> {
    let (socket, (address, len)) = (unix(kind), address(name));
    // SAFETY: the pointer and the length describe `address`, which the call reads.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    (bound == 0).then_some(socket)
}

impl Names {
    fn run(self) {
        let mut held = Vec::new();
        let mut slots = BTreeSet::new();
        let mut taken = BTreeSet::new();
        // Slots on whose connections a process of this user, which this program is, listens.
        let mut listening = BTreeSet::new();
        // Slots that are in use already, by processes of earlier inputs too.
        let others = used_slots();
        for owner in self.owners.iter().take(40) {
            let number = owner.number % 20;
            let name = if owner.link { "link" } else { "slot" };
            let kind = [SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET][usize::from(owner.kind) % 3];
            let Some(socket) = bind_name(&format!("urxe/{name}/{number}"), kind) else {
                continue;
            };
            if let Some(backlog) = owner.listens {
                // SAFETY: `listen` accesses no memory. It fails for a datagram socket, which is
                // fine.
                unsafe { libc::listen(socket.as_raw_fd(), (backlog % 4).into()) };
            }
            held.push(socket);
            // Names are the kernel's by kind: a socket of another kind does not conflict.
            match (owner.link, kind) {
                (true, SOCK_SEQPACKET) => {
                    taken.insert(number);
                    if owner.listens.is_some() {
                        listening.insert(number);
                    }
                }
                (false, SOCK_DGRAM) => {
                    taken.insert(number);
                    slots.insert(number);
                }
                _ => {}
            }
        }
        let mut ours = Vec::new();
        for _ in 0..1 + self.processes % 4 {
            let process = Shared::new(Options::default()).expect("a slot is free");
            let lowest =
                (0..SLOTS).find(|number| !taken.contains(number) && !others.contains(number));
            assert_eq!(
                Some(process.slot()),
                lowest,
                "the lowest slot with both names free"
            );
            taken.insert(process.slot());
            slots.insert(process.slot());
            ours.push(process);
        }
        let Some(first) = ours.first() else { return };
        let seen: BTreeSet<u8> = first
            .same_host_peers()
            .expect("readable names")
            .into_iter()
            .collect();
        let mut expected = &slots | &others;
        expected.remove(&first.slot());
        assert_eq!(seen, expected);
        // A datagram for a slot without a process of this test is dropped or stays in its queue.
        for number in 0..24 {
            let dst = LocalAddress::new(Ipv4Addr::LOCALHOST.into(), 1);
            let src = (Ipv4Addr::LOCALHOST, 50_000).into();
            let is_sent = first.forward(number, &Datagram::new(src, dst, &[7; 20]));
            let of_process = ours.iter().any(|process| process.slot() == number);
            assert!(is_sent || !of_process, "to the process in slot {number}");
            let mut known = [&slots, &others, &listening].into_iter();
            assert!(!is_sent || known.any(|numbers| numbers.contains(&number)));
        }
    }
}

/// The slots of live processes.
fn used_slots() -> BTreeSet<u8> {
    let mut numbers: BTreeSet<u8> = hosts().iter().map(|host| host.shared.slot()).collect();
    numbers.extend(hosts()[0].shared.same_host_peers().expect("readable names"));
    numbers
}
