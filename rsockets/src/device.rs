//! Opened devices: the sockets of a device share one, with its protection domain.

use crate::lock;
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

/// By process, as a forked child has none of its parent's, and by name.
type Known = HashMap<(u32, String), Weak<Opened>>;

static OPENED: Mutex<Option<Known>> = Mutex::new(None);

/// Opens a device, or finds it opened.
///
/// # Errors
/// When the process has no descriptor left.
pub(super) fn open(device: &Arc<Device>) -> io::Result<Arc<Opened>> {
    let mut known = lock(&OPENED);
    let known = known.get_or_insert_default();
    known.retain(|_, opened| opened.strong_count() > 0);
    let key = (process::id(), device.name().to_owned());
    if let Some(opened) = known.get(&key).and_then(Weak::upgrade) {
        return Ok(opened);
    }
    let opened = Arc::new(Opened {
        context: Context::open(device)?,
        pd: Pd::new(),
    });
    known.insert(key, Arc::downgrade(&opened));
    Ok(opened)
}
