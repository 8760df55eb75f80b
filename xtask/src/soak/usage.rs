//! The resources of a process, as the kernel reports them.

use std::fmt;
use std::fs;

/// The allowed growth of memory in KiB, for caches of allocators.
const MEMORY_MAY_GROW: u64 = 4096;

/// The allowed number of additional send sockets: urxe opens up to this many per address.
const SENDERS: u64 = 16;

/// The resources of a process.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    /// Resident memory in KiB.
    memory: u64,
    threads: u64,
    descriptors: u64,
}

impl Usage {
    /// Returns the resources of a running process.
    pub(super) fn of(pid: u32) -> Option<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Usage {
            memory: number("VmRSS:")?,
            threads: number("Threads:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
        })
    }

    /// Returns whether the resources have not grown.
    pub(super) fn is_flat(self, before: Usage) -> bool {
        self.memory <= before.memory + MEMORY_MAY_GROW
            && self.threads <= before.threads
            && self.descriptors <= before.descriptors + SENDERS
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage {
            memory,
            threads,
            descriptors,
        } = self;
        write!(
            f,
            "{memory} KiB, {threads} threads, {descriptors} descriptors"
        )
    }
}

/// Returns the names of slots, processes and listeners in this network namespace.
pub(super) fn names() -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let last = |line: &str| line.split_whitespace().last().map(str::to_owned);
    let names = sockets.lines().filter_map(last);
    names.filter(|name| name.starts_with("@urxe/")).collect()
}
