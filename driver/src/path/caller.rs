//! The calls of programs: their threads do the work of the network.

use super::engine::{Engine, Network};
use crate::scheduling::limits::POLL_SLEEP;
use crate::scheduling::polling::{Awaited, Call, Pause};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use urxe_net::thread;

impl Engine {
    /// Returns what `take` finds, at once or after receiving packets: a poll of the program. The
    /// thread may be cancelled in `take`, and in the parts of a poll that find no work.
    pub(crate) fn poll_for<T>(&self, mut take: impl FnMut() -> Option<T>) -> Option<T> {
        let _call = self.polling.call();
        self.polling.polled();
        self.send_deferred();
        let taken = take().or_else(|| {
            if self.polling.drains() {
                self.send_delayed_acks();
                return None;
            }
            self.poll();
            take()
        });
        if taken.is_some() {
            self.polling.returned();
            if self.polling.polls_memory() {
                self.await_write();
            }
        }
        taken
    }

    /// Begins a post of the program.
    pub(crate) fn call_to_post(&self) -> Call<'_> {
        let handoff = self.waker.handoff();
        self.polling
            .call_to_post(|| handoff.leaves_packets_to_polls())
    }

    /// Receives and runs timers in a poll that found no completion. True when there was any work.
    ///
    /// The thread may be cancelled meanwhile. [`Engine::drive_in_poll`] disables that when it finds
    /// work; the system calls before are not cancellation points.
    fn poll(&self) -> bool {
        self.send_delayed_acks();
        self.polling
            .empty_poll(|now| self.drive_in_poll(now), |pause| self.pause(pause))
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
                let sockets = network.watch.sockets();
                let timeout = Timespec::try_from(POLL_SLEEP).expect("shorter than a second");
                // The call fails after a signal, or if the program has closed a descriptor, which
                // the next drive reports.
                let _ = poll(&mut [PollFd::new(&sockets, PollFlags::IN)], Some(&timeout));
            }
            _ => rustix::thread::sched_yield(),
        }
    }

    /// Receives before a completion is returned to an application that polls memory.
    fn await_write(&self) {
        let Some(mut awaited) = self.polling.await_write() else {
            return;
        };
        thread::without_cancellation(|| {
            loop {
                match awaited.next() {
                    Awaited::Poll => awaited.polled(self.poll()),
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
        self.waker.handoff().enter();
        Some(Waiter {
            engine: self,
            network,
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
}

impl Waiter<'_> {
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
        receive_before_sleep.receives()
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
        self.network.watch.sockets()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Engine { waker, polling, .. } = self.engine;
        let polls_memory = polling.polls_memory();
        if waker.handoff().leave(polls_memory) {
            waker.wake();
            if polls_memory {
                // The woken thread may need this processor.
                rustix::thread::sched_yield();
            }
        }
    }
}
