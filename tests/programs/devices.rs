//! The output of `ibv_devices` and `ibv_devinfo -v`.

use std::time::Duration;

use crate::common::devices::DeviceInfo;
use crate::common::namespace::VethPair;
use crate::common::require::{DEVINFO, IP, Need, require};
use crate::common::run::run;
use crate::common::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the names and node GUIDs that `ibv_devices` lists.
fn listed(runner: &Runner) -> Vec<(String, String)> {
    let finished = run("ibv_devices", runner.verbs("ibv_devices"), LIMIT).success();
    // Skips two lines of headings.
    let lines = finished.stdout.lines().skip(2);
    lines
        .map(|line| {
            let (name, guid) = line
                .trim()
                .split_once(char::is_whitespace)
                .expect("two columns");
            (name.to_owned(), guid.trim().to_owned())
        })
        .collect()
}

#[test]
fn ibv_devices_lists_the_loopback_interface_last() {
    if !require(&[DEVINFO]) {
        return;
    }
    let devices = listed(&Runner::here());
    assert_eq!(
        devices.last().map(|(name, _)| name.as_str()),
        Some("urxe_lo"),
        "{devices:?}"
    );
    assert!(
        devices.iter().all(|(name, _)| name.starts_with("urxe_")),
        "{devices:?}"
    );
}

#[test]
fn node_guids_are_stable_and_differ_between_devices() {
    if !require(&[DEVINFO]) {
        return;
    }
    let devices = listed(&Runner::here());
    assert_eq!(devices, listed(&Runner::here()));
    for (name, guid) in &devices {
        assert_eq!(
            devices.iter().filter(|(_, other)| other == guid).count(),
            1,
            "{name} {guid}"
        );
        assert!(guid.chars().any(|digit| digit != '0'), "{name} {guid}");
    }
}

#[test]
fn ibv_devinfo_shows_an_active_ethernet_port_with_an_ipv4_gid_first() {
    if !require(&[DEVINFO]) {
        return;
    }
    let info = DeviceInfo::query(&Runner::here(), "urxe_lo");
    assert_eq!(
        info.value("transport"),
        Some("InfiniBand (0)"),
        "{}",
        info.0
    );
    assert_eq!(info.value("state"), Some("PORT_ACTIVE (4)"), "{}", info.0);
    assert_eq!(info.value("link_layer"), Some("Ethernet"), "{}", info.0);
    assert_eq!(info.value("active_mtu"), Some("4096 (5)"), "{}", info.0);
    let first = info.gids().first().copied();
    assert_eq!(
        first,
        Some((0, "::ffff:127.0.0.1".parse().expect("an address"))),
        "{}",
        info.0
    );
}

#[test]
fn ibv_devinfo_without_a_device_lists_all_of_them() {
    if !require(&[DEVINFO]) {
        return;
    }
    let runner = Runner::here();
    let mut command = runner.verbs("ibv_devinfo");
    command.arg("-v");
    let finished = run("ibv_devinfo -v", command, LIMIT).success();
    for (name, _) in listed(&runner) {
        assert!(
            finished.stdout.contains(&format!("hca_id:\t{name}")),
            "{name} in {finished}"
        );
    }
}

#[test]
fn active_mtu_is_the_largest_path_mtu_that_fits_the_interface() {
    if !require(&[DEVINFO, IP, Need::NetworkNamespaces]) {
        return;
    }
    for (interface_mtu, active_mtu) in [(1500, "1024 (3)"), (9000, "4096 (5)")] {
        let cable = VethPair::new(&Runner::here(), interface_mtu);
        let info = DeviceInfo::query(cable.a.runner(), "urxe_va");
        assert_eq!(info.value("active_mtu"), Some(active_mtu), "{}", info.0);
    }
}

#[test]
fn gids_are_all_the_addresses_of_the_interface() {
    if !require(&[DEVINFO, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let info = DeviceInfo::query(cable.a.runner(), "urxe_va");
    assert_eq!(info.gid_index(&format!("::ffff:{}", VethPair::A)), 0);
    let gids = info.gids();
    assert!(
        gids.iter().any(|(_, gid)| gid.to_string() == VethPair::A6),
        "{gids:?}"
    );
    assert!(
        gids.iter().any(|(_, gid)| gid.is_unicast_link_local()),
        "{gids:?}"
    );
    assert_eq!(gids.len(), 3, "{gids:?}");
}
