//! The end of the process.

use super::get;
use crate::stat;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use urxe_net::thread;

/// Whether that has begun.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Whether the process is ending: whatever its other threads are told now may make one of them end it in
/// another way.
pub fn is_leaving() -> bool {
    LEAVING.load(Ordering::Acquire)
}

/// The process ends in an orderly way: its neighbours on the port shall not notice.
pub(super) extern "C" fn leave() {
    // Neither a panic nor a pending cancellation may keep the process from ending as it wanted to.
    thread::without_cancellation(|| {
        let _ = std::panic::catch_unwind(leave_endpoints);
    });
}

fn leave_endpoints() {
    if let Some(network) = get().network.get()
        // A forked child ends too, and the sockets are its parent's.
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

/// Queue pairs that the program leaves to its end may owe their peers answers still.
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

/// The peers of connections shall know that these end, though a DREQ or its answer is lost: the kernel's CM
/// repeats it for processes that have ended.
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

/// The neighbours shall lose nothing by this process's end.
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

/// Has another thread do something, and waits for it, but not for ever: the one that ends the process may be
/// at anything, and have any lock.
fn elsewhere(patience: Duration, act: impl FnOnce() + Send + 'static) {
    let (tell, hear) = mpsc::channel();
    let started = thread::spawn("urxe-farewell", move || {
        act();
        // Nobody hears it when it took too long.
        let _ = tell.send(());
    });
    if started.is_ok() {
        let _ = hear.recv_timeout(patience);
    }
}
