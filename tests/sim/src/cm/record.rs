//! A program's record of one identifier, and the order of the events that it may receive.

use urxe_proto::cm::{Awaited, CommId, Event};

/// The side of a connection or of a resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Client,
    Server,
    Asking,
    Asked,
}

/// The last event received for an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Client: none. Server: the request.
    Begun,
    /// Client: the reply.
    Reply,
    /// The connection is established, or the peer ended it before that was known.
    Used,
    /// The connection has ended and is in TimeWait.
    Over,
    /// The last event has been received.
    End,
}

/// The record of one identifier.
#[derive(Debug)]
pub struct Record {
    pub role: Role,
    pub told: Told,
    /// The program has abandoned it, and must receive no more events.
    pub abandoned: bool,
    /// The peer's identifier, if known.
    pub peer: Option<CommId>,
    /// The program has sent RTU.
    pub ready: bool,
    /// The program has rejected it.
    pub rejected: bool,
}

impl Record {
    pub fn new(role: Role, peer: Option<CommId>) -> Self {
        Record {
            role,
            told: Told::Begun,
            abandoned: false,
            peer,
            ready: false,
            rejected: false,
        }
    }

    /// Records an event.
    ///
    /// # Panics
    /// When the event is not permitted in this state.
    pub fn note(&mut self, event: &Event) {
        assert!(!self.abandoned, "{event:?} of what is abandoned: {self:?}");
        let before = self.told;
        self.told = match (self.role, before, event) {
            (Role::Client, Told::Begun, Event::Delayed { .. }) => Told::Begun,
            (Role::Client, Told::Begun, Event::Reply { .. }) => Told::Reply,
            (Role::Server, Told::Begun, Event::Delayed { .. }) => Told::Begun,
            (Role::Server, Told::Begun, Event::Ready { .. } | Event::Established { .. }) => {
                Told::Used
            }
            (Role::Client, Told::Begun, Event::TimedOut { awaited, .. }) => {
                assert_eq!(*awaited, Awaited::Rep);
                Told::End
            }
            (Role::Server, Told::Begun, Event::TimedOut { awaited, .. }) => {
                assert_eq!(*awaited, Awaited::Rtu);
                Told::Over
            }
            (Role::Client, Told::Reply, Event::DisconnectRequest { .. })
            | (Role::Server, Told::Begun | Told::Used, Event::DisconnectRequest { .. }) => {
                Told::Used
            }
            (Role::Client, Told::Reply, Event::Disconnected { .. })
            | (Role::Server, Told::Used, Event::Disconnected { .. }) => Told::Over,
            (
                Role::Client | Role::Server,
                Told::Reply | Told::Used,
                Event::TimedOut { awaited, .. },
            ) => {
                assert_eq!(*awaited, Awaited::Drep);
                Told::Over
            }
            (
                Role::Client | Role::Server,
                Told::Begun | Told::Reply | Told::Used,
                Event::Rejected { last, .. },
            ) => {
                if *last {
                    Told::End
                } else {
                    Told::Over
                }
            }
            // A disconnection that the program agreed to, or a late rejection, ends without another
            // event.
            (Role::Client | Role::Server, Told::Over | Told::Used, Event::TimeWaitExit { .. }) => {
                Told::End
            }
            (Role::Server, Told::Begun, Event::TimeWaitExit { .. }) if self.rejected => Told::End,
            (Role::Asking, Told::Begun, Event::Resolved { .. } | Event::TimedOut { .. }) => {
                Told::End
            }
            _ => panic!("{event:?} cannot come now: {self:?}"),
        };
        assert_eq!(event.is_last(), self.told == Told::End, "{event:?}");
    }
}
