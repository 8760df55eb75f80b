//! The types of the catalogue.

use serde::{Deserialize, Serialize};

/// A program, or a family of programs from one source.
pub(super) struct Program {
    /// The name on the command line.
    pub(super) name: &'static str,
    /// The title on the page.
    pub(super) title: &'static str,
    /// The Debian packages that it needs.
    pub(super) packages: &'static [&'static str],
    /// A shell script that downloads and builds what is not in packages, in the program's
    /// directory. It runs each time, so it returns at once if all is there.
    pub(super) prepare: &'static str,
    /// A shell script that prints the version.
    pub(super) version: &'static str,
    pub(super) runs: &'static [Run],
    /// What a user must know.
    pub(super) needs: &'static str,
}

/// A run of a program. Commands are lines for `sh`, in the program's directory, in which `{server}`
/// is the address of the server, and `urxe` the command under test.
pub(super) struct Run {
    pub(super) name: &'static str,
    pub(super) places: &'static [Place],
    /// The process that is started first.
    pub(super) server: Option<Server>,
    pub(super) client: &'static str,
    /// A part of the client's output if it succeeds.
    pub(super) expected: &'static str,
    /// The time limit in seconds.
    pub(super) limit: u32,
    /// For a run that fails because of the program: the reason, and where it is reported.
    pub(super) known: Option<&'static str>,
}

/// A server.
pub(super) struct Server {
    pub(super) command: &'static str,
    pub(super) ready: Ready,
    /// Whether it runs until it is terminated. Others exit with status 0 after their client.
    pub(super) stays: bool,
}

/// The condition for starting the client.
#[derive(Clone, Copy)]
pub(super) enum Ready {
    /// A program on the server's host listens at this TCP port.
    Tcp(u16),
    /// A program on the server's host listens at this port of the connection manager.
    ConnectionManager(u16),
    /// The server has printed this text.
    Output(&'static str),
    /// This number of seconds has passed.
    Seconds(u64),
}

/// Where the processes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// Both on one host.
    OneHost,
    /// On two hosts.
    TwoHosts,
    /// The command runs outside all hosts and launches programs on them, by
    /// `tests/ecosystem/agent.sh`.
    Cluster,
}

impl Place {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::OneHost => "one host",
            Self::TwoHosts => "two hosts",
            Self::Cluster => "cluster",
        }
    }
}

/// A program that is not run, with the reason.
pub(super) struct Omitted {
    pub(super) title: &'static str,
    pub(super) reason: &'static str,
}
