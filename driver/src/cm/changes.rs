//! Reaction of identifiers to the removal of their device and to changes of its link address.

use super::channel::{Details, EventKind};
use super::id::{Id, Inner};
use super::resolve::Bound;
use super::state::State;
use crate::device::DeviceUser;
use crate::objects::watcher;
use crate::sync::lock;
use std::sync::Weak;

impl Inner {
    /// Binds the identifier `me` to a device's address, and registers it for notification of
    /// changes.
    pub(super) fn bind_to(&mut self, me: &Weak<Id>, bound: Bound) {
        let me: Weak<Id> = Weak::clone(me);
        bound.device.used_by(me);
        self.bound = Some(bound);
        watcher::start();
    }

    /// Ends the notification of the identifier `me` of changes of its device.
    pub(super) fn leave_device(&mut self, me: &Id) {
        if let Some(bound) = &self.bound {
            bound.device.not_used_by(me);
        }
    }
}

impl DeviceUser for Id {
    /// Makes the identifier unusable, as in the kernel. Its connection, if any, is not ended
    /// here.
    fn device_removed(&self) {
        let mut inner = lock(&self.inner);
        if matches!(inner.state, State::Closed | State::WithoutDevice) {
            return;
        }
        inner.state = State::WithoutDevice;
        inner.listener = None;
        self.raise(EventKind::DeviceRemoval, 0, Details::None);
    }

    fn link_address_changed(&self) {
        let inner = lock(&self.inner);
        if inner.state != State::Closed {
            self.raise(EventKind::AddressChange, 0, Details::None);
        }
    }
}
