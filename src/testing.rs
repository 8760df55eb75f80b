//! Connected queue pairs for tests of programs, over a network with injected faults.
//!
//! [`pair`] connects two queue pairs of this process over the loopback device. [`Faults`] does the
//! same over a network that loses, duplicates, reorders, corrupts and delays packets. No privilege
//! and no preparation is needed. Each queue pair has its own faults, so tests can run concurrently.
//!
//! ```
//! use urxe::testing::Faults;
//! use urxe::{ReceiveRequest, SendRequest};
//!
//! # fn main() -> urxe::Result<()> {
//! let (a, b) = Faults::seeded(7).loss(0.2).duplication(0.2).reordering(0.2).pair()?;
//! for n in 0..50_u32 {
//!     b.post_receive(ReceiveRequest::into(b.pd().buffer(4)?))?;
//!     a.post_send(SendRequest::send(&n.to_be_bytes()))?;
//!     a.cq().wait()?.result?;
//!     assert_eq!(b.cq().wait()?.data()?, n.to_be_bytes());
//! }
//! // The connection is reliable: the faults only delay the messages.
//! assert!(a.counters().retransmitted > 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Repeating a run
//! The seed alone determines the faults of the n-th packet that a queue pair sends. But packets are
//! sent over sockets in real time, and the order of retransmissions, acknowledgements and other
//! packets depends on it. So two runs with one seed are similar, not identical.
//!
//! # Short timeouts
//! A test waits in real time for the timeouts that it causes. With the defaults, a request to a
//! peer that does not respond fails after 7 retries, and one to a peer that has no receive is
//! retried without limit. [`pair_with`] and [`Faults::pair_with`] take [`ConnectOptions`] with
//! shorter timers and fewer retries.
#![forbid(unsafe_code)]

use crate::{
    CompletionQueue, ConnectOptions, Context, PreparedQueuePair, ProtectionDomain, QueuePair,
    Result, device,
};
use std::ops::Deref;
use std::time::Duration;
use urxe_driver::qp::FaultSpec;

/// The name of the loopback device.
const LOOPBACK: &str = "urxe_lo";

/// Returns two connected queue pairs of this process, over a network without faults.
///
/// ```
/// use urxe::testing;
/// use urxe::{RemoteAccess, SendRequest};
///
/// # fn main() -> urxe::Result<()> {
/// let (a, b) = testing::pair()?;
/// let memory = b.pd().register(5, RemoteAccess::WRITE)?;
/// a.post_send(SendRequest::write(b"hello", &memory.remote()))?;
/// a.cq().wait()?.result?;
/// assert_eq!(memory.to_vec(..)?, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// That of the first call that fails; for instance, UDP port 4791 is in use.
pub fn pair() -> Result<(Peer, Peer)> {
    pair_with(&ConnectOptions::default())
}

/// Returns two connected queue pairs of this process like [`pair`], with the program's options.
///
/// ```
/// use urxe::prelude::*;
/// use urxe::testing;
///
/// # fn main() -> urxe::Result<()> {
/// // The peer has no receive. The request is retried once, and then fails.
/// let options = ConnectOptions::default().rnr_retry(1).min_rnr_timer(1);
/// let (a, _b) = testing::pair_with(&options)?;
/// a.post_send(SendRequest::send(b"unexpected"))?;
/// let error = a.cq().wait()?.result.unwrap_err();
/// assert_eq!(error.status, WcStatus::RnrRetryExcErr);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`pair`], and those of [`PreparedQueuePair::connect`].
pub fn pair_with(options: &ConnectOptions) -> Result<(Peer, Peer)> {
    connected(|a, b| connect(a, b, options))
}

/// A connected queue pair with a context, a protection domain and a completion queue of its own.
///
/// It dereferences to the queue pair.
///
/// ```
/// use urxe::{QueuePair, ReceiveRequest, SendRequest, testing};
///
/// # fn main() -> urxe::Result<()> {
/// // Code under test that takes a queue pair:
/// fn greet(qp: &QueuePair) -> urxe::Result<()> {
///     Ok(qp.post_send(SendRequest::send(b"hello"))?)
/// }
///
/// let (a, b) = testing::pair()?;
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// greet(&a)?;
/// assert_eq!(b.cq().wait()?.data()?, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Peer {
    qp: QueuePair,
    cq: CompletionQueue,
}

impl Peer {
    /// Returns the opened device.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// assert!(a.context().device().is_loopback());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn context(&self) -> &Context {
        self.pd().context()
    }

    /// Returns the protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &ProtectionDomain {
        self.qp.pd()
    }

    /// Returns the completion queue of sends and receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Returns the queue pair, for code under test that takes one.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// struct Session(QueuePair);
    /// let session = Session(a.into_queue_pair());
    /// b.post_receive(ReceiveRequest::empty())?;
    /// session.0.post_send(SendRequest::send(b""))?;
    /// b.cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn into_queue_pair(self) -> QueuePair {
        self.qp
    }
}

impl Deref for Peer {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        &self.qp
    }
}

/// The faults of the network between two queue pairs, in both directions.
///
/// A probability is a number from 0 to 1, and applies to each packet independently.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::testing::Faults;
///
/// let (a, b) = Faults::seeded(7).loss(0.1).reordering(0.1).pair()?;
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// assert_eq!(b.cq().wait()?.data()?, b"hello");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use = "faults do nothing until queue pairs are connected with them"]
pub struct Faults(FaultSpec);

impl Faults {
    /// Returns no faults yet. `seed` determines the random decisions.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// assert_eq!(Faults::seeded(7), Faults::seeded(7));
    /// let (a, b) = Faults::seeded(7).loss(0.1).pair()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn seeded(seed: u64) -> Faults {
        Faults(FaultSpec::new(seed))
    }

    /// Sets the probability that a packet is lost.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// let options = ConnectOptions::default().timeout(1).retry_cnt(1);
    /// let (a, _b) = Faults::seeded(1).loss(1.0).pair_with(&options)?;
    /// a.post_send(SendRequest::send(b"lost"))?;
    /// assert_eq!(a.cq().wait()?.result.unwrap_err().status, WcStatus::RetryExcErr);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `probability` is not from 0 to 1.
    pub fn loss(mut self, probability: f64) -> Faults {
        self.0.drop = checked(probability);
        self
    }

    /// Sets the probability that a packet arrives twice.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// let (a, b) = Faults::seeded(1).duplication(1.0).pair()?;
    /// let counter = b.pd().register(8, RemoteAccess::ATOMIC)?;
    /// let result = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// a.post_send(SendRequest::fetch_add(&result, counter.remote().word(0)?, 1))?;
    /// a.cq().wait()?.result?;
    /// // Each request arrives twice, and is executed once.
    /// assert_eq!(counter.to_vec(..)?, 1_u64.to_ne_bytes());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`Faults::loss`].
    pub fn duplication(mut self, probability: f64) -> Faults {
        self.0.duplicate = checked(probability);
        self
    }

    /// Sets the probability that a packet arrives after one to four later ones, or after 5 ms.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// let (a, b) = Faults::seeded(1).reordering(0.5).pair()?;
    /// for id in 0..8_u8 {
    ///     b.post_receive(ReceiveRequest::into(b.pd().buffer(1)?))?;
    ///     a.post_send(SendRequest::send(&[id]).unsignaled())?;
    /// }
    /// // The connection restores the order.
    /// for id in 0..8 {
    ///     assert_eq!(b.cq().wait()?.data()?, [id]);
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`Faults::loss`].
    pub fn reordering(mut self, probability: f64) -> Faults {
        self.0.reorder = checked(probability);
        self
    }

    /// Sets the probability that a bit of a packet is flipped. The receiver discards such a packet,
    /// since its checksum is wrong.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// let (a, b) = Faults::seeded(1).corruption(0.5).pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`Faults::loss`].
    pub fn corruption(mut self, probability: f64) -> Faults {
        self.0.corrupt = checked(probability);
        self
    }

    /// Delays each packet by `delay`, plus or minus a random time of up to `jitter`. A round trip
    /// takes two such delays longer.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::{Duration, Instant};
    /// use urxe::testing::Faults;
    ///
    /// let delay = Duration::from_millis(10);
    /// let (a, b) = Faults::seeded(1).delay(delay, Duration::ZERO).pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// let start = Instant::now();
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()))?;
    /// a.cq().wait()?.result?;
    /// assert!(start.elapsed() >= 2 * delay);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `jitter` is longer than `delay`.
    pub fn delay(mut self, delay: Duration, jitter: Duration) -> Faults {
        assert!(jitter <= delay, "jitter {jitter:?} exceeds {delay:?}");
        (self.0.delay, self.0.jitter) = (delay, jitter);
        self
    }

    /// Limits each direction to a rate in bits per second. At most 1000 packets are queued, and
    /// further ones are lost.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// // 100 Mbit/s in each direction.
    /// let (a, b) = Faults::seeded(1).rate(100_000_000).pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(4096)?))?;
    /// a.post_send(SendRequest::send(a.pd().buffer(4096)?))?;
    /// assert_eq!(b.cq().wait()?.result?.byte_len, 4096);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the rate is 0.
    pub fn rate(mut self, bits_per_second: u64) -> Faults {
        assert!(bits_per_second > 0, "a link of rate 0 carries nothing");
        self.0.rate = Some(bits_per_second);
        self
    }

    /// Returns two connected queue pairs of this process, with these faults between them.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// let (a, b) = Faults::seeded(7).loss(0.05).pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of the first call that fails; for instance, UDP port 4791 is in use.
    pub fn pair(self) -> Result<(Peer, Peer)> {
        self.pair_with(&ConnectOptions::default())
    }

    /// Returns two connected queue pairs like [`Faults::pair`], with the program's options.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// // No packet arrives. A short timeout and one retry end the request soon.
    /// let options = ConnectOptions::default().timeout(1).retry_cnt(1);
    /// let (a, _b) = Faults::seeded(1).loss(1.0).pair_with(&options)?;
    /// a.post_send(SendRequest::send(b"lost"))?;
    /// assert_eq!(a.cq().wait()?.result.unwrap_err().status, WcStatus::RetryExcErr);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`pair_with`].
    pub fn pair_with(self, options: &ConnectOptions) -> Result<(Peer, Peer)> {
        connected(|a, b| self.connect(a, b, options))
    }

    /// Connects two queue pairs of the program, with these faults between them.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::testing::Faults;
    ///
    /// // Queue pairs with a common completion queue, which `pair` does not make:
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
    /// let (a, b) = Faults::seeded(1).loss(0.1).connect(a, b, &ConnectOptions::default())?;
    /// b.post_receive(ReceiveRequest::into(pd.buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`PreparedQueuePair::connect`].
    pub fn connect(
        self,
        a: PreparedQueuePair,
        b: PreparedQueuePair,
        options: &ConnectOptions,
    ) -> Result<(QueuePair, QueuePair)> {
        a.inject_faults(self.0);
        let mut back = self.0;
        // The directions must not have equal decisions.
        back.seed ^= 1 << 63;
        b.inject_faults(back);
        connect(a, b, options)
    }
}

fn checked(probability: f64) -> f64 {
    assert!(
        (0.0..=1.0).contains(&probability),
        "{probability} is not a probability from 0 to 1"
    );
    probability
}

fn connect(
    a: PreparedQueuePair,
    b: PreparedQueuePair,
    options: &ConnectOptions,
) -> Result<(QueuePair, QueuePair)> {
    let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    Ok((
        a.connect(&endpoint_b, options)?,
        b.connect(&endpoint_a, options)?,
    ))
}

/// Makes two queue pairs with objects of their own, and connects them by `connect`.
fn connected(
    connect: impl FnOnce(PreparedQueuePair, PreparedQueuePair) -> Result<(QueuePair, QueuePair)>,
) -> Result<(Peer, Peer)> {
    let prepare = || -> Result<(PreparedQueuePair, CompletionQueue)> {
        let context = device(LOOPBACK)?.open()?;
        let cq = context.completion_queue()?;
        Ok((context.pd().queue_pair(&cq, &cq).build()?, cq))
    };
    let ((a, cq_a), (b, cq_b)) = (prepare()?, prepare()?);
    let (a, b) = connect(a, b)?;
    Ok((Peer { qp: a, cq: cq_a }, Peer { qp: b, cq: cq_b }))
}
