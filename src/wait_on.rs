//! Waits for values that peers write to memory.
#![forbid(unsafe_code)]

use crate::context::Context;
use crate::cq::CqError;
use crate::mr::LocalWord;
use crate::wait;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use urxe_driver as driver;

impl Context {
    /// Polls a word that a peer writes until its value meets a condition, and returns that value.
    ///
    /// When the call returns, the data of the same WRITE at lower addresses is visible, and so is
    /// all data of earlier WRITEs of the connection.
    ///
    /// Between two reads of the word the call receives packets and, if there are none, yields the
    /// processor. A program that only reads the word depends on the progress thread, which competes
    /// for the same processor. The call never sleeps, so use it for values that arrive soon. For
    /// others, let the peer use
    /// [`SendRequest::write_with_imm`](crate::SendRequest::write_with_imm), which makes a
    /// completion.
    ///
    /// ```
    /// use urxe::{ConnectOptions, RemoteAccess, SendRequest};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
    /// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    /// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
    /// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
    /// let memory = pd.register(8, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(&7_u64.to_ne_bytes(), &memory.remote()))?;
    /// assert_eq!(context.wait_on(&memory.word(0)?, |value| value != 0)?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CqError`] if there is no memory for the completion queue by which it receives.
    pub fn wait_on(
        &self,
        word: &LocalWord,
        condition: impl FnMut(u64) -> bool,
    ) -> Result<u64, CqError> {
        let value = self.wait_on_until(word, condition, None)?;
        Ok(value.expect("without a deadline the wait ends with the condition"))
    }

    /// Polls a word like [`Context::wait_on`], for at most `timeout`; `None` if the condition is
    /// not met by then.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::Duration;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// let word = memory.word(0)?;
    /// let wait = |timeout| b.context().wait_on_timeout(&word, |value| value != 0, timeout);
    /// assert_eq!(wait(Duration::from_millis(1))?, None);
    /// a.post_send(SendRequest::write(&7_u64.to_ne_bytes(), &memory.remote()))?;
    /// assert_eq!(wait(Duration::from_secs(60))?, Some(7));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Context::wait_on`].
    pub fn wait_on_timeout(
        &self,
        word: &LocalWord,
        condition: impl FnMut(u64) -> bool,
        timeout: Duration,
    ) -> Result<Option<u64>, CqError> {
        self.wait_on_until(word, condition, wait::deadline(timeout))
    }

    fn wait_on_until(
        &self,
        word: &LocalWord,
        mut condition: impl FnMut(u64) -> bool,
        until: Option<Instant>,
    ) -> Result<Option<u64>, CqError> {
        // No queue pair completes here: polls receive packets and take no completions of others.
        let mut receiver = None;
        loop {
            let value = word.load(Ordering::Acquire);
            if condition(value) {
                return Ok(Some(value));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
            let cq = match receiver.take() {
                Some(cq) => cq,
                None => Unused(self.driver().create_cq(1, None)?),
            };
            cq.0.poll_each(1, |_, _| ());
            receiver = Some(cq);
        }
    }
}

/// A completion queue without queue pairs, which is destroyed when this is dropped.
struct Unused(Arc<driver::Cq>);

impl Drop for Unused {
    fn drop(&mut self) {
        self.0.retire();
    }
}
