//! A connection: one end of a stream, and the calls that send to it, receive from it and wait for it.
//!
//! One lock is over the end and is held while its writes are posted, so that they go out in its order. It
//! comes before all locks of the driver.

use super::super::data::{Sink, Source};
use super::super::device::{self, Opened};
use super::super::error::Error;
use super::super::lock;
use super::super::settings::Settings;
use super::super::wait::Waiters;
use super::super::watch::Watchers;
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

/// What can be waited for and said of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Something can be read, or there is nothing more to come.
    pub readable: bool,
    /// Something can be read.
    pub has_data: bool,
    /// Something can be sent.
    pub writable: bool,
    /// The connection has ended.
    pub hung_up: bool,
    /// It broke.
    pub failed: bool,
}

/// A connection, made or being made.
#[derive(Debug)]
pub(super) struct Link {
    end: Mutex<End>,
    waiters: Waiters,
    /// One call sends at a time, and one receives.
    sending: Mutex<()>,
    receiving: Mutex<()>,
    pub(super) iomaps: Iomaps,
    _device: Arc<Opened>,
}

impl Link {
    /// Makes all that it needs; receives are posted.
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

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        lock(&self.end).sizes()
    }

    /// Its queue pair.
    pub fn qpn(&self) -> Qpn {
        lock(&self.end).qpn()
    }

    /// What the peer must know of this end.
    pub fn introduction(&self) -> ConnData {
        lock(&self.end).introduction()
    }

    /// Connects it to the peer, which `id` knows.
    ///
    /// # Errors
    /// When the queue pair cannot be made ready.
    pub fn connect(&self, id: &Id, peer: ConnData) -> Result<(), Error> {
        lock(&self.end).connect(id, peer)
    }

    /// The peer can be told things from now on.
    pub fn begin(&self) {
        self.waiters.process(&mut *lock(&self.end));
    }

    /// What is left of the connection.
    pub fn phase(&self) -> Phase {
        let end = lock(&self.end);
        end.stream.as_ref().map_or(Phase::Connected, Stream::phase)
    }

    /// The peer has ended the connection: what it sent before is here.
    pub fn peer_left(&self) {
        let mut end = lock(&self.end);
        self.waiters.process(&mut *end);
        if let Some(stream) = &mut end.stream {
            stream.disconnect();
        }
        end.flush();
        drop(end);
        self.waiters.wake();
    }

    /// Waits until `test` says so of the stream.
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

    /// Waits until it can be sent to, as `test` says.
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

    /// Whether something can be done without looking for completions.
    fn at_once(&self, test: impl Fn(&Stream) -> bool) -> Option<MutexGuard<'_, End>> {
        let end = lock(&self.end);
        end.stream.as_ref().is_some_and(test).then_some(end)
    }

    /// What can be done now.
    pub fn ready(&self) -> Ready {
        let mut end = lock(&self.end);
        self.waiters.process(&mut *end);
        end.stream
            .as_ref()
            .map_or(Ready::default(), |stream| Ready {
                readable: stream.has_data() || !stream.is_readable(),
                has_data: stream.has_data(),
                writable: stream.can_send(),
                hung_up: stream.phase() == Phase::Disconnected,
                failed: stream.phase() == Phase::Failed,
            })
    }

    /// From now on [`Link::fd`] becomes readable when something changes.
    pub fn arm(&self) {
        use super::super::wait::Waited;
        lock(&self.end).arm();
    }

    /// Readable when there is something to look at.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waiters.fd()
    }

    /// The descriptor was readable.
    pub fn clear(&self) {
        self.waiters.clear(&self.end);
    }

    /// Sends.
    ///
    /// # Errors
    /// `ECONNRESET` when nobody receives any more; `EAGAIN`.
    pub fn send(&self, source: &mut dyn Source, nonblocking: bool) -> Result<u64, Error> {
        let _turn = lock(&self.sending);
        self.tell_iomaps(nonblocking)?;
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

    /// Tells the peer of memory that is mapped for it.
    fn tell_iomaps(&self, nonblocking: bool) -> Result<(), Error> {
        self.iomaps.tell(|index, entry| {
            let mut end = self.wait_writable(nonblocking, Stream::can_send_directly)?;
            end.tell_iomap(index, entry);
            Ok(())
        })
    }

    /// Writes directly to memory that the peer has mapped, as far as it is mapped.
    ///
    /// # Errors
    /// As for [`Link::send`].
    pub fn write_mapped(
        &self,
        source: &mut dyn Source,
        mut offset: u64,
        nonblocking: bool,
    ) -> Result<u64, Error> {
        let _turn = lock(&self.sending);
        self.tell_iomaps(nonblocking)?;
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

    /// Receives what is there; waits for something, or with `all` for as much as there is room for. Does not
    /// take it away with `peek`.
    ///
    /// # Errors
    /// `ECONNRESET` when the connection broke; `EAGAIN`.
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

    /// False when there is nothing more to come.
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

    /// Shuts one way or both down, and waits until what was sent has arrived.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn shut_down(&self, how: Shutdown) -> Result<(), Error> {
        let mut end = lock(&self.end);
        let told = end.stream.as_mut().and_then(|stream| stream.shut_down(how));
        drop(end);
        // A thread that sends finds out that it cannot any more.
        self.waiters.wake();
        if let Some(control) = told {
            let mut end = self.wait(false, |stream| {
                stream.has_control_slot() || stream.phase() != Phase::Connected
            })?;
            end.tell(|stream| stream.send_control(control));
        }
        drop(self.wait(false, Stream::is_drained)?);
        self.waiters.wake();
        Ok(())
    }

    /// Finds out whether the peer is there.
    pub fn keep_alive(&self) {
        let mut end = lock(&self.end);
        self.waiters.process(&mut *end);
        end.tell(|stream| stream.send_control(Control::KeepAlive));
    }

    /// How many entries the peer has for memory that is mapped here.
    pub fn peer_iomap_entries(&self) -> u16 {
        let end = lock(&self.end);
        let stream = end.stream.as_ref();
        stream.map_or(0, Stream::peer_iomap_entries)
    }
}
