//! Modification of a queue pair: its state, its attributes, and the route to its peer.

use super::pace::Pacer;
use super::sending::Unsent;
use super::{ModifyError, Qp};
use crate::engine;
use crate::event_queue::lock;
use crate::regions::regions;
use crate::route::{Route, RouteError};
use std::sync::Arc;
use urxe_net::now;
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
        let opens = mask.contains(AttrMask::STATE) && attr.state == QpState::Init;
        if opens && self.frames.is_none() {
            match self.service {
                // No path determines the local address at which datagrams arrive.
                QpType::Ud => self.device.open_everywhere()?,
                _ => engine::get().open_any(self.device.sources())?,
            }
        }
        // Sends that are already posted use the attributes from before the change.
        engine::get().send_gathered();
        // Sockets are opened before any lock is taken: a receiving thread holds the list of
        // sockets.
        let way = |bit, av| match mask.contains(bit) {
            true => self.route(attr, mask, av).map(Some),
            false => Ok(None),
        };
        let route = way(AttrMask::AV, &attr.av)?;
        let alternate = way(AttrMask::ALT_PATH, &attr.alt_av)?;
        let mut unsent = None;
        let changed = self.change(attr, mask, burst, (route, alternate), &mut unsent);
        if let Some(unsent) = unsent {
            unsent.send();
        }
        changed?;
        engine::get().passage_cleared();
        Ok(())
    }

    /// Applies the change under the queue pair's lock. `unsent` receives the final responses for
    /// which the socket has no room.
    fn change(
        self: &Arc<Self>,
        attr: &QpAttr,
        mask: AttrMask,
        burst: u32,
        (route, alternate): (Option<Route>, Option<Route>),
        unsent: &mut Option<Unsent>,
    ) -> Result<(), ModifyError> {
        let held = regions();
        let mut inner = lock(&self.inner);
        let before = inner.machine.state();
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset) {
            *unsent = Some(self.say_farewell(&mut inner, held.table()));
        }
        inner
            .machine
            .modify(attr, mask, now(), &mut self.host(held.table()))?;
        if route.is_some() {
            inner.set_route(route);
        }
        if alternate.is_some() {
            inner.alternate = alternate;
        }
        let after = inner.machine.state();
        if after == QpState::Reset {
            inner.set_route(None);
            inner.alternate = None;
            inner.destinations.clear();
            inner.pacer = None;
            if before != QpState::Reset {
                self.purge();
            }
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            inner.pacer = Pacer::new(attr.rate_limit, burst);
        }
        self.transmit(&mut inner, held.table());
        Ok(())
    }

    fn check_path_mtu(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let active = self.device.active_mtu();
        if attr.path_mtu > active {
            return Err(ModifyError::PathMtu {
                device: self.device.name().to_owned(),
                active: active.bytes(),
                asked: attr.path_mtu.bytes(),
            });
        }
        Ok(())
    }

    /// Returns the route to the peer that `av` names.
    fn route(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        av: &AddressVector,
    ) -> Result<Route, RouteError> {
        let dest_qpn = match mask.contains(AttrMask::DEST_QPN) {
            true => attr.dest_qpn,
            false => self.attributes().dest_qpn,
        };
        let flow_key = self.qpn.get().rotate_left(8) ^ dest_qpn.get();
        let traffic_class = match self.service {
            QpType::Rc | QpType::XrcIni | QpType::XrcTgt if av.traffic_class & ECN == 0 => {
                av.traffic_class | ECT_0
            }
            _ => av.traffic_class,
        };
        let av = AddressVector {
            traffic_class,
            ..*av
        };
        Route::new(&self.device, &av, flow_key)
    }
}
