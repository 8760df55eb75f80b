//! Interfaces and addresses that come, go and change, and what identifiers make of it.

use super::channel::{Details, EventKind};
use super::connection::open_all;
use super::id::{Id, Inner, State};
use super::resolve::Bound;
use crate::device::DeviceUser;
use crate::event_queue::lock;
use crate::per_process::PerProcess;
use crate::watcher;
use std::sync::{Mutex, MutexGuard, Weak};

impl Inner {
    /// Binds the identifier `me` to an address of a device, of which it is told what becomes.
    pub(super) fn bind_to(&mut self, me: &Weak<Id>, bound: Bound) {
        let me: Weak<Id> = Weak::clone(me);
        bound.device.used_by(me);
        self.bound = Some(bound);
        watcher::start();
    }

    /// The identifier `me` is told no more of its device.
    pub(super) fn leave_device(&mut self, me: &Id) {
        if let Some(bound) = &self.bound {
            bound.device.not_used_by(me);
        }
    }
}

impl DeviceUser for Id {
    /// Nothing can be done with it any more, as with the kernel's. Its connection, if it has one, ends in
    /// its own way.
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

/// Identifiers that listen at all addresses.
static EVERYWHERE: PerProcess<Mutex<Vec<Weak<Id>>>> = PerProcess::new();

fn everywhere() -> MutexGuard<'static, Vec<Weak<Id>>> {
    lock(EVERYWHERE.get(Mutex::default))
}

/// `id` listens at all addresses, those to come included.
pub(super) fn listens_everywhere(id: &Weak<Id>) {
    let mut everywhere = everywhere();
    everywhere.retain(|id| id.strong_count() > 0);
    everywhere.push(Weak::clone(id));
    watcher::start();
}

/// The host's addresses are others: where somebody listens at all, the new ones are opened too. What has
/// gone needs nothing: nobody sends there.
pub(crate) fn addresses_changed() {
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
