//! The classic BPF program by which the kernel selects the socket of a datagram.

use crate::qpn::{MAX_RECEIVE_SOCKETS, PROBE_SLOT, QPN_BITS};
use crate::sys::set_option;
use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use urxe_proto::cm::wire::{Attribute, MadHeader};
use urxe_proto::ids::Qpn;
use urxe_proto::wire::{Bth, Deth, Layout};

/// A receive socket at an address: the slot of its process, and its number in the process.
pub(crate) type SocketId = (u8, u8);

/// The index of each socket in the reuseport group.
pub(crate) type SocketIndices = BTreeMap<SocketId, u16>;

/// The indices among which the program distributes the datagrams of each slot.
pub(crate) type Distribution = BTreeMap<u8, Vec<u16>>;

/// The maximum number of instructions of a classic BPF program (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// The number of instructions before those of the slots.
const HEAD: usize = 17;

/// Returns the number of instructions of a slot with `sockets` sockets, a power of two.
const fn instructions(sockets: usize) -> usize {
    match sockets {
        1 => 2,
        count => 2 * count + 2,
    }
}

/// Returns the indices of the sockets among which the program distributes the datagrams of each
/// slot: those with the numbers from 0 without gaps, cut to a power of two. A slot whose socket 0
/// is not known has one of the others. Where the program would become too long, the later slots
/// have one socket.
pub(crate) fn distribution(indices: &SocketIndices) -> Distribution {
    let mut slots = BTreeMap::<u8, Vec<u16>>::new();
    for (&(slot, number), &index) in indices {
        let sockets = slots.entry(slot).or_default();
        if sockets.is_empty() || sockets.len() == usize::from(number) {
            sockets.push(index);
        }
    }
    let mut room = MAX_INSTRUCTIONS - HEAD - 1 - instructions(1) * slots.len();
    for sockets in slots.values_mut() {
        let count = (1 << sockets.len().ilog2()).min(MAX_RECEIVE_SOCKETS);
        let rest = room.checked_sub(instructions(count) - instructions(1));
        sockets.truncate(if rest.is_some() { count } else { 1 });
        room = rest.unwrap_or(room);
    }
    slots
}

/// Returns the program for the sockets of each slot, see [`distribution`]. Its input is a UDP
/// payload, whose first 12 bytes are the BTH; its result is the index of the socket. A datagram too
/// short for a load goes to the first socket.
///
/// `others` is the index for slots that `slots` lacks. The process that attaches the program
/// passes that of its own socket: it reads that socket and forwards the datagrams of other
/// processes. The kernel's hash might choose the socket of a stopped process.
pub(crate) fn code(slots: &BTreeMap<u8, Vec<u16>>, others: Option<u16>) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const JUMP_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const RETURN_A: u16 = (libc::BPF_RET | 0x10) as u16; // BPF_A
    /// The BTH's word with the QPN in its low 24 bits, and the low half of the QPN.
    const QPN_WORD: u32 = 4;
    const QPN_LOW: u32 = 6;
    /// The offsets in a MAD of communication management: its attribute, its request ID, and the
    /// communication ID of its receiver, whose first byte is the slot.
    const MAD: u32 = (Bth::LEN + Deth::LEN) as u32;
    const MAD_ATTRIBUTE: u32 = MAD + 16;
    const SIDR_REQUEST_ID: u32 = MAD + MadHeader::LEN as u32;
    const REMOTE_COMM_ID: u32 = SIDR_REQUEST_ID + 4;
    /// An unused index: the kernel's hash selects the socket.
    const ANY: u32 = u32::MAX;

    // Jumps over `jt` instructions if the comparison is true, over `jf` if it is false.
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let op = |code, k| jump(code, k, 0, 0);
    // Continues with the next instruction if equal, else jumps over `skip` instructions.
    let unless = |k, skip| jump(JUMP_EQUAL, k, 0, skip);
    let lowest = slots
        .values()
        .flatten()
        .next()
        .map_or(ANY, |index| u32::from(*index));
    let mut code = vec![
        op(LOAD_WORD, QPN_WORD),
        op(AND, 0xff_ffff),
        // A MAD: a message that names an ID goes to the slot of the ID, any other to the lowest
        // slot.
        unless(Qpn::GSI.get(), 10),
        op(LOAD_HALF, MAD_ATTRIBUTE),
        jump(JUMP_GREATER, Attribute::Apr as u32, 2, 0),
        jump(JUMP_GREATER, Attribute::Req as u32, 0, 1),
        unless(Attribute::SidrReq as u32, 1),
        op(RETURN, lowest),
        unless(Attribute::SidrRep as u32, 2),
        op(LOAD_BYTE, SIDR_REQUEST_ID),
        op(JUMP, 6),
        op(LOAD_BYTE, REMOTE_COMM_ID),
        op(JUMP, 4),
        // Any other packet, or a probe.
        op(SHIFT_RIGHT, QPN_BITS),
        unless(u32::from(PROBE_SLOT), 2),
        op(LOAD_HALF, QPN_LOW),
        op(RETURN_A, 0),
    ];
    for (slot, sockets) in slots {
        let Some((last, others)) = sockets.split_last() else {
            continue;
        };
        // At most 33, see `MAX_RECEIVE_SOCKETS`.
        code.push(unless(
            u32::from(*slot),
            (instructions(sockets.len()) - 1) as u8,
        ));
        if !others.is_empty() {
            code.push(op(LOAD_HALF, QPN_LOW));
            code.push(op(AND, sockets.len() as u32 - 1));
        }
        for (number, index) in (0..).zip(others) {
            code.push(unless(number, 1));
            code.push(op(RETURN, u32::from(*index)));
        }
        code.push(op(RETURN, u32::from(*last)));
    }
    code.push(op(RETURN, others.map_or(ANY, u32::from)));
    code
}

/// `struct sock_fprog`, with its padding as a member: the kernel reads those bytes too, and they
/// must be initialized.
#[derive(Clone, Copy)]
#[repr(C)]
struct Program {
    len: libc::c_ushort,
    between: [libc::c_ushort; 3],
    filter: *const libc::sock_filter,
}

const _: () = {
    assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());
    assert!(offset_of!(Program, filter) == offset_of!(libc::sock_fprog, filter));
};

/// Attaches the program for the sockets of each slot to the reuseport group of `socket`. See
/// [`code`] for `others`.
pub(crate) fn attach(
    socket: BorrowedFd<'_>,
    slots: &BTreeMap<u8, Vec<u16>>,
    others: Option<u16>,
) -> io::Result<()> {
    let code = code(slots, others);
    let program = Program {
        // At most `MAX_INSTRUCTIONS`.
        len: code.len() as libc::c_ushort,
        between: [0; 3],
        filter: code.as_ptr(),
    };
    set_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        program,
    )
}

#[cfg(test)]
mod tests {
    use super::super::open_probe_socket;
    use super::*;
    use crate::address::ROCE_PORT;
    use crate::qpn::SLOTS;
    use crate::socket::open_receiver;
    use crate::tests::own_address;
    use std::os::fd::AsFd;

    #[test]
    fn kernel_accepts_a_program_for_all_slots_and_for_none() {
        let receiver = open_receiver(own_address(), true).unwrap();
        for indices in [full(1), SocketIndices::new()] {
            attach(receiver.as_fd(), &distribution(&indices), None).unwrap();
        }
    }

    /// The indices of all slots with `count` sockets each.
    fn full(count: u8) -> SocketIndices {
        let ids = (0..SLOTS).flat_map(|slot| (0..count).map(move |number| (slot, number)));
        ids.zip(0..).collect()
    }

    #[test]
    fn kernel_accepts_a_program_for_the_largest_number_of_sockets() {
        let receiver = open_receiver(own_address(), true).unwrap();
        for count in 1..=MAX_RECEIVE_SOCKETS {
            let slots = distribution(&full(count as u8));
            let code = code(&slots, None);
            let sum: usize = slots.values().map(|s| instructions(s.len())).sum();
            assert_eq!(code.len(), HEAD + sum + 1);
            assert!(code.len() <= MAX_INSTRUCTIONS);
            attach(receiver.as_fd(), &slots, None).unwrap();
            // All slots are there, the first with all their sockets.
            assert_eq!(slots.len(), usize::from(SLOTS));
            assert_eq!(slots[&0].len(), 1 << count.ilog2());
            assert!(slots.values().is_sorted_by(|a, b| a.len() >= b.len()));
        }
        assert_eq!(distribution(&full(16))[&(SLOTS - 1)], [254 * 16]);
    }

    #[test]
    fn slots_have_the_sockets_without_gaps_cut_to_a_power_of_two() {
        let of = |numbers: &[u8]| {
            let ids = numbers.iter().map(|&n| ((3, n), u16::from(n) + 10));
            distribution(&ids.collect()).remove(&3).unwrap()
        };
        assert_eq!(of(&[0]), [10]);
        assert_eq!(of(&[0, 1, 2]), [10, 11]);
        assert_eq!(of(&[0, 1, 2, 3]), [10, 11, 12, 13]);
        assert_eq!(of(&[0, 1, 3]), [10, 11]);
        assert_eq!(of(&[0, 2]), [10]);
        assert_eq!(of(&[1, 2, 3]), [11]);
    }

    #[test]
    fn slots_with_one_socket_have_two_instructions() {
        let indices = SocketIndices::from([((3, 0), 5), ((9, 0), 2)]);
        let code = code(&distribution(&indices), None);
        let slots = code[HEAD..].iter().map(|op| (op.jf, op.k));
        assert!(slots.eq([(1, 3), (0, 5), (1, 9), (0, 2), (0, u32::MAX)]));
    }

    #[test]
    fn sockets_of_a_process_are_selected_by_the_low_bits_of_the_qpn() {
        let address = own_address();
        let sockets = [(); 7].map(|()| open_receiver(address, true).unwrap());
        // Slot 3 has four sockets, slot 7 one, slot 9 two.
        let indices = SocketIndices::from([
            ((3, 0), 6),
            ((3, 1), 2),
            ((3, 2), 0),
            ((3, 3), 5),
            ((7, 0), 1),
            ((9, 0), 4),
            ((9, 1), 3),
        ]);
        attach(sockets[0].as_fd(), &distribution(&indices), Some(1)).unwrap();
        let sender = open_probe_socket(address).unwrap();
        let to = address.with_port(ROCE_PORT).into();
        let reaches = |slot: u8, low: u16| {
            let mut packet = [0; 64];
            packet[5] = slot;
            packet[6..8].copy_from_slice(&low.to_be_bytes());
            packet[36..38].copy_from_slice(&(Attribute::Req as u16).to_be_bytes());
            sender.send_to(&packet, &to).unwrap();
            let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
            sockets.iter().position(|s| s.recv(&mut buffer).is_ok())
        };
        for low in (0..40).chain(0xffe0..=0xffff) {
            assert_eq!(reaches(3, low), Some([6, 2, 0, 5][usize::from(low) % 4]));
            assert_eq!(reaches(7, low), Some(1));
            assert_eq!(reaches(9, low), Some([4, 3][usize::from(low) % 2]));
        }
        assert_eq!(reaches(11, 2), Some(1));
        // A connection request goes to the first socket of the lowest slot.
        assert_eq!(reaches(0, 1), Some(6));
        // A probe reaches the socket with its index.
        for index in 0..7 {
            assert_eq!(reaches(PROBE_SLOT, index), Some(index.into()));
        }
    }

    #[test]
    fn mads_are_steered_by_communication_id_and_requests_to_the_lowest_slot() {
        let address = own_address();
        let sockets = [(); 3].map(|()| open_receiver(address, true).unwrap());
        let indices = SocketIndices::from([((9, 0), 0), ((3, 0), 2), ((7, 0), 1)]);
        attach(sockets[0].as_fd(), &distribution(&indices), Some(1)).unwrap();
        let sender = open_probe_socket(address).unwrap();
        let to = address.with_port(ROCE_PORT).into();
        let reaches = |bytes: &[u8]| {
            sender.send_to(bytes, &to).unwrap();
            let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
            sockets.iter().position(|s| s.recv(&mut buffer).is_ok())
        };
        let mut packet = [0; 280];
        let mut with = |qpn: u32, attribute: u16, first: u8, second: u8| {
            packet[4..8].copy_from_slice(&qpn.to_be_bytes());
            packet[36..38].copy_from_slice(&attribute.to_be_bytes());
            packet[44] = first;
            packet[48] = second;
            reaches(&packet)
        };
        assert_eq!(with(0x09_0001, 0, 0, 0), Some(0));
        assert_eq!(with(0x07_0001, 0, 0, 0), Some(1));
        assert_eq!(with(0xff_0002, 0, 0, 0), Some(2));
        for slot_and_socket in [(9, 0), (7, 1), (3, 2)] {
            let (slot, socket) = slot_and_socket;
            assert_eq!(with(1, Attribute::Req as u16, slot, slot), Some(2));
            assert_eq!(with(1, Attribute::SidrReq as u16, slot, slot), Some(2));
            assert_eq!(with(1, Attribute::SidrRep as u16, slot, 0), Some(socket));
            for attribute in [Attribute::Rep, Attribute::Dreq, Attribute::Rej] {
                assert_eq!(with(1, attribute as u16, 0, slot), Some(socket));
            }
        }
        // No process has these slots.
        assert_eq!(with(1, Attribute::Rep as u16, 0, 200), Some(1));
        assert_eq!(with(0xc8_0001, 0, 0, 0), Some(1));
        for no_message in [0, 0x0f, 0x1b, 0xffff] {
            assert_eq!(with(1, no_message, 7, 7), Some(2));
        }
    }
}
