//! Reaction of identifiers to interfaces and addresses that appear, change and disappear.

use super::channel::{Details, EventKind};
use super::connection::open_all;
use super::id::{Id, Inner, State};
use super::resolve::Bound;
use crate::device::DeviceUser;
use crate::objects::watcher;
use crate::per_process::PerProcess;
use crate::sync::lock;
use std::sync::{Mutex, MutexGuard, Weak};

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
        self.tell(EventKind::DeviceRemoval, 0, Details::None);
    }

    fn link_address_changed(&self) {
        let inner = lock(&self.inner);
        if inner.state != State::Closed {
            self.tell(EventKind::AddressChange, 0, Details::None);
        }
    }
}

/// The identifiers that listen at all addresses.
static EVERYWHERE: PerProcess<Mutex<Vec<Weak<Id>>>> = PerProcess::new();

fn everywhere() -> MutexGuard<'static, Vec<Weak<Id>>> {
    lock(EVERYWHERE.get(Mutex::default))
}

/// Adds an identifier that listens at all addresses, including future ones.
pub(super) fn listens_everywhere(id: &Weak<Id>) {
    let mut everywhere = everywhere();
    everywhere.retain(|id| id.strong_count() > 0);
    everywhere.push(Weak::clone(id));
    watcher::observe(addresses_changed);
}

/// Opens new addresses of the host if any identifier listens at all addresses. Removed addresses
/// need no action: no packet arrives there.
fn addresses_changed() {
    let listeners: Vec<_> = everywhere().iter().filter_map(Weak::upgrade).collect();
    if listeners.iter().any(|id| id.state() == State::Listening)
        && let Err(error) = open_all()
    {
        tracing::warn!(%error, "new addresses are not listened at");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::child_finishes;

    #[test]
    fn child_listens_though_a_thread_of_its_parent_did() {
        let _held = everywhere();
        child_finishes(|| listens_everywhere(&Weak::new()));
    }
}
