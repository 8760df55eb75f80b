//! The orderly end of the process.

use super::engine::Engine;
use super::report;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use urxe_net::thread;

/// The longest time for the final ACKs of all queue pairs.
const FINAL_ACK_TIMEOUT: Duration = Duration::from_millis(100);

/// The longest time for the ends of all connections, the interval in which unanswered DREQs are
/// retransmitted, and the pause after a round without work.
const DISCONNECT_TIMEOUT: Duration = Duration::from_millis(100);
const DREQ_INTERVAL: Duration = Duration::from_millis(20);
const IDLE_PAUSE: Duration = Duration::from_micros(200);

/// The longest time for leaving port 4791.
const PORT_TIMEOUT: Duration = Duration::from_millis(500);

/// The longest time for adding up the counters.
const REPORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Set when the process has begun to end.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is ending. An event that is delivered to another thread now may make
/// that thread end the process in another way.
pub fn is_leaving() -> bool {
    LEAVING.load(Ordering::Acquire)
}

/// Ends the process's use of the network.
pub(super) fn leave(engine: &'static Engine) {
    if let Some(network) = engine.network.get()
        // A forked child ends too, and the sockets belong to its parent.
        && network.shared.is_ours()
        && let Some(ports) = network.ports.try_list()
    {
        LEAVING.store(true, Ordering::Release);
        send_last_report(engine);
        drop(ports);
        flush_final_acks(engine);
        end_connections(engine);
        leave_ports(engine);
    }
}

/// Sends the counters of this process to those that listen for them.
fn send_last_report(engine: &'static Engine) {
    let add_up = || in_thread(REPORT_TIMEOUT, || report::encode(&engine.report()));
    if let Err(error) = urxe_net::send_to_listeners(add_up) {
        tracing::debug!(%error, "the last counters cannot be sent");
    }
}

/// Sends the answers that queue pairs still owe their peers, where the program did not destroy
/// them.
fn flush_final_acks(engine: &'static Engine) {
    in_thread(FINAL_ACK_TIMEOUT, || {
        engine.flush_deferred();
        let qps: Vec<_> = engine.qps.read().iter().map(Arc::clone).collect();
        qps.iter().for_each(|qp| qp.leave());
        if !qps.is_empty() {
            engine.wait_for_delayed_packets();
        }
    });
}

/// Ends the connections, and repeats DREQs that are not answered: a DREQ or its answer may be lost.
/// The kernel's CM does the same for processes that have ended.
fn end_connections(engine: &'static Engine) {
    in_thread(DISCONNECT_TIMEOUT, || {
        let Some(network) = engine.network.get() else {
            return;
        };
        network.gsi.leave();
        let start = Instant::now();
        let mut repeated = start;
        while network.gsi.awaits_ends() && start.elapsed() < DISCONNECT_TIMEOUT {
            if repeated.elapsed() >= DREQ_INTERVAL {
                repeated = Instant::now();
                network.gsi.repeat_ends();
            }
            if !engine.drive() {
                std::thread::sleep(IDLE_PAUSE);
            }
        }
    });
}

/// Leaves port 4791 so that packets for other processes are not lost.
fn leave_ports(engine: &'static Engine) {
    in_thread(PORT_TIMEOUT, || {
        if let Some(network) = engine.network.get() {
            for port in network.ports.list().iter() {
                port.endpoint().leave();
            }
        }
    });
}

/// Runs `act` in another thread, waits for it for a limited time, and returns its result: the thread
/// that ends the process may have been interrupted at any point, and may hold any lock.
fn in_thread<T: Send + 'static>(
    timeout: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let started = thread::spawn("urxe-leaving", move || {
        // The receiver is gone if this took too long.
        let _ = sender.send(act());
    });
    started.ok()?;
    receiver.recv_timeout(timeout).ok()
}
