//! Limits of a run beyond its seed, by which a failure is shrunk.

/// A kind of link fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub enum Fault {
    /// Datagrams are lost one by one.
    Loss,
    /// All datagrams are lost for up to two milliseconds.
    Burst,
    /// All datagrams are lost for up to 200 ms.
    Partition,
    /// Datagrams are duplicated.
    Duplicate,
    /// Datagrams arrive later than those behind them.
    Reorder,
    /// Datagrams are damaged.
    Corrupt,
    /// Links have a limited rate.
    Bandwidth,
    /// Datagrams are dropped when the queue is full.
    Queue,
    /// Datagrams are marked (ECN) when the queue is long.
    Mark,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 9] = [
        Self::Loss,
        Self::Burst,
        Self::Partition,
        Self::Duplicate,
        Self::Reorder,
        Self::Corrupt,
        Self::Bandwidth,
        Self::Queue,
        Self::Mark,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Burst => "burst",
            Self::Partition => "partition",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Corrupt => "corrupt",
            Self::Bandwidth => "bandwidth",
            Self::Queue => "queue",
            Self::Mark => "mark",
        }
    }
}

/// Limits of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The maximum number of work requests per endpoint, or of attempts to connect.
    pub ops: usize,
    /// The maximum length of a message, in bytes.
    pub longest: usize,
    /// Faults that are disabled.
    pub without: Vec<Fault>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            ops: usize::MAX,
            longest: usize::MAX,
            without: Vec::new(),
        }
    }
}

impl Limits {
    /// Whether a fault is permitted.
    pub fn allow(&self, fault: Fault) -> bool {
        !self.without.contains(&fault)
    }

    /// Returns the limits to try next when shrinking, the greatest reductions first.
    pub(crate) fn smaller(&self) -> impl Iterator<Item = Limits> {
        let ops = self.ops.min(512);
        let longest = self.longest.min(8 << 20);
        let fewer = [ops / 4, ops / 2, ops * 3 / 4, ops.saturating_sub(1)]
            .into_iter()
            .filter(move |&fewer| fewer < ops)
            .map(|ops| Limits {
                ops,
                ..self.clone()
            });
        let shorter = [longest / 16, longest / 2]
            .into_iter()
            .filter(move |&shorter| shorter >= 64)
            .map(|longest| Limits {
                longest,
                ..self.clone()
            });
        let milder = Fault::ALL
            .into_iter()
            .filter(|&fault| self.allow(fault))
            .map(|fault| {
                let mut milder = self.clone();
                milder.without.push(fault);
                milder
            });
        fewer.chain(milder).chain(shorter)
    }

    /// Returns the options of `cargo xtask sim` for these limits.
    pub fn options(&self) -> String {
        let mut options = String::new();
        if self.ops != usize::MAX {
            options += &format!(" --ops {}", self.ops);
        }
        if self.longest != usize::MAX {
            options += &format!(" --longest {}", self.longest);
        }
        if !self.without.is_empty() {
            let names: Vec<_> = self.without.iter().map(|fault| fault.name()).collect();
            options += &format!(" --without {}", names.join(","));
        }
        options
    }
}
