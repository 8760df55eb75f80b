//! The ports that processes may take, and the range for automatic assignment; the kernel's rules
//! for sockets.

use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::io;
use std::ops::RangeInclusive;

/// Checks whether this process may take a port. If not, returns the first port without privilege.
pub(super) fn missing_privilege(port: u16) -> io::Result<Option<u16>> {
    const USUAL: u16 = 1024;
    let first_free = read_numbers("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .and_then(|numbers| numbers.first().copied())
        .unwrap_or(USUAL);
    if port >= first_free {
        return Ok(None);
    }
    let own = capabilities(None).map_err(io::Error::from)?;
    let is_privileged = own.effective.contains(CapabilitySet::NET_BIND_SERVICE);
    Ok((!is_privileged).then_some(first_free))
}

/// Returns the range from which ports are assigned.
pub(super) fn local_port_range() -> RangeInclusive<u16> {
    const USUAL: RangeInclusive<u16> = 32768..=60999;
    match read_numbers("/proc/sys/net/ipv4/ip_local_port_range").as_deref() {
        Some(&[low, high]) if 0 < low && low <= high => low..=high,
        _ => USUAL,
    }
}

fn read_numbers(path: &str) -> Option<Vec<u16>> {
    let text = fs::read_to_string(path).ok()?;
    text.split_whitespace()
        .map(|number| number.parse().ok())
        .collect()
}
