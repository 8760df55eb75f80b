//! The thread that watches interfaces and addresses for changes. It starts with the first opened
//! device: a program may wait for events of a device without ever creating a queue pair.

use crate::device;
use crate::path;
use crate::per_process::PerProcess;
use crate::sync::{Mutex, lock};
use rustix::event::{PollFd, PollFlags, poll};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use urxe_net::Monitor;
use urxe_net::thread;

static WATCHER: PerProcess<Once> = PerProcess::new();

type Observer = fn();

/// The functions that are called after each change, by a thread that holds no lock.
static OBSERVERS: PerProcess<Mutex<Vec<Observer>>> = PerProcess::new();

/// Calls `observer` after each change from now on; a function is added once. Starts the thread.
pub(crate) fn observe(observer: Observer) {
    let mut observers = lock(OBSERVERS.get(Mutex::default));
    if !observers
        .iter()
        .any(|known| std::ptr::fn_addr_eq(*known, observer))
    {
        observers.push(observer);
    }
    drop(observers);
    start();
}

/// Starts the thread if it is not running.
pub(crate) fn start() {
    WATCHER.get(Once::new).call_once(|| {
        let started = Monitor::new()
            .and_then(|monitor| thread::spawn("urxe-watcher", move || watch(monitor)));
        if let Err(error) = started {
            tracing::debug!(%error, "changes of interfaces will not be noticed");
        }
    });
}

fn watch(monitor: Monitor) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(monitor.fd(), PollFlags::IN)];
        // After an interrupted or failed poll, the check below is made once more than needed.
        let _ = poll(&mut fds, None);
        if fds[0].revents().contains(PollFlags::NVAL) {
            // The program has closed the descriptor, whose number may soon belong to another file.
            // The next thread that opens a device starts this one again.
            WATCHER.forget();
            return mem::forget(monitor);
        }
        // A panic is a bug in urxe; its message has been printed. Later changes are still noticed.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if monitor.changed() {
                changed();
            }
        }));
    }
}

/// Applies changes of interfaces and addresses. The caller must hold no lock.
fn changed() {
    for device in device::refresh() {
        if device.is_open_everywhere()
            && let Err(error) = path::get().open_all(device.sources())
        {
            tracing::warn!(device = device.name(), %error, "no datagrams arrive at new addresses");
        }
    }
    let observers = lock(OBSERVERS.get(Mutex::default)).clone();
    for observer in observers {
        observer();
    }
}
