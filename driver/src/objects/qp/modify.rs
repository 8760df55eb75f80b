//! Modification of a queue pair: its state, its attributes, and the route to its peer.

use crate::memory::regions::{RegionTable, regions};
use crate::path;
use crate::ports::route::Route;
use crate::queues::qp::error::ModifyError;
use crate::queues::qp::pacer::Pacer;
use crate::queues::qp::{Inner, PeerPath, Qp, UnsentBatch};
use crate::sync::lock;
use std::sync::Arc;
use urxe_net::{FaultSpec, now};
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType, TransitionError};

/// The ECN bits of a traffic class (RFC 3168).
const ECN: u8 = 0b11;
/// ECT(0): the sender responds to congestion marks. The ICRC does not cover the traffic class
/// (A17.3.3), so routers may mark it.
const ECT_0: u8 = 0b10;

impl Qp {
    /// Modifies attributes and state (11.2.4.2).
    ///
    /// # Errors
    /// See [`ModifyError`]; nothing has changed then.
    pub fn modify(self: &Arc<Self>, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        self.modify_with_burst(attr, mask, 0)
    }

    /// Limits the send rate to `rate` kbit/s, in bursts of about `burst` bytes. A rate of 0 removes
    /// the limit; a burst of 0 selects the default. Responses count against the rate, but short
    /// ones such as acknowledgements are not delayed.
    ///
    /// # Errors
    /// [`ModifyError::Transition`] unless the queue pair is in RTS; [`ModifyError::Pacing`] for raw
    /// packets.
    pub fn limit_rate(self: &Arc<Self>, rate: u32, burst: u32) -> Result<(), ModifyError> {
        if self.state() != QpState::Rts {
            return Err(TransitionError::Unexpected(AttrMask::RATE_LIMIT).into());
        }
        let attr = QpAttr {
            rate_limit: rate,
            ..QpAttr::default()
        };
        self.modify_with_burst(&attr, AttrMask::RATE_LIMIT, burst)
    }

    /// Injects faults into the packets that the queue pair sends after its next transition to RTR.
    /// Packets to address handles are exempt.
    pub fn inject_faults(&self, faults: FaultSpec) {
        *lock(&self.faults) = Some(faults);
    }

    fn modify_with_burst(
        self: &Arc<Self>,
        attr: &QpAttr,
        mask: AttrMask,
        burst: u32,
    ) -> Result<(), ModifyError> {
        let limits = mask.contains(AttrMask::RATE_LIMIT) && attr.rate_limit > 0;
        if limits && self.frames.is_some() {
            return Err(ModifyError::Pacing);
        }
        if mask.contains(AttrMask::PATH_MTU) {
            self.check_path_mtu(attr)?;
        }
        let engine = path::get();
        let opens = mask.contains(AttrMask::STATE) && attr.state == QpState::Init;
        if opens && self.frames.is_none() {
            let addresses = self.device.sources();
            match self.service {
                // No path determines the local address at which datagrams arrive.
                QpType::Ud => {
                    self.device.set_open_everywhere();
                    engine.open_all(addresses)?;
                }
                _ => engine.ports()?.open_any(addresses)?,
            }
        }
        // Sends that are already posted use the attributes from before the change.
        engine.flush_deferred();
        // Sockets are opened before any lock is taken: a receiving thread holds the list of
        // sockets.
        let peer_path = |bit, av| match mask.contains(bit) {
            true => self.peer_path(attr, mask, av).map(Some),
            false => Ok(None),
        };
        let way_to_peer = peer_path(AttrMask::AV, &attr.av)?;
        let alternate = peer_path(AttrMask::ALT_PATH, &attr.alt_av)?;
        let (changed, unsent) = self.change(attr, mask, burst, (way_to_peer, alternate));
        // The connection manager has measured the path if it made the connection.
        let begins = mask.contains(AttrMask::STATE) && attr.state == QpState::Rts;
        if begins
            && changed.is_ok()
            && matches!(self.service, QpType::Rc | QpType::XrcIni)
            && let Ok(gsi) = engine.gsi()
            && let Some(timeout) = gsi.retransmission_timeout(self.attributes().av.dgid)
        {
            self.seed_timeout(timeout);
        }
        if let Some(unsent) = unsent {
            unsent.send();
        }
        engine.wake_if_grantable();
        changed
    }

    /// Applies the change under the queue pair's lock. Returns also the final responses for which
    /// the socket has no room.
    fn change(
        self: &Arc<Self>,
        attr: &QpAttr,
        mask: AttrMask,
        burst: u32,
        paths: (Option<PeerPath>, Option<PeerPath>),
    ) -> (Result<(), ModifyError>, Option<UnsentBatch>) {
        let ends =
            mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset);
        if ends {
            path::get().receive_arrived();
        }
        let held = regions();
        let mut inner = self.lock();
        let unsent = ends.then(|| self.flush_final_acks(&mut inner, held.table()));
        let changed = self.change_locked(&mut inner, attr, mask, burst, paths, held.table());
        let effects = inner.take_effects();
        drop(inner);
        drop(held);
        path::get().apply(self, effects);
        (changed, unsent)
    }

    fn change_locked(
        self: &Arc<Self>,
        inner: &mut Inner,
        attr: &QpAttr,
        mask: AttrMask,
        burst: u32,
        (peer_path, alternate): (Option<PeerPath>, Option<PeerPath>),
        regions: &RegionTable,
    ) -> Result<(), ModifyError> {
        let before = inner.transport.state();
        inner
            .transport
            .modify(attr, mask, now(), &mut self.host(regions))?;
        if peer_path.is_some() {
            inner.set_peer_path(peer_path);
        }
        if alternate.is_some() {
            inner.alternate = alternate;
        }
        if inner.transport.state() == QpState::Reset {
            inner.set_peer_path(None);
            inner.alternate = None;
            inner.handles.clear();
            inner.pacer = None;
            if before != QpState::Reset {
                self.purge();
            }
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            inner.pacer = Pacer::new(attr.rate_limit, burst);
        }
        self.transmit(inner, now(), regions);
        Ok(())
    }

    fn check_path_mtu(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let active = self.device.active_mtu();
        if attr.path_mtu > active {
            return Err(ModifyError::PathMtu {
                device: self.device.name().to_owned(),
                active: active.bytes(),
                requested: attr.path_mtu.bytes(),
            });
        }
        Ok(())
    }

    /// Returns the path to the peer that `av` names.
    fn peer_path(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        av: &AddressVector,
    ) -> Result<PeerPath, ModifyError> {
        let dest_qpn = match mask.contains(AttrMask::DEST_QPN) {
            true => attr.dest_qpn,
            false => self.attributes().dest_qpn,
        };
        let flow_key = self.qpn.get().rotate_left(8) ^ dest_qpn.get();
        let is_reliable = matches!(self.service, QpType::Rc | QpType::XrcIni | QpType::XrcTgt);
        let traffic_class = match is_reliable && av.traffic_class & ECN == 0 {
            true => av.traffic_class | ECT_0,
            false => av.traffic_class,
        };
        let av = AddressVector {
            traffic_class,
            ..*av
        };
        let engine = path::get();
        let faults = *lock(&self.faults);
        let route = Route::resolve(engine.ports()?, &self.device, &av, flow_key, faults)?;
        let endpoint = route.local.endpoint();
        let is_same_host = route.path.peer().ip() == endpoint.address().ip();
        // On an emulated path the packets in flight are not in the peer's receive buffer.
        let is_emulated = match faults {
            Some(faults) => faults.delays(),
            None => endpoint.emulates_path(),
        };
        let fills_buffer = is_same_host && !is_emulated;
        let limiter = (is_reliable && fills_buffer).then(|| {
            // The top bits of a queue pair number are the slot of its process.
            let [_, slot, ..] = dest_qpn.get().to_be_bytes();
            engine.limiters().of_slot(slot, endpoint.receive_buffer())
        });
        Ok(PeerPath { route, limiter })
    }
}
