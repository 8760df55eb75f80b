//! The counters of the network layer.

use crate::address::LocalAddress;
use crate::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the process started. They only grow, and may be read at any time.
        #[derive(Default, Debug)]
        pub struct NetCounters {
            $($(#[$doc])* pub $name: Counter,)*
            /// The number of invalid datagrams to each local address.
            invalid: Mutex<HashMap<LocalAddress, u64>>,
        }

        impl NetCounters {
            /// Returns the name and value of every counter, in the order of the struct.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Datagrams received for this process with a correct ICRC.
    datagrams_in,
    /// The UDP payload of `datagrams_in`, in bytes.
    bytes_in,
    /// Datagrams that the kernel accepted for sending.
    datagrams_out,
    /// The UDP payload of `datagrams_out`, in bytes.
    bytes_out,
    /// Messages received from the kernel: a GRO batch counts once.
    messages_in,
    /// Messages passed to the kernel: a GSO batch counts once.
    messages_out,
    /// Of `messages_out`, those that the kernel segments (UDP_SEGMENT).
    gso_sends,
    /// Receive calls, including those that found no message.
    receive_calls,
    /// Send calls.
    send_calls,
    /// Datagrams with a wrong ICRC.
    icrc_errors,
    /// Datagrams too short for a BTH and an ICRC, or truncated.
    malformed,
    /// Datagrams forwarded to the process that they are for.
    forwarded_out,
    /// Datagrams forwarded by another process to this one.
    forwarded_in,
    /// Datagrams for another process that were dropped because its queue stayed full.
    forward_overruns,
    /// Datagrams for a slot that no process holds.
    no_such_slot,
    /// Forwarded messages that were malformed.
    forward_rejected,
    /// Sweeps: rounds of probes for the order of the sockets of an address.
    sweeps,
    /// Probes sent.
    probes_out,
    /// Probes received and answered.
    probes_in,
    /// Answers that match no probe of this process, and invalid probes.
    probes_rejected,
    /// Steering programs attached.
    steering_attached,
    /// Datagrams dropped because the socket's buffer stayed full.
    send_blocked,
    /// Datagrams larger than the interface's or the path's MTU.
    send_too_large,
    /// Datagrams to an unreachable destination.
    send_unreachable,
    /// Datagrams refused by a firewall or a security policy.
    send_refused,
    /// Datagrams lost for lack of kernel memory or of space in a device's queue.
    send_no_buffers,
    /// Datagrams lost to any other error.
    send_other_errors,
    /// Datagrams that `URXE_FAULTS` dropped.
    faults_dropped,
    /// Datagrams that `URXE_FAULTS` duplicated.
    faults_duplicated,
    /// Datagrams that `URXE_FAULTS` moved behind later ones.
    faults_reordered,
    /// Datagrams in which `URXE_FAULTS` flipped a bit.
    faults_corrupted,
    /// Datagrams that `URXE_FAULTS` delayed.
    faults_delayed,
    /// Records that could not be written to the capture file.
    capture_errors,
}

impl NetCounters {
    /// The number of datagrams to `address` that were dropped as invalid.
    pub fn invalid_datagrams(&self, address: LocalAddress) -> u64 {
        lock(&self.invalid).get(&address).copied().unwrap_or(0)
    }

    /// Counts a datagram to `address` whose packet is invalid.
    #[cold]
    pub fn count_invalid(&self, address: LocalAddress) {
        *lock(&self.invalid).entry(address).or_default() += 1;
    }

    /// Counts packets that could not be sent, by the error.
    pub(super) fn count_send_error(&self, packets: u64, error: &io::Error) {
        let counter = match error.raw_os_error() {
            Some(libc::EAGAIN) => &self.send_blocked,
            Some(libc::EMSGSIZE) => &self.send_too_large,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
                &self.send_unreachable
            }
            Some(libc::EPERM | libc::EACCES) => &self.send_refused,
            Some(libc::ENOBUFS | libc::ENOMEM) => &self.send_no_buffers,
            _ => &self.send_other_errors,
        };
        counter.add(packets);
        tracing::debug!(%error, packets, "packets could not be sent");
    }
}

/// One counter.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
