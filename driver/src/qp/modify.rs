//! Changing a queue pair: its states, its attributes, and the way to its peer.

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

/// The bits of a traffic class that belong to routers, to mark what meets congestion (RFC 3168).
const ECN: u8 = 0b11;
/// What they are in packets whose sender heeds marks. The ICRC leaves the traffic class out (A17.3.3).
const ECT_0: u8 = 0b10;

impl Qp {
    /// Changes attributes and state (11.2.4.2).
    ///
    /// # Errors
    /// See [`ModifyError`]; nothing has changed then.
    pub fn modify(self: &Arc<Self>, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        self.modify_with_burst(attr, mask, 0)
    }

    /// Limits the rate at which it sends, in kbit/s, with bursts of about so many bytes; 0 is for no
    /// limit, and for the usual bursts. What it answers to its peer counts, but short answers are not
    /// held back.
    ///
    /// # Errors
    /// [`ModifyError::Transition`] unless it is in RTS; [`ModifyError::Pacing`] for raw packets.
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
                // No path says which address its datagrams come to.
                QpType::Ud => self.device.open_everywhere()?,
                _ => engine::get().open_any(self.device.sources())?,
            }
        }
        // What was posted before goes out by what held then.
        engine::get().send_gathered();
        // Opening sockets comes before the locks: whoever receives holds the list of sockets.
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

    /// Changes it with its lock held. `unsent` gets the last answers for which the socket has no room.
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

    /// A way to the peer.
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
