//! A program's record of one identifier, and the order of the events that it may receive.

use urxe_proto::cm::{Awaited, CommId, Event};

/// The side of a connection or of a resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Client,
    Server,
    Requester,
    Resolver,
}

/// The last event received for an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Client: none. Server: the request.
    Started,
    /// Client: the reply.
    Reply,
    /// The connection is established, or the peer ended it before that was known.
    Established,
    /// The connection has ended and is in TimeWait.
    TimeWait,
    /// The last event has been received.
    End,
}

/// The record of one identifier.
#[derive(Debug)]
pub struct Record {
    pub role: Role,
    pub progress: Progress,
    /// Whether the program has abandoned it, and must receive no more events.
    pub abandoned: bool,
    /// The peer's identifier, if known.
    pub peer: Option<CommId>,
    /// Whether the program has sent the RTU.
    pub ready: bool,
    /// Whether the program has rejected it.
    pub rejected: bool,
}

impl Record {
    pub fn new(role: Role, peer: Option<CommId>) -> Self {
        Record {
            role,
            progress: Progress::Started,
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
    pub fn check_event(&mut self, event: &Event) {
        assert!(!self.abandoned, "{event:?} of what is abandoned: {self:?}");
        let before = self.progress;
        self.progress = match (self.role, before, event) {
            (Role::Client, Progress::Started, Event::Delayed { .. }) => Progress::Started,
            (Role::Client, Progress::Started, Event::Reply { .. }) => Progress::Reply,
            (Role::Server, Progress::Started, Event::Delayed { .. }) => Progress::Started,
            (Role::Server, Progress::Started, Event::Ready { .. } | Event::Established { .. }) => {
                Progress::Established
            }
            (Role::Client, Progress::Started, Event::TimedOut { awaited, .. }) => {
                assert_eq!(*awaited, Awaited::Rep);
                Progress::End
            }
            (Role::Server, Progress::Started, Event::TimedOut { awaited, .. }) => {
                assert_eq!(*awaited, Awaited::Rtu);
                Progress::TimeWait
            }
            (Role::Client, Progress::Reply, Event::DisconnectRequest { .. })
            | (
                Role::Server,
                Progress::Started | Progress::Established,
                Event::DisconnectRequest { .. },
            ) => Progress::Established,
            (Role::Client, Progress::Reply, Event::Disconnected { .. })
            | (Role::Server, Progress::Established, Event::Disconnected { .. }) => {
                Progress::TimeWait
            }
            (
                Role::Client | Role::Server,
                Progress::Reply | Progress::Established,
                Event::TimedOut { awaited, .. },
            ) => {
                assert_eq!(*awaited, Awaited::Drep);
                Progress::TimeWait
            }
            (
                Role::Client | Role::Server,
                Progress::Started | Progress::Reply | Progress::Established,
                Event::Rejected { last, .. },
            ) => {
                if *last {
                    Progress::End
                } else {
                    Progress::TimeWait
                }
            }
            // A disconnection that the program agreed to, or a late rejection, ends without another
            // event.
            (
                Role::Client | Role::Server,
                Progress::TimeWait | Progress::Established,
                Event::TimeWaitExit { .. },
            ) => Progress::End,
            (Role::Server, Progress::Started, Event::TimeWaitExit { .. }) if self.rejected => {
                Progress::End
            }
            (
                Role::Requester,
                Progress::Started,
                Event::Resolved { .. } | Event::TimedOut { .. },
            ) => Progress::End,
            _ => panic!("{event:?} cannot come now: {self:?}"),
        };
        assert_eq!(event.is_last(), self.progress == Progress::End, "{event:?}");
    }
}
