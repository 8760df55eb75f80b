//! The addresses at which port 4791 is open for identifiers, including those that appear later.

use super::error::CmError;
use super::id::Id;
use super::resolve::ResolveError;
use super::state::State;
use crate::device::{Device, devices};
use crate::objects::watcher;
use crate::path;
use crate::per_process::PerProcess;
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::{Arc, Weak};
use urxe_net::LocalAddress;

/// Opens port 4791 at these addresses. Fails only if none can be opened.
pub(super) fn open(addresses: &[LocalAddress]) -> Result<(), CmError> {
    let mut first = None;
    let mut opened = 0;
    for address in addresses {
        match path::get().ports()?.open(*address) {
            Ok(_) => opened += 1,
            Err(error) => {
                tracing::warn!("{error}");
                first.get_or_insert(error);
            }
        }
    }
    match first {
        Some(error) if opened == 0 => Err(error.into()),
        _ => Ok(()),
    }
}

/// Opens port 4791 at all addresses of all devices.
pub(super) fn open_all() -> Result<(), CmError> {
    let devices = devices().map_err(ResolveError::System)?;
    let sources = |device: Arc<Device>| device.sources().collect::<Vec<_>>();
    let addresses: Vec<_> = devices.into_iter().flat_map(sources).collect();
    open(&addresses)
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
        tracing::warn!(%error, "cannot open new addresses");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::child_finishes;

    #[test]
    fn a_forked_child_listens_while_the_parents_lock_was_held() {
        let _held = everywhere();
        child_finishes(|| listens_everywhere(&Weak::new()));
    }
}
