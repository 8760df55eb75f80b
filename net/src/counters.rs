//! What the network part of the driver counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the process started. All of them only grow; each may be read at any time.
        #[derive(Default, Debug)]
        pub struct NetCounters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl NetCounters {
            /// Every counter's name and value, in the order of the struct.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Datagrams that were received for this process with a right ICRC.
    datagrams_in,
    /// The UDP payload of `datagrams_in`, in bytes.
    bytes_in,
    /// Datagrams that the kernel took for sending.
    datagrams_out,
    /// The UDP payload of `datagrams_out`, in bytes.
    bytes_out,
    /// Messages that the kernel passed up: a GRO batch counts once.
    messages_in,
    /// Messages that were passed down: a GSO batch counts once.
    messages_out,
    /// Of `messages_out`, those that the kernel was asked to cut into segments.
    gso_sends,
    /// Receive calls, those that found nothing included.
    receive_calls,
    /// Send calls.
    send_calls,
    /// Datagrams with a wrong ICRC.
    icrc_errors,
    /// Datagrams too short for a BTH and an ICRC, or cut short.
    malformed,
    /// Datagrams that arrived here and went on to the process that they are for.
    forwarded_out,
    /// Datagrams that another process passed on to this one.
    forwarded_in,
    /// Datagrams for another process that were dropped because it took none for too long.
    forward_overruns,
    /// Datagrams for a slot that no process holds.
    no_such_slot,
    /// Forwarded messages that were malformed or came from another user.
    forward_rejected,
    /// Times that this process set out to learn the order of the sockets of an address.
    sweeps,
    /// Probes sent.
    probes_out,
    /// Probes received and answered.
    probes_in,
    /// Answers to no question of ours, and probes from elsewhere.
    probes_rejected,
    /// Steering programs attached.
    steering_attached,
    /// Datagrams that were dropped because the socket had no room for a moment too long.
    send_blocked,
    /// Datagrams larger than the interface's or the path's MTU.
    send_too_large,
    /// Datagrams to where no route leads.
    send_unreachable,
    /// Datagrams that a firewall or a policy refused.
    send_refused,
    /// Datagrams that were lost to a lack of kernel memory or of room in a device's queue.
    send_no_buffers,
    /// Datagrams that were lost to any other error.
    send_other_errors,
    /// Datagrams that `URXE_FAULTS` dropped.
    faults_dropped,
    /// Datagrams that `URXE_FAULTS` duplicated.
    faults_duplicated,
    /// Datagrams that `URXE_FAULTS` held back behind later ones.
    faults_reordered,
    /// Datagrams in which `URXE_FAULTS` flipped a bit.
    faults_corrupted,
    /// Datagrams that `URXE_FAULTS` delayed.
    faults_delayed,
    /// Records that could not be written to the capture file.
    capture_errors,
}

/// One counter.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
