//! Notices that interfaces and addresses come, go and change, from the first opened device on: a
//! program may wait for events of a device without ever making a queue pair.

use crate::device;
use crate::per_process::PerProcess;
use rustix::event::{PollFd, PollFlags, poll};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use urxe_net::Monitor;
use urxe_net::thread;

static WATCHER: PerProcess<Once> = PerProcess::new();

/// Starts the thread that watches, if there is none yet.
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
        // An interrupted or failed poll is one more look.
        let _ = poll(&mut fds, None);
        if fds[0].revents().contains(PollFlags::NVAL) {
            // The program has closed the descriptor, whose number may be another file's soon. The next one to open
            // a device starts another thread.
            WATCHER.forget();
            return mem::forget(monitor);
        }
        // A panic is a bug in urxe; its message has been printed. The next change is noticed again.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if monitor.changed() {
                device::refresh();
            }
        }));
    }
}
