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

/// The longest time for closing port 4791.
const PORT_TIMEOUT: Duration = Duration::from_millis(500);

/// The longest time for adding up the counters.
const REPORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Set when the process has begun to end.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is ending. An event that is delivered to another thread now may make
/// that thread end the process in another way.
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Ends the process's use of the network.
pub(super) fn close_network(engine: &'static Engine) {
    if let Some(network) = engine.network.get()
        // A forked child ends too, and the sockets belong to its parent.
        && network.shared.is_ours()
    {
        EXITING.store(true, Ordering::Release);
        send_last_report(engine);
        flush_final_acks(engine);
        end_connections(engine);
        close_ports(engine);
    }
}

/// Sends the counters of this process to those that listen for them.
fn send_last_report(engine: &'static Engine) {
    let add_up = || in_thread(REPORT_TIMEOUT, || report::encode(&engine.report()));
    if let Err(error) = urxe_net::send_to_listeners(add_up) {
        tracing::debug!(%error, "the last counters cannot be sent");
    }
}

/// Sends the final ACKs of the queue pairs that the program did not destroy.
fn flush_final_acks(engine: &'static Engine) {
    in_thread(FINAL_ACK_TIMEOUT, || {
        engine.flush_deferred();
        let qps: Vec<_> = engine.qps.read().iter().map(Arc::clone).collect();
        qps.iter().for_each(|qp| qp.send_final_acks());
        if !qps.is_empty() {
            engine.wait_for_delayed_packets();
        }
    });
}

/// Ends the connections, and retransmits unanswered DREQs: a DREQ or its DREP may be lost.
/// The kernel's CM does the same for processes that have ended.
fn end_connections(engine: &'static Engine) {
    in_thread(DISCONNECT_TIMEOUT, || {
        let Some(network) = engine.network.get() else {
            return;
        };
        network.gsi.disconnect_all();
        let start = Instant::now();
        let mut last_dreqs = start;
        while network.gsi.awaits_drep() && start.elapsed() < DISCONNECT_TIMEOUT {
            if last_dreqs.elapsed() >= DREQ_INTERVAL {
                last_dreqs = Instant::now();
                network.gsi.retransmit_dreqs();
            }
            if !engine.drive() {
                std::thread::sleep(IDLE_PAUSE);
            }
        }
    });
}

/// Leaves the reuseport groups of port 4791, so that no packet of another process is lost.
fn close_ports(engine: &'static Engine) {
    in_thread(PORT_TIMEOUT, || {
        if let Some(network) = engine.network.get() {
            for port in network.ports.list().iter() {
                port.endpoint().leave();
            }
        }
    });
}

/// Runs `act` in another thread, waits for it for a limited time, and returns its result: the
/// thread that ends the process may have been interrupted at any point, and may hold any lock.
fn in_thread<T: Send + 'static>(
    timeout: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let started = thread::spawn("urxe-exit", move || {
        // The receiver is dropped after the timeout.
        let _ = sender.send(act());
    });
    started.ok()?;
    receiver.recv_timeout(timeout).ok()
}
