//! The division of the QPN space among the processes of a host.
//!
//! The top 8 bits of a QPN are the slot of its process (see `slot`), the low 16 bits the process
//! assigns itself.

/// The maximum number of processes in a network namespace: slots are numbered from 0 to 254.
pub const SLOTS: u8 = 255;

/// The number of low bits of a QPN that the process assigns itself.
pub const QPN_BITS: u32 = 16;

/// The slot of steering probes and of the multicast QPN, which no process holds.
pub(super) const PROBE_SLOT: u8 = SLOTS;

/// The first QPN that a process may assign. QPNs 0 and 1 are the management interfaces' and belong
/// to no process (9.2.4).
pub(super) const FIRST_QPN: u32 = 2;
