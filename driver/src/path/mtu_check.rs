//! The search for a smaller MTU in the path as the cause of timeouts.
//!
//! Packets have «don't fragment», as those of rxe and NICs, so a link with a smaller MTU drops the
//! long ones (tunnels, VXLAN). A router reports that by ICMP. The kernel remembers the report, and
//! the sockets ignore it, because any host can forge it. So after a timeout, and only then, the
//! report is read and logged. Firewalls often drop ICMP; then short packets arrive and long ones do
//! not.

use crate::queues::qp::PathTimeout;
use crate::sync::{Mutex, lock};
use std::collections::HashSet;
use std::net::IpAddr;
use urxe_proto::mtu::Mtu;

/// The peers for which a smaller MTU was logged. Each causes one message.
#[derive(Debug, Default)]
pub(super) struct MtuCheck(Mutex<HashSet<IpAddr>>);

impl MtuCheck {
    /// Checks the MTU of a path after a timeout. Returns whether it is, or may be, exceeded.
    #[cold]
    pub(super) fn timed_out(&self, timeout: &PathTimeout) -> bool {
        let peer = timeout.path.peer().ip();
        let (mtu, len) = (timeout.mtu.bytes(), packet_len(peer, timeout.mtu));
        let known = timeout.path.known_mtu().ok().filter(|known| *known < len);
        if known.is_none() && !timeout.only_short_packets_arrive {
            return false;
        }
        if !lock(&self.0).insert(peer) {
            return true;
        }
        match known {
            Some(known) => {
                let fits = Mtu::for_interface(known).unwrap_or(Mtu::B256).bytes();
                tracing::warn!(
                    "packets of {len} bytes to {peer} are lost: a link of the path carries only \
                     {known} bytes. Use a path MTU of {fits} instead of {mtu} (option -m of ibv_* \
                     and ib_* programs), or set the MTU of the interface to {known}"
                );
            }
            None => tracing::warn!(
                "{peer} answers short packets, but not those of {len} bytes: a link of the path \
                 may carry less, and not report it by ICMP. Use a path MTU below {mtu} (option -m \
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
