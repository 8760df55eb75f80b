//! The division of the QPN space among the processes of a host.
//!
//! The top 8 bits of a QPN are the slot of its process (see `slot`), the low 16 bits the process
//! assigns itself. The lowest of these select one of the process's receive sockets.

use urxe_proto::ids::Qpn;

/// The maximum number of processes in a network namespace: slots are numbered from 0 to 254.
pub const SLOTS: u8 = 255;

/// The number of low bits of a QPN that the process assigns itself.
pub const QPN_BITS: u32 = 16;

/// The slot of steering probes and of the multicast QPN, which no process holds.
pub(super) const PROBE_SLOT: u8 = SLOTS;

/// The first QPN that a process may assign. QPNs 0 and 1 are the management interfaces' and belong
/// to no process (9.2.4).
pub(super) const FIRST_QPN: u32 = 2;

/// The maximum number of receive sockets that a process may have at an address, a power of two. The
/// answer to a steering probe has 4 bits for the number of a socket.
pub const MAX_RECEIVE_SOCKETS: usize = 16;

/// Returns the number of the receive socket to which the steering program directs the datagrams of
/// a queue pair, where the process has `count` such sockets. `count` must be a power of two.
#[inline]
pub fn receive_socket_of(qpn: Qpn, count: usize) -> usize {
    debug_assert!(count.is_power_of_two());
    qpn.get() as usize & (count - 1)
}
