//! The calls of programs: their threads do the work of the network.

use super::engine::{Engine, Network};
use crate::scheduling::affinity::Affinity;
use crate::scheduling::limits::{BUSY_RECEIVER_SPINS, MAX_DRIVES_FOR_OTHERS, POLL_SLEEP};
use crate::scheduling::polling::{Awaited, Call, Driven, Pause};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use urxe_net::thread;

impl Engine {
    /// Returns what `take` finds, at once or after receiving packets: a poll of the program, of a
    /// completion queue with this affinity. The thread may be cancelled in `take`, and in the parts
    /// of a poll that find no work.
    pub(crate) fn poll_for<T>(
        &self,
        affinity: Affinity,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let polls = self.polling.of(affinity);
        let _call = polls.call();
        polls.polled();
        self.send_deferred_in_poll(polls);
        let taken = take().or_else(|| {
            if polls.drains() {
                self.send_delayed_acks_in_poll(polls);
                return None;
            }
            match self.poll(affinity) {
                Driven::Busy => self.await_receiver(affinity, &mut take),
                Driven::Worked | Driven::Idle => take(),
            }
        });
        if taken.is_some() {
            polls.returned();
            if self.polling.polls_memory() {
                self.await_write(affinity);
            }
        }
        taken
    }

    /// Begins a post of the program, to a queue pair with this affinity.
    pub(crate) fn call_to_post(&self, affinity: Affinity) -> Call<'_> {
        let handoff = self.waker.handoff();
        (self.polling.of(affinity)).call_to_post(|| handoff.leaves_packets_to_polls())
    }

    /// Waits for the thread that receives: it may hold packets for this poll's queue. Returns what
    /// `take` finds.
    #[cold]
    fn await_receiver<T>(
        &self,
        affinity: Affinity,
        take: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let network = self.network.get()?;
        let ports = network.ports.list();
        if ports.iter().any(|port| port.contended(affinity)) {
            // The progress thread opens more receive sockets.
            self.waker.wake();
        }
        let is_busy = || (ports.iter()).any(|port| port.socket_of(affinity).1.is_busy());
        for _ in 0..BUSY_RECEIVER_SPINS {
            std::hint::spin_loop();
            if let Some(taken) = take() {
                return Some(taken);
            }
            if !is_busy() {
                self.poll(affinity);
                return take();
            }
        }
        rustix::thread::sched_yield();
        take()
    }

    /// Receives and runs timers in a poll that found no completion.
    ///
    /// The thread may be cancelled meanwhile. [`Engine::drive_in_poll`] disables that when it finds
    /// work; the system calls before are not cancellation points.
    fn poll(&self, affinity: Affinity) -> Driven {
        let polls = self.polling.of(affinity);
        self.send_delayed_acks_in_poll(polls);
        polls.empty_poll(
            |now| self.drive_in_poll(affinity, now),
            |pause| self.pause(pause),
        )
    }

    /// Gives the processor to other threads. Not a cancellation point.
    #[inline]
    fn pause(&self, pause: Pause) {
        match pause {
            Pause::Yield => rustix::thread::sched_yield(),
            Pause::Sleep => self.sleep_in_poll(),
        }
    }

    /// Sleeps until a packet arrives, for [`POLL_SLEEP`] at most.
    #[cold]
    fn sleep_in_poll(&self) {
        match self.network.get() {
            Some(network) if !self.loss.is_lost() => {
                let sockets = network.ports.packets();
                let timeout = Timespec::try_from(POLL_SLEEP).expect("shorter than a second");
                // The call fails after a signal, or if the program has closed a descriptor, which
                // the next drive reports.
                let _ = poll(&mut [PollFd::new(&sockets, PollFlags::IN)], Some(&timeout));
            }
            _ => rustix::thread::sched_yield(),
        }
    }

    /// Receives before a completion is returned to an application that polls memory.
    fn await_write(&self, affinity: Affinity) {
        let Some(mut awaited) = self.polling.of(affinity).await_write() else {
            return;
        };
        thread::without_cancellation(|| {
            loop {
                match awaited.next() {
                    Awaited::Poll => awaited.polled(self.poll(affinity) == Driven::Worked),
                    Awaited::Arrived => return self.counters.writes_awaited.add(1),
                    Awaited::Missed => {
                        self.waker.wake();
                        // The woken thread, or that of the peer, may need this processor.
                        rustix::thread::sched_yield();
                        return;
                    }
                }
            }
        });
    }

    /// Begins a wait of the calling thread. `None` while there is no network part to receive from.
    #[inline]
    pub(crate) fn wait(&self) -> Option<Waiter<'_>> {
        let network = self.network.get()?;
        let receives = self.waker.handoff().enter(urxe_net::now);
        Some(Waiter {
            engine: self,
            network,
            receives,
            drives_for_others: 0,
        })
    }
}

/// A thread in a blocking call. While this exists, the progress thread may leave the sockets to it.
///
/// Dropping it ends that, in whichever way the wait ends: an event, an error, a panic, or the
/// thread's cancellation.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    engine: &'a Engine,
    network: &'a Network,
    /// Whether the thread is the receiver: it watches the sockets. Otherwise it sleeps until its
    /// event.
    receives: bool,
    /// The number of times that the thread did the work of the network, and its event did not
    /// arrive.
    drives_for_others: u32,
}

impl Waiter<'_> {
    /// Returns whether the thread watches the sockets while it sleeps.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        self.receives
    }

    /// Records that the thread did the work of the network, or another thread had done it, and its
    /// event did not arrive. A receiver whose events are rare does not remain the receiver.
    pub(crate) fn drove_for_others(&mut self) {
        self.drives_for_others += 1;
        let waker = &self.engine.waker;
        let is_enough = self.drives_for_others >= MAX_DRIVES_FOR_OTHERS;
        if self.receives && is_enough && waker.handoff().resign() {
            self.receives = false;
            waker.wake();
        }
    }

    /// Returns whether the thread calls [`Waiter::drive_before_sleep`], and sleeps at once
    /// otherwise: then only packets bring work, they are unlikely to have arrived, and they end the
    /// sleep if they have.
    #[inline]
    pub(crate) fn drives_before_sleep(&self) -> bool {
        let Engine {
            waker,
            receive_before_sleep,
            ..
        } = self.engine;
        // While the progress thread leaves packets to polls, it leaves the timers to them as well.
        (self.receives && receive_before_sleep.receives())
            || self.engine.has_pending()
            || waker.handoff().leaves_packets_to_polls()
    }

    /// Does the work of the network once before the thread sleeps. True when there was any.
    pub(crate) fn drive_before_sleep(&self) -> bool {
        let worked = self.drive();
        self.engine.receive_before_sleep.received(worked);
        worked
    }

    /// Does the work of the network once. True when there was any.
    #[inline]
    pub(crate) fn drive(&self) -> bool {
        self.engine.drive_in_wait()
    }

    /// Sends the ACKs that this thread has delayed, before it sleeps: the messages were not for it.
    #[inline]
    pub(crate) fn send_delayed_acks(&self) {
        self.engine.send_delayed_acks();
    }

    /// Reports that [`Waiter::sockets`] is not a valid descriptor any more.
    pub(crate) fn lost_sockets(&self) {
        self.engine.loss.report();
    }

    /// Returns a descriptor that is readable when a packet has arrived.
    pub(crate) fn sockets(&self) -> BorrowedFd<'_> {
        // Not one socket: nothing wakes the thread when another one is opened.
        self.network.watch.sockets()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Engine { waker, polling, .. } = self.engine;
        if !self.receives {
            return waker.handoff().leave_asleep();
        }
        let polls_memory = polling.polls_memory();
        if waker.handoff().leave(polls_memory, urxe_net::now) {
            waker.wake();
            if polls_memory {
                // The woken thread may need this processor.
                rustix::thread::sched_yield();
            }
        }
    }
}
