//! Opened devices. The sockets on a device share its context and protection domain.

use crate::sync::lock;
use std::collections::HashMap;
use std::io;
use std::process;
use std::sync::{Arc, Mutex, Weak};
use urxe_driver::{Context, Device, Pd};

/// An opened device.
#[derive(Debug)]
pub(super) struct Opened {
    pub context: Context,
    pub pd: Arc<Pd>,
}

/// Opened devices by process ID, because a forked child cannot use its parent's, and by name.
type OpenDevices = HashMap<(u32, String), Weak<Opened>>;

static OPENED: Mutex<Option<OpenDevices>> = Mutex::new(None);

/// Opens a device, or returns the one that is open.
///
/// # Errors
/// Fails if the process has no descriptors left.
pub(super) fn open(device: &Arc<Device>) -> io::Result<Arc<Opened>> {
    let mut known = lock(&OPENED);
    let known = known.get_or_insert_default();
    known.retain(|_, opened| opened.strong_count() > 0);
    let key = (process::id(), device.name().to_owned());
    if let Some(opened) = known.get(&key).and_then(Weak::upgrade) {
        return Ok(opened);
    }
    let context = Context::open(device)?;
    let pd = context.create_pd();
    let opened = Arc::new(Opened { context, pd });
    known.insert(key, Arc::downgrade(&opened));
    Ok(opened)
}
