//! The stream of events.
#![forbid(unsafe_code)]

use super::{Event, Events};
use crate::error::{Error, Result};
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};

/// See [`Events::next`]. The stream does not end.
impl Stream for Events {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context)
            .map(|event| Some(event.map_err(Error::from)))
    }
}
