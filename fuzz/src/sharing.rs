//! How processes share port 4791: the program by which the kernel steers datagrams, held against a second opinion
//! in plain Rust and against the kernel; and two processes of a host whose neighbours take names, send
//! them datagrams and pass datagrams on to them, of any contents.

mod traffic;

use arbitrary::Arbitrary;
use libc::{AF_UNIX, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use traffic::{Traffic, hosts};
use urxe_net::fuzzing::{self, Instruction, Sharers};
use urxe_net::{Datagram, LocalAddress, Options, SLOTS, Shared};
use urxe_proto::cm::wire::{Attribute, MadHeader};
use urxe_proto::icrc::{Flow, FlowIcrc, IpId};
use urxe_proto::ids::Qpn;
use urxe_proto::wire::{Bth, Deth, Layout};

/// Tells the story that `bytes` make.
///
/// # Panics
/// When a rule is broken.
pub fn check(bytes: &[u8]) {
    // Names and ports are the process's.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    crate::told(bytes, |story: Story| match story {
        Story::Steering(story) => story.tell(),
        // Whoever takes names of the host's network takes them from others.
        Story::Names(story) if crate::has_own_network() => story.tell(),
        Story::Names(_) => {}
        Story::Traffic(story) => story.tell(),
    });
}

/// What happens.
#[derive(Arbitrary, Debug)]
pub enum Story {
    /// A program, and packets for it.
    Steering(Steering),
    /// Names that others hold.
    Names(Names),
    /// What arrives.
    Traffic(Traffic),
}

/// The number of a slot's socket, and packets.
#[derive(Arbitrary, Debug)]
pub struct Steering {
    order: BTreeMap<u8, u16>,
    others: Option<u16>,
    packets: Vec<Packet>,
}

/// A datagram: bytes, and what is put into them where a packet has it.
#[derive(Arbitrary, Debug)]
struct Packet {
    bytes: Vec<u8>,
    qpn: Option<Target>,
    /// The attribute of a MAD, by its number.
    attribute: Option<u8>,
    /// The first bytes of the two communication IDs.
    ids: Option<(u8, u8)>,
    sealed: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Target {
    Slot(u8, u16),
    /// Of the process in question, or its neighbour.
    Known(bool, u16),
    Gsi,
    Multicast,
}

/// Where a packet has what the kernel looks at.
const QPN: usize = 5;
const MAD: usize = Bth::LEN + Deth::LEN;
const ATTRIBUTE: usize = MAD + 16;
const FIRST_ID: usize = MAD + MadHeader::LEN;
const SECOND_ID: usize = FIRST_ID + 4;

impl Packet {
    /// What is sent from `flow`, where it is sealed, to a process in slot `own` or `other`.
    fn shown(&self, own: u8, other: u8, flow: &FlowIcrc) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.truncate(1000);
        let mut put = |at: usize, piece: &[u8]| {
            if bytes.len() < at + piece.len() {
                bytes.resize(at + piece.len(), 0);
            }
            bytes[at..at + piece.len()].copy_from_slice(piece);
        };
        if let Some(target) = self.qpn {
            let qpn = match target {
                Target::Slot(slot, low) => u32::from(slot) << urxe_net::QPN_BITS | u32::from(low),
                Target::Known(second, low) => {
                    u32::from(if second { other } else { own }) << urxe_net::QPN_BITS
                        | u32::from(low)
                }
                Target::Gsi => Qpn::GSI.get(),
                Target::Multicast => Qpn::MULTICAST.get(),
            };
            put(QPN, &qpn.to_be_bytes()[1..]);
        }
        if let Some(number) = self.attribute {
            put(ATTRIBUTE, &u16::from(number % 0x20).to_be_bytes());
        }
        if let Some((first, second)) = self.ids {
            put(FIRST_ID, &[first]);
            put(SECOND_ID, &[second]);
        }
        if self.sealed && bytes.len() >= Bth::LEN {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            let id = IpId {
                id: 0,
                dont_fragment: true,
            };
            let icrc = flow.compute(id, &bytes);
            bytes.extend_from_slice(&icrc);
        }
        bytes
    }
}

/// Runs a program as the kernel does (`Documentation/networking/filter.rst`).
///
/// # Panics
/// When the kernel would not take it.
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
            // What is not there ends the program with 0.
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
            code => panic!("{code:#x} is no instruction of these programs"),
        }
    }
}

/// Which socket shall get a datagram; `None` for any. What `docs/PORT-SHARING.md` says, as a function.
fn expected(order: &BTreeMap<u8, u16>, others: Option<u16>, packet: &[u8]) -> Option<u32> {
    let of_slot = |slot: u8| order.get(&slot).copied().or(others).map(u32::from);
    // What is too short to tell goes to the first socket, which sees that it is.
    let byte = |at: usize| packet.get(at).copied();
    let (Some(slot), Some(high), Some(low)) = (byte(QPN), byte(QPN + 1), byte(QPN + 2)) else {
        return Some(0);
    };
    let number = u16::from_be_bytes([high, low]);
    if (slot, number) != (0, 1) {
        return match slot {
            SLOTS => Some(number.into()),
            slot => of_slot(slot),
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
    byte(at).map_or(Some(0), of_slot)
}

/// How many sockets the kernel has to choose from.
const SOCKETS: usize = 4;

impl Steering {
    fn tell(self) {
        // A process of slot 255 there is none: it is that of probes.
        let mut order = self.order;
        order.remove(&SLOTS);
        let program = fuzzing::program(&order, self.others);
        assert!(program.len() <= 4096, "the kernel takes no more");
        let sharers = sharers();
        sharers
            .attach(&order, self.others)
            .expect("the kernel takes every program of these");
        let flow = flow(Ipv4Addr::LOCALHOST, 50_000, Ipv4Addr::LOCALHOST);
        let own = order.keys().next().copied().unwrap_or_default();
        let other = order.keys().next_back().copied().unwrap_or_default();
        for packet in self.packets.iter().take(16) {
            let bytes = packet.shown(own, other, &flow);
            let expected = expected(&order, self.others, &bytes);
            let found = run(&program, &bytes);
            match expected {
                Some(expected) => assert_eq!(found, expected, "{bytes:02x?}"),
                None => assert!(found > u16::MAX.into(), "{bytes:02x?}: no socket is meant"),
            }
            let reached = sharers.reached(&bytes).expect("it can be sent");
            let reached = reached.expect("what nobody is found for goes to somebody");
            if (found as usize) < SOCKETS {
                assert_eq!(reached, found as usize, "{bytes:02x?}");
            }
        }
    }
}

/// Sockets where the kernel runs the programs.
fn sharers() -> &'static Sharers {
    static SHARERS: OnceLock<Sharers> = OnceLock::new();
    SHARERS.get_or_init(|| {
        let address = LocalAddress::new(own_address(1).into(), 1);
        Sharers::open(address, SOCKETS).expect("sockets")
    })
}

/// An address that no other program uses, of this process or another.
fn own_address(number: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | number, high, low)
}

fn flow(from: Ipv4Addr, port: u16, to: Ipv4Addr) -> FlowIcrc {
    let flow = Flow::new((from, port).into(), (to, urxe_net::ROCE_PORT).into());
    FlowIcrc::new(&flow.expect("addresses of one family"))
}

/// Who holds names, and of what kind the sockets are.
#[derive(Arbitrary, Debug)]
pub struct Names {
    holders: Vec<Holder>,
    /// How many slots are taken besides.
    processes: u8,
}

#[derive(Arbitrary, Debug)]
struct Holder {
    number: u8,
    /// The second of a slot's names, not the first.
    link: bool,
    kind: u8,
    listens: Option<u8>,
}

/// A Unix socket.
fn unix(kind: i32) -> OwnedFd {
    // SAFETY: numbers; the descriptor is new, and nobody else's.
    unsafe {
        let fd = libc::socket(AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// The address of an abstract name, and its length.
fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros is an address without a name.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, len as libc::socklen_t)
}

/// A socket with a name, unless somebody has it.
fn hold(name: &str, kind: i32) -> Option<OwnedFd> {
    let (socket, (address, len)) = (unix(kind), address(name));
    // SAFETY: the pointer and the length describe `address`, which the call reads.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    (bound == 0).then_some(socket)
}

/// A connection to the process that listens under a name, as this user's other processes have.
///
/// # Panics
/// When there is none.
fn connected(name: &str) -> OwnedFd {
    let (socket, (address, len)) = (unix(SOCK_SEQPACKET), address(name));
    // SAFETY: the pointer and the length describe `address`, which the call reads.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    assert_eq!(done, 0, "{name}: {}", std::io::Error::last_os_error());
    socket
}

impl Names {
    fn tell(self) {
        let mut held = Vec::new();
        let mut slots = BTreeSet::new();
        let mut taken = BTreeSet::new();
        // Where a process of this user, which this program is, accepts connections.
        let mut listening = BTreeSet::new();
        // The process in question is not told from its neighbours by a slot of a story before.
        let others = neighbours_now();
        for holder in self.holders.iter().take(40) {
            let number = holder.number % 20;
            let name = if holder.link { "link" } else { "slot" };
            let kind = [SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET][usize::from(holder.kind) % 3];
            let Some(socket) = hold(&format!("urxe/{name}/{number}"), kind) else {
                continue;
            };
            if let Some(backlog) = holder.listens {
                // SAFETY: a descriptor, and a number. A datagram socket cannot, which does no harm.
                unsafe { libc::listen(socket.as_raw_fd(), (backlog % 4).into()) };
            }
            held.push(socket);
            // Names are the kernel's by kind: a socket of another kind takes nobody's.
            match (holder.link, kind) {
                (true, SOCK_SEQPACKET) => {
                    taken.insert(number);
                    if holder.listens.is_some() {
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
            let process = Shared::new(Options::default()).expect("there are free slots");
            let lowest =
                (0..SLOTS).find(|number| !taken.contains(number) && !others.contains(number));
            assert_eq!(
                Some(process.slot()),
                lowest,
                "the lowest of which both names are free"
            );
            taken.insert(process.slot());
            slots.insert(process.slot());
            ours.push(process);
        }
        let Some(first) = ours.first() else { return };
        let seen: BTreeSet<u8> = first.neighbours().expect("names").into_iter().collect();
        let mut expected = &slots | &others;
        expected.remove(&first.slot());
        assert_eq!(seen, expected);
        // What is for a slot that holds no process of ours goes nowhere, or stays in its queue.
        for number in 0..24 {
            let datagram = Datagram {
                src: (Ipv4Addr::LOCALHOST, 50_000).into(),
                dst: LocalAddress::new(Ipv4Addr::LOCALHOST.into(), 1),
                tos: 0,
                ttl: 1,
                index: 0,
                first_of_batch: true,
                passed_on: false,
                ip_id: None,
                bytes: &[7; 20],
            };
            let went = first.hand_on(number, &datagram);
            let of_process = ours.iter().any(|process| process.slot() == number);
            assert!(went || !of_process, "to the process in slot {number}");
            let mut there = [&slots, &others, &listening].into_iter();
            assert!(!went || there.any(|numbers| numbers.contains(&number)));
        }
    }
}

/// Slots of processes that live.
fn neighbours_now() -> BTreeSet<u8> {
    let mut numbers: BTreeSet<u8> = hosts().iter().map(|host| host.shared.slot()).collect();
    numbers.extend(hosts()[0].shared.neighbours().expect("names"));
    numbers
}
