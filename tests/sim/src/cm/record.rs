//! What a program remembers of one identifier, and what it may be told of it.

use urxe_proto::cm::{Awaited, CommId, Event};

/// Which side of a connection, or of a resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Client,
    Server,
    Asking,
    Asked,
}

/// What has been told of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Nothing, at the client; the request, at the server.
    Begun,
    /// The client: the reply.
    Reply,
    /// The connection is established, or the peer ends it before that is known.
    Used,
    /// It is over, and waits.
    Over,
    /// The last.
    End,
}

/// One identifier.
#[derive(Debug)]
pub struct Record {
    pub role: Role,
    pub told: Told,
    /// The program wants no events of it any more.
    pub abandoned: bool,
    /// The peer's identifier, as far as it said.
    pub peer: Option<CommId>,
    /// The program said that it is ready.
    pub ready: bool,
    /// The program rejected it.
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

    /// Takes note of an event.
    ///
    /// # Panics
    /// When it is not one that may come now.
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
            // What the program agreed to, or rejected late, is over without another event.
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
