//! The output of Debian's `ibv_devinfo -v` for a device.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::run::run;
use super::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);

/// The output of `ibv_devinfo -v` for one device.
pub struct DeviceInfo(pub String);

impl DeviceInfo {
    /// Runs `ibv_devinfo` with `runner`.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn query(runner: &Runner, device: &str) -> Self {
        let mut command = runner.verbs("ibv_devinfo");
        command.args(["-v", "-d", device]);
        Self(run("ibv_devinfo", command, LIMIT).success().stdout)
    }

    /// Returns the value of a line such as `state: PORT_ACTIVE (4)`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == name).then(|| value.trim())
        })
    }

    /// Returns the port's GIDs with their indices.
    pub fn gids(&self) -> Vec<(u32, Ipv6Addr)> {
        self.0
            .lines()
            .filter_map(|line| {
                let (index, gid) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
                let gid = gid.split(',').next()?;
                Some((index.trim().parse().ok()?, gid.trim().parse().ok()?))
            })
            .collect()
    }

    /// Returns the index of a GID.
    ///
    /// # Panics
    /// If no GID has this address.
    #[track_caller]
    pub fn gid_index(&self, address: &str) -> u32 {
        let wanted: Ipv6Addr = address.parse().expect("an IPv6 address");
        let found = self.gids().into_iter().find(|(_, gid)| *gid == wanted);
        found
            .unwrap_or_else(|| panic!("no GID {address} in\n{}", self.0))
            .0
    }
}
