//! The orderly end of the process.

use super::get;
use crate::stat;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use urxe_net::thread;

/// Set when the process has begun to end.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is ending. An event that is delivered to another thread now may make
/// that thread end the process in another way.
pub fn is_leaving() -> bool {
    LEAVING.load(Ordering::Acquire)
}

/// Ends this process's use of the network, for atexit(3), so that same-host peers lose no packets.
pub(super) extern "C" fn leave() {
    // Neither a panic nor a pending cancellation may change the way in which the process ends.
    thread::without_cancellation(|| {
        let _ = std::panic::catch_unwind(leave_endpoints);
    });
}

fn leave_endpoints() {
    if let Some(network) = get().network.get()
        // A forked child ends too, and the sockets belong to its parent.
        && network.shared.is_ours()
        && let Some(locals) = network.locals.try_list()
    {
        LEAVING.store(true, Ordering::Release);
        stat::say_farewell();
        drop(locals);
        take_leave_of_peers();
        end_connections();
        leave_the_port();
    }
}

/// Sends the answers that queue pairs still owe their peers, where the program did not destroy
/// them.
fn take_leave_of_peers() {
    const PATIENCE: Duration = Duration::from_millis(100);
    elsewhere(PATIENCE, || {
        let engine = get();
        engine.send_gathered();
        let qps: Vec<_> = engine.qps().iter().map(Arc::clone).collect();
        qps.iter().for_each(|qp| qp.take_leave());
        if !qps.is_empty() {
            engine.wait_for_delayed();
        }
    });
}

/// Ends the connections, and repeats DREQs that are not answered: a DREQ or its answer may be lost.
/// The kernel's CM does the same for processes that have ended.
fn end_connections() {
    const PATIENCE: Duration = Duration::from_millis(100);
    const INTERVAL: Duration = Duration::from_millis(20);
    const LOOK: Duration = Duration::from_micros(200);
    elsewhere(PATIENCE, || {
        let Some(network) = get().network.get() else {
            return;
        };
        network.gsi.leave();
        let start = Instant::now();
        let mut repeated = start;
        while network.gsi.awaits_ends() && start.elapsed() < PATIENCE {
            if repeated.elapsed() >= INTERVAL {
                repeated = Instant::now();
                network.gsi.repeat_ends();
            }
            if !get().drive() {
                std::thread::sleep(LOOK);
            }
        }
    });
}

/// Leaves port 4791 so that packets for other processes are not lost.
fn leave_the_port() {
    const PATIENCE: Duration = Duration::from_millis(500);
    elsewhere(PATIENCE, || {
        if let Some(network) = get().network.get() {
            for local in network.locals().iter() {
                local.endpoint.leave();
            }
        }
    });
}

/// Runs `act` in another thread, and waits for it for a limited time: the thread that ends the
/// process may have been interrupted at any point, and may hold any lock.
fn elsewhere(patience: Duration, act: impl FnOnce() + Send + 'static) {
    let (tell, hear) = mpsc::channel();
    let started = thread::spawn("urxe-farewell", move || {
        act();
        // The receiver is gone if this took too long.
        let _ = tell.send(());
    });
    if started.is_ok() {
        let _ = hear.recv_timeout(patience);
    }
}
