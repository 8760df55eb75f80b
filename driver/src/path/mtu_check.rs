//! The search for a smaller MTU in the path as the cause of timeouts.
//!
//! Packets have «don't fragment», as those of rxe and NICs, so a link with a smaller MTU drops the
//! long ones (tunnels, VXLAN). A router reports that by ICMP. The kernel remembers the report, and
//! the sockets ignore it, because any host can forge it. So after a timeout, and only then, the
//! report is read and logged. Firewalls often drop ICMP; then short packets arrive and long ones do
//! not.

use crate::queues::qp::PathTimeout;
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use urxe_net::now;
use urxe_proto::mtu::Mtu;
use urxe_proto::time::Time;

/// The time for which the known MTU of a peer's path is used. Reading it takes four system calls,
/// and thousands of queue pairs may lose a peer at once.
const LIFETIME: Duration = Duration::from_secs(1);

/// The peers with timeouts.
#[derive(Debug, Default)]
pub(super) struct MtuCheck(Mutex<HashMap<IpAddr, Checked>>);

/// The last check of a peer.
#[derive(Debug)]
struct Checked {
    at: Time,
    /// The known MTU of its path.
    known: Option<u32>,
    /// Whether a smaller MTU was logged: each peer causes one message.
    is_logged: bool,
}

impl MtuCheck {
    /// Checks the MTU of a path after a timeout. Returns whether it is, or may be, exceeded.
    #[cold]
    pub(super) fn timed_out(&self, timeout: &PathTimeout) -> bool {
        let peer = timeout.path.peer().ip();
        let (mtu, len) = (timeout.mtu.bytes(), packet_len(peer, timeout.mtu));
        let now = now();
        let read = || timeout.path.known_mtu().ok();
        let mut peers = lock(&self.0);
        let checked = peers.entry(peer).or_insert_with(|| Checked {
            at: now,
            known: read(),
            is_logged: false,
        });
        if now.since(checked.at) >= LIFETIME {
            (checked.at, checked.known) = (now, read());
        }
        let known = checked.known.filter(|known| *known < len);
        if known.is_none() && !timeout.only_short_packets_arrive {
            return false;
        }
        if std::mem::replace(&mut checked.is_logged, true) {
            return true;
        }
        drop(peers);
        match known {
            Some(known) => {
                let fits = Mtu::for_interface(known).unwrap_or(Mtu::B256).bytes();
                tracing::warn!(
                    "packets of up to {len} bytes to {peer} are lost: a link of the path carries only \
                     {known} bytes. Use a path MTU of {fits} instead of {mtu} (option -m of ibv_* \
                     and ib_* programs), or set the MTU of the interface to {known}"
                );
            }
            None => tracing::warn!(
                "{peer} answers short packets, but not long ones of up to {len} bytes: a link of \
                 the path may carry less, and not report it by ICMP. Use a path MTU below {mtu} (option -m \
                 of ibv_* and ib_* programs), or lower the MTU of the interface"
            ),
        }
        true
    }
}

/// The length of an IP packet with a full payload and the shortest headers.
fn packet_len(peer: IpAddr, mtu: Mtu) -> u32 {
    let ip = if peer.is_ipv4() { 20 } else { 40 };
    // UDP, BTH and ICRC.
    ip + 8 + 12 + 4 + mtu.bytes() as u32
}
