//! Application of the effects of calls on queue pairs, and the queue pairs that wait to send.

use super::deferred_lists::List;
use super::engine::{Engine, Network};
use crate::memory::regions::{RegionTable, regions};
use crate::queues::qp::{Effects, Qp};
use crate::scheduling::affinity::Affinity;
use crate::scheduling::limits::POLLS_BEFORE_FLUSH;
use crate::scheduling::polling::Polls;
use std::sync::Arc;
use urxe_net::thread;
use urxe_proto::time::Time;

impl Engine {
    /// Applies the effects of a call on a queue pair, except for a delayed ACK, see
    /// [`Engine::delay_ack`].
    #[inline]
    pub(crate) fn apply(&self, qp: &Arc<Qp>, effects: Effects) {
        if !effects.is_empty() {
            self.apply_all(qp, effects);
        }
    }

    #[inline(never)]
    fn apply_all(&self, qp: &Arc<Qp>, effects: Effects) {
        let Effects {
            deadline,
            delayed_until,
            ready,
            delayed_ack: _,
            blocked_on,
            coalesced,
            acks_delayed,
            timed_out,
        } = effects;
        if timed_out.is_some_and(|timeout| self.mtu_check.timed_out(&timeout)) {
            self.counters.path_mtu_exceeded.add(1);
        }
        if coalesced > 0 {
            self.counters.coalesced_sends.add(u64::from(coalesced));
        }
        if acks_delayed > 0 {
            self.counters.delayed_acks.add(u64::from(acks_delayed));
        }
        if deadline != Time::NEVER {
            let is_first = self.timers.add(qp.qpn(), deadline);
            // While the program polls, its polls run the timers.
            if is_first && !self.waker.handoff().leaves_packets_to_polls() {
                self.waker.deadline_moved(deadline);
            }
        }
        self.waker.deadline_moved(delayed_until);
        if let (Some(socket), Some(network)) = (blocked_on, self.network.get()) {
            network.writable.add(qp, &socket);
        }
        if ready {
            self.add_ready(Arc::clone(qp));
        }
    }

    /// Adds a queue pair to the list of those with a delayed ACK. Sends the ACK if it may no longer
    /// be delayed: the progress thread reads the list after it has stored that it sleeps for
    /// longer. `is_waiter` as for [`Handoff::may_delay_acks`].
    ///
    /// [`Handoff::may_delay_acks`]: crate::scheduling::handoff::Handoff::may_delay_acks
    pub(super) fn delay_ack(&self, qp: &Arc<Qp>, is_waiter: bool, regions: &RegionTable) {
        if let Some(network) = self.network.get() {
            let (list, _) = network.deferred.of(Affinity::of(qp.qpn()));
            list.add_ack(Arc::clone(qp));
        }
        if !self.waker.handoff().may_delay_acks(is_waiter) {
            let effects = qp.send_delayed_ack(regions);
            self.apply(qp, effects);
        }
    }

    /// Returns the number of polls so far, of completion queues with this affinity, if sends may be
    /// deferred, or else `None`: while a completion queue is armed, the program may sleep outside
    /// urxe's calls, so no call would send them.
    pub(crate) fn polls_unless_armed(&self, affinity: Affinity) -> Option<u64> {
        (!self.waker.handoff().is_armed()).then(|| self.polling.of(affinity).count())
    }

    /// Notes that sends of a queue pair are deferred from `now` on. `is_listed` says that the queue
    /// pair is on the list: this was called for it, and [`Qp::send_deferred`] not since.
    pub(crate) fn defer_sends(&self, qp: &Arc<Qp>, is_listed: bool, now: Time) {
        if let Some(network) = self.network.get() {
            let new = (!is_listed).then(|| Arc::clone(qp));
            let (list, _) = network.deferred.of(Affinity::of(qp.qpn()));
            list.add(new, now);
        }
    }

    /// Sends all deferred sends and delayed ACKs. The caller must hold no lock.
    #[inline]
    pub(crate) fn flush_deferred(&self) {
        self.send_delayed_acks();
        self.send_deferred();
    }

    /// Sends the deferred sends only: the program has called again, and may still answer messages.
    /// The caller must hold no lock.
    #[inline]
    pub(crate) fn send_deferred(&self) {
        if let Some(network) = self.network.get() {
            match network.deferred.only() {
                Some(list) if list.has_sends() => self.send_listed(list),
                Some(_) => {}
                None => self.send_all_listed(network),
            }
        }
        self.wake_if_grantable();
    }

    #[cold]
    fn send_all_listed(&self, network: &Network) {
        let lists = network.deferred.all().filter(|list| list.has_sends());
        lists.for_each(|list| self.send_listed(list));
    }

    /// [`Engine::send_deferred`] in a poll: of queue pairs with the affinity of the polled
    /// completion queue, and at intervals of all of them, with their delayed ACKs.
    #[inline]
    pub(super) fn send_deferred_in_poll(&self, polls: Polls<'_>) {
        if let Some(network) = self.network.get() {
            let (list, are_several) = network.deferred.of(polls.affinity());
            if list.has_sends() {
                self.send_listed(list);
            }
            if are_several && polls.count().is_multiple_of(POLLS_BEFORE_FLUSH) {
                self.send_all_listed(network);
                self.send_all_listed_acks(network);
            }
        }
        self.wake_if_grantable();
    }

    #[cold]
    fn send_listed(&self, list: &List) {
        thread::without_cancellation(|| {
            list.take_all(|qp| {
                if let Some(effects) = qp.send_deferred(false, regions().table()) {
                    self.apply(&qp, effects);
                }
            });
        });
    }

    /// Sends the delayed ACKs: the program has answered what it will answer. The caller must hold
    /// no lock.
    #[inline]
    pub(super) fn send_delayed_acks(&self) {
        if let Some(network) = self.network.get() {
            match network.deferred.only() {
                Some(list) if list.has_acks() => self.send_listed_acks(list),
                Some(_) => {}
                None => self.send_all_listed_acks(network),
            }
        }
    }

    #[cold]
    fn send_all_listed_acks(&self, network: &Network) {
        let lists = network.deferred.all().filter(|list| list.has_acks());
        lists.for_each(|list| self.send_listed_acks(list));
    }

    /// [`Engine::send_delayed_acks`] in a poll that finds no completion: of queue pairs with the
    /// affinity of the polled completion queue.
    #[inline]
    pub(super) fn send_delayed_acks_in_poll(&self, polls: Polls<'_>) {
        if let Some(network) = self.network.get() {
            let (list, _) = network.deferred.of(polls.affinity());
            if list.has_acks() {
                self.send_listed_acks(list);
            }
        }
    }

    #[cold]
    fn send_listed_acks(&self, list: &List) {
        thread::without_cancellation(|| {
            list.take_acks(|qp| {
                let effects = qp.send_delayed_ack(regions().table());
                self.apply(&qp, effects);
            });
        });
    }

    /// Sends the deferred sends for which the flush timer has expired.
    pub(super) fn send_late(&self) {
        let lists = self.network.get().map(|network| network.deferred.all());
        for list in lists.into_iter().flatten() {
            if list.timer().has_expired() {
                list.take_expired(|qp| {
                    if let Some(effects) = qp.send_deferred(true, regions().table()) {
                        self.counters.flush_timeouts.add(1);
                        self.apply(&qp, effects);
                    }
                });
            }
        }
    }

    /// Wakes the progress thread if a connection waits for a quantum although there is room. For
    /// threads that are not about to drive the network.
    #[inline]
    pub(crate) fn wake_if_grantable(&self) {
        if self.limiters.can_grant() {
            self.waker.wake();
        }
    }

    /// Lets connections that wait for a quantum send while there is room. True when there were any.
    /// The caller must hold no lock.
    pub(super) fn grant_quanta(&self) -> bool {
        self.limiters.grant(|qp| {
            let effects = qp.take_quantum(regions().table());
            self.apply(&qp, effects);
        })
    }

    /// Lets each queue pair that has more to send spend one budget. True when there were any. The
    /// caller must hold no lock.
    pub(super) fn run_ready(&self) -> bool {
        let ready = self.take_ready();
        for qp in &ready {
            let effects = qp.transmit_ready(regions().table());
            self.apply(qp, effects);
        }
        !ready.is_empty()
    }

    /// Lets queue pairs send whose sockets have room. The caller must hold no lock.
    pub(super) fn serve_writable(&self) {
        let Some(network) = self.network.get() else {
            return;
        };
        for (qp, socket) in network.writable.take() {
            // A queue pair before this one may have filled the socket again.
            match socket.is_full() {
                true => network.writable.add(&qp, &socket),
                false => {
                    let effects = qp.on_writable(regions().table());
                    self.apply(&qp, effects);
                }
            }
        }
    }
}
