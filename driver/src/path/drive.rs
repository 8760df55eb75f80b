//! One round of work: receiving, timers, and what is pending.

use super::engine::{Engine, Network};
use super::panics::PanicGuard;
use super::rx::Caller;
use crate::memory::regions::regions;
use crate::queues::cq::Cq;
use crate::scheduling::affinity::Affinity;
use crate::scheduling::polling::Driven;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use urxe_net::thread::CancellationDisabled;
use urxe_proto::time::Time;

impl Engine {
    /// Receives one batch from each socket, and runs timers and pending work, once. True when there
    /// was any.
    #[inline(never)]
    pub fn drive(&self) -> bool {
        self.drive_as(Caller::Other, None) == Driven::Worked
    }

    /// [`Engine::drive`] for a thread of the program that waits for an event.
    #[inline(never)]
    pub(super) fn drive_in_wait(&self) -> bool {
        self.drive_as(Caller::Wait, None) == Driven::Worked
    }

    /// [`Engine::drive`] for a poll that began at `now`, of a completion queue with this affinity.
    /// Disables cancellation of the thread where there is work.
    #[inline(always)]
    pub(super) fn drive_in_poll(&self, affinity: Affinity, now: Time) -> Driven {
        self.drive_as(Caller::Poll(affinity), Some(now))
    }

    /// Receives, and runs timers and pending work, once. `begun` is the present time, if the caller
    /// knows it.
    ///
    /// Inlined, since it is most of a poll that finds nothing, and the kind of caller is constant.
    #[inline(always)]
    fn drive_as(&self, caller: Caller, begun: Option<Time>) -> Driven {
        let Some(network) = self.usable_network() else {
            return Driven::Idle;
        };
        if let (Caller::Poll(_), Some(begun)) = (caller, begun) {
            network.watchdog.polled(begun);
        }
        let guard = PanicGuard(self);
        let mut is_busy = false;
        let received_at = self.receive_all(network, caller, &mut is_busy);
        let now = received_at.or(begun).unwrap_or_else(urxe_net::now);
        let worked = received_at.is_some() | self.run_due(network, now);
        guard.end();
        if worked {
            Driven::Worked
        } else if is_busy {
            Driven::Busy
        } else {
            Driven::Idle
        }
    }

    /// Returns the network part, unless the program has closed its descriptors.
    #[inline]
    pub(super) fn usable_network(&self) -> Option<&Network> {
        self.network.get().filter(|_| !self.loss.is_lost())
    }

    /// Receives one batch from each socket. Returns the time at which the last one was received;
    /// `None` if there were no packets.
    #[inline(always)]
    fn receive_all(&self, network: &Network, caller: Caller, is_busy: &mut bool) -> Option<Time> {
        let mut received_at = None;
        for port in network.ports.list().iter() {
            received_at = self.receive(port, caller, is_busy).or(received_at);
        }
        if network.groups.any() {
            for joined in network.groups.list().iter() {
                received_at = self.receive_group(joined).or(received_at);
            }
        }
        received_at
    }

    /// Receives frames, and runs timers and pending work. True when there was any.
    #[inline(always)]
    fn run_due(&self, network: &Network, now: Time) -> bool {
        let mut worked = self.receive_frames();
        worked |= self.run_timers(now);
        worked |= self.run_pending_of(network, now);
        worked
    }

    /// Runs the timers that are due, of queue pairs and of completion queues. True when there were
    /// any.
    #[inline]
    pub(super) fn run_timers(&self, now: Time) -> bool {
        let is_due = self.next_timer() <= now;
        if is_due {
            self.run_due_timers(now);
        }
        is_due
    }

    #[inline(never)]
    fn run_due_timers(&self, now: Time) {
        let _disabled = CancellationDisabled::new();
        for cq in self.cqs.take_due(now) {
            cq.delay_ended(now);
        }
        while let Some((at, qpn)) = self.timers.take_due(now) {
            let qps = self.qps.read();
            let held = regions();
            if let Some(qp) = qps.get(qpn) {
                let effects = qp.timer_fired(at, now, held.table());
                self.apply(qp, effects);
            }
        }
    }

    /// Serves queue pairs with more to send, connections that wait for a quantum, completion queues
    /// that overran, and queue pair 1. The caller must hold no lock.
    #[inline]
    pub(super) fn run_pending(&self, now: Time) -> bool {
        (self.network.get()).is_some_and(|network| self.run_pending_of(network, now))
    }

    #[inline]
    fn run_pending_of(&self, network: &Network, now: Time) -> bool {
        let has_pending = self.has_pending_of(network) || network.gsi.deadline() <= now;
        has_pending && self.run_all_pending(network)
    }

    #[inline(never)]
    fn run_all_pending(&self, network: &Network) -> bool {
        let _disabled = CancellationDisabled::new();
        let mut worked = self.run_ready();
        worked |= self.grant_quanta();
        for cq in self.cqs.take_overran() {
            self.fail_users(&cq);
            worked = true;
        }
        let mut effects = Vec::new();
        worked |= network.gsi.run(&network.shared, &mut effects);
        for (qp, effects) in effects {
            self.apply(&qp, effects);
        }
        worked
    }

    /// Moves the queue pairs and work queues of a completion queue that overran to the error state.
    /// A queue pair that is being destroyed is no longer in the table, and completes nothing.
    fn fail_users(&self, cq: &Arc<Cq>) {
        cq.fail_users(|| {
            let qps = self.qps.read();
            for qp in qps.iter().filter(|qp| qp.completes_to(cq)) {
                let effects = qp.fail(regions().table());
                self.apply(qp, effects);
            }
        });
    }

    /// Returns whether [`Engine::run_pending`] has work to do.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        (self.network.get()).is_some_and(|network| self.has_pending_of(network))
    }

    #[inline]
    fn has_pending_of(&self, network: &Network) -> bool {
        self.has_ready.load(Ordering::Acquire)
            || self.cqs.has_overrun()
            || self.limiters.can_grant()
            || network.gsi.has_work()
    }

    /// Returns the time of the next work that no packet brings about.
    pub(super) fn next_deadline(&self, network: &Network) -> Time {
        self.next_timer().min(self.next_service(network))
    }

    /// Returns the time of the next work that the program's polls do not do.
    pub(super) fn next_service(&self, network: &Network) -> Time {
        let services = (network.ports.list().iter()).map(|port| port.endpoint().next_deadline());
        services.fold(network.gsi.deadline(), Time::min)
    }

    fn next_timer(&self) -> Time {
        self.timers.next().min(self.cqs.next())
    }

    /// Moves all queue pairs to the error state. The caller must hold no lock.
    pub(super) fn fail_all(&self) {
        let qps: Vec<_> = self.qps.read().iter().map(Arc::clone).collect();
        for qp in qps {
            // The state that a panic left behind may cause another one.
            let failing = std::panic::AssertUnwindSafe(|| qp.fail(regions().table()));
            match std::panic::catch_unwind(failing) {
                Ok(effects) => self.apply(&qp, effects),
                Err(_) => tracing::error!(qp = %qp.qpn(), "it cannot be taken to error"),
            }
        }
    }
}
