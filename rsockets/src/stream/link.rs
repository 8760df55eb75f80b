//! A connection: one end of a stream, with the calls that send, receive and wait.
//!
//! One mutex protects the end. It is held while writes are posted, which keeps them in the order of
//! the state machine. It precedes all locks of the driver in the lock order.

use super::super::data::{Sink, Source};
use super::super::device::{self, Opened};
use super::super::error::Error;
use super::super::settings::Settings;
use super::super::sync::lock;
use super::super::wait::Waiters;
use super::super::watch::{Signals, Watchers};
use super::end::End;
use super::iomap::Iomaps;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use urxe_driver::cm::Id;
use urxe_driver::cm::resolve::Bound;
use urxe_proto::ids::Qpn;
use urxe_proto::rsocket::stream::{Phase, Shutdown, Sizes, Stream};
use urxe_proto::rsocket::wire::{ConnData, Control};

/// The readiness of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Whether there is data, or the peer sends no more.
    pub readable: bool,
    /// Whether there is data.
    pub has_data: bool,
    /// Whether the peer sends no more.
    pub has_ended: bool,
    /// Whether there is room to send.
    pub writable: bool,
    /// Whether the connection has ended.
    pub hung_up: bool,
    /// Whether the connection has failed.
    pub failed: bool,
    /// How often readiness was newly signalled until now.
    pub signals: Signals,
}

/// A connection, established or being established.
#[derive(Debug)]
pub(super) struct Link {
    end: Mutex<End>,
    waiters: Waiters,
    /// Serializes calls that send; `receiving` those that receive.
    sending: Mutex<()>,
    receiving: Mutex<()>,
    pub(super) iomaps: Iomaps,
    _device: Arc<Opened>,
}

impl Link {
    /// Creates the resources and posts the receives.
    pub fn new(
        bound: &Bound,
        settings: &Settings,
        id: &Id,
        watchers: &Arc<Watchers>,
    ) -> Result<Link, Error> {
        let device = device::open(&bound.device)?;
        let waiters = Waiters::new(watchers)?;
        let end = End::new(&device, settings, id, &waiters)?;
        Ok(Link {
            end: Mutex::new(end),
            waiters,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            iomaps: Iomaps::new(&device.pd),
            _device: device,
        })
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> Sizes {
        lock(&self.end).sizes()
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        lock(&self.end).qpn()
    }

    /// Returns the private data for the peer.
    pub fn introduction(&self) -> ConnData {
        lock(&self.end).introduction()
    }

    /// Connects the queue pair to the peer, whose address `id` has.
    ///
    /// # Errors
    /// Fails if the queue pair cannot be modified.
    pub fn connect(&self, id: &Id, peer: ConnData) -> Result<(), Error> {
        lock(&self.end).connect(id, peer)
    }

    /// Processes completions, and sends notices of buffer space to the peer.
    pub fn process(&self) {
        self.waiters.process(&mut *lock(&self.end));
    }

    /// Returns the phase of the connection.
    pub fn phase(&self) -> Phase {
        let end = lock(&self.end);
        end.stream.as_ref().map_or(Phase::Connected, Stream::phase)
    }

    /// Handles the peer's disconnection; data that it sent before has arrived.
    pub fn peer_disconnected(&self) {
        let mut end = lock(&self.end);
        self.waiters.process(&mut *end);
        if let Some(stream) = &mut end.stream {
            stream.disconnect();
        }
        end.flush();
        self.waiters.process(&mut *end);
    }

    /// Waits until `test` returns true.
    fn wait(
        &self,
        nonblocking: bool,
        test: impl Fn(&Stream) -> bool,
    ) -> Result<MutexGuard<'_, End>, Error> {
        self.waiters.wait(&self.end, nonblocking, |end| {
            let stream = end.stream.as_ref().ok_or(Errno::NOTCONN)?;
            Ok(test(stream))
        })
    }

    /// Waits until `test` returns true or the connection is not writable any more.
    fn wait_writable(
        &self,
        nonblocking: bool,
        test: impl Fn(&Stream) -> bool,
    ) -> Result<MutexGuard<'_, End>, Error> {
        let end = self.wait(nonblocking, |stream| test(stream) || !stream.is_writable())?;
        match end.stream.as_ref().is_some_and(Stream::is_writable) {
            true => Ok(end),
            false => Err(Errno::CONNRESET.into()),
        }
    }

    /// Returns the locked end if `test` holds without polling for completions.
    fn at_once(&self, test: impl Fn(&Stream) -> bool) -> Option<MutexGuard<'_, End>> {
        let end = lock(&self.end);
        end.stream.as_ref().is_some_and(test).then_some(end)
    }

    /// Returns the readiness.
    pub fn ready(&self) -> Ready {
        let mut end = lock(&self.end);
        self.waiters.process(&mut *end);
        end.stream
            .as_ref()
            .map_or(Ready::default(), |stream| Ready {
                readable: stream.has_data() || !stream.is_readable(),
                has_data: stream.has_data(),
                has_ended: !stream.is_readable(),
                writable: stream.can_send(),
                hung_up: stream.phase() == Phase::Disconnected,
                failed: stream.phase() == Phase::Failed,
                signals: self.waiters.signals(),
            })
    }

    /// Enables notifications through [`Link::fd`].
    pub fn arm(&self) {
        use super::super::wait::Waitable;
        lock(&self.end).arm();
    }

    /// Returns the descriptor that becomes readable on a change.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waiters.fd()
    }

    /// Clears the readiness of the descriptor.
    pub fn clear(&self) {
        self.waiters.clear(&self.end);
    }

    /// Sends data.
    ///
    /// # Errors
    /// `ECONNRESET` if the peer receives no more; `EAGAIN`.
    pub fn send(&self, source: &mut dyn Source, nonblocking: bool) -> Result<u64, Error> {
        let _turn = lock(&self.sending);
        self.announce_iomaps(nonblocking)?;
        let all = source.left();
        while source.left() > 0 {
            let sent = match self.at_once(Stream::can_send) {
                Some(end) => Ok(end),
                None => self.wait_writable(nonblocking, Stream::can_send),
            };
            match sent.and_then(|mut end| end.send(source)) {
                Ok(()) => {}
                Err(error) if source.left() == all => return Err(error),
                Err(_) => break,
            }
        }
        Ok(all - source.left())
    }

    /// Announces mapped memory to the peer.
    fn announce_iomaps(&self, nonblocking: bool) -> Result<(), Error> {
        self.iomaps.announce(|index, entry| {
            let mut end = self.wait_writable(nonblocking, Stream::can_send_directly)?;
            end.announce_iomap(index, entry);
            Ok(())
        })
    }

    /// Writes to the peer's mapped memory, up to its end.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    pub fn write_mapped(
        &self,
        source: &mut dyn Source,
        mut offset: u64,
        nonblocking: bool,
    ) -> Result<u64, Error> {
        let _turn = lock(&self.sending);
        self.announce_iomaps(nonblocking)?;
        let all = source.left();
        while source.left() > 0 {
            let Some(entry) = lock(&self.end).mapped_by_peer(offset) else {
                break;
            };
            let within = offset - entry.offset;
            let most = u64::from(entry.area.len) - within;
            let addr = entry.area.addr.wrapping_add(within);
            let ready = self.wait_writable(nonblocking, Stream::can_send_directly);
            match ready.and_then(|mut end| end.send_directly(addr, entry.area.key, most, source)) {
                Ok(sent) => offset += u64::from(sent),
                Err(error) if source.left() == all => return Err(error),
                Err(_) => break,
            }
        }
        Ok(all - source.left())
    }

    /// Receives data. Waits for some, or with `all` until the memory is full. With `peek` the data
    /// remains.
    ///
    /// # Errors
    /// `ECONNRESET` if the connection failed; `EAGAIN`.
    pub fn receive(
        &self,
        sink: &mut dyn Sink,
        nonblocking: bool,
        all: bool,
        peek: bool,
    ) -> Result<u64, Error> {
        let _turn = lock(&self.receiving);
        let room = sink.room();
        while sink.room() > 0 {
            match self.receive_some(sink, nonblocking, peek) {
                Ok(true) if all && !peek => {}
                Err(error) if sink.room() == room => return Err(error),
                Ok(_) | Err(_) => break,
            }
        }
        Ok(room - sink.room())
    }

    /// Receives some data. Returns false if the peer sends no more.
    fn receive_some(
        &self,
        sink: &mut dyn Sink,
        nonblocking: bool,
        peek: bool,
    ) -> Result<bool, Error> {
        let mut end = match self.at_once(Stream::has_data) {
            Some(end) => end,
            None => self.wait(nonblocking, |stream| {
                stream.has_data() || !stream.is_readable()
            })?,
        };
        match &end.stream {
            Some(stream) if stream.has_data() => {}
            Some(stream) if stream.phase() == Phase::Failed => {
                return Err(Errno::CONNRESET.into());
            }
            _ => return Ok(false),
        }
        end.receive(sink, peek)?;
        Ok(true)
    }

    /// Shuts down one or both directions and waits until sent data has arrived.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn shut_down(&self, how: Shutdown) -> Result<(), Error> {
        let mut end = lock(&self.end);
        let notice = end.stream.as_mut().and_then(|stream| stream.shut_down(how));
        // Wakes sending threads, whose calls now fail.
        self.waiters.process(&mut *end);
        drop(end);
        if let Some(control) = notice {
            let mut end = self.wait(false, |stream| {
                stream.has_control_slot() || stream.phase() != Phase::Connected
            })?;
            end.notify(|stream| stream.send_control(control));
        }
        drop(self.wait(false, Stream::is_drained)?);
        self.waiters.wake(Signals::default());
        Ok(())
    }

    /// Shuts down one or both directions without waiting, see [`super::StreamSocket::try_shut_down`].
    ///
    /// # Errors
    /// `EAGAIN` until the message could be sent and sent data has arrived.
    pub fn try_shut_down(&self, how: Shutdown, announced: &mut bool) -> Result<(), Error> {
        if !*announced {
            let mut end = self.wait(true, |stream| {
                stream.has_control_slot() || stream.phase() != Phase::Connected
            })?;
            let notice = end.stream.as_mut().and_then(|stream| stream.shut_down(how));
            if let Some(control) = notice {
                end.notify(|stream| stream.send_control(control));
            }
            self.waiters.process(&mut *end);
            drop(end);
            *announced = true;
        }
        drop(self.wait(true, Stream::is_drained)?);
        Ok(())
    }

    /// Sends a keep-alive probe.
    pub fn keep_alive(&self) {
        let mut end = lock(&self.end);
        self.waiters.process(&mut *end);
        end.notify(|stream| stream.send_control(Control::KeepAlive));
    }

    /// Returns the number of the peer's entries for mapped memory.
    pub fn peer_iomap_entries(&self) -> u16 {
        let end = lock(&self.end);
        let stream = end.stream.as_ref();
        stream.map_or(0, Stream::peer_iomap_entries)
    }
}

#[cfg(test)]
mod tests {
    use super::super::StreamSocket;
    use super::*;

    #[test]
    fn failure_of_an_established_stream_is_one_pending_error() {
        let listener = StreamSocket::new(false).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(1).unwrap();
        let client = StreamSocket::new(false).unwrap();
        client.connect(listener.local_address()).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(client.take_error(), 0);
        let link = client.link().unwrap();
        lock(&link.end).stream.as_mut().unwrap().fail();
        assert_eq!(client.take_error(), libc::ECONNRESET);
        assert_eq!(client.take_error(), 0);
        for socket in [client, server, listener] {
            socket.close();
        }
    }
}
