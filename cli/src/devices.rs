//! `urxe devices`: lists the devices, and the reasons why interfaces have none.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::{Value, json};
use urxe_driver::device::{self, Device, PortState};
use urxe_proto::ids::Gid;

/// List the RDMA devices of this host, and why other interfaces have none
#[derive(clap::Args)]
#[command(after_help = "Exit status: 0; 1 if there is no device.")]
pub struct Arguments {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Lists the devices. Fails if there is none, for the benefit of scripts.
pub fn devices(arguments: &Arguments) -> ExitCode {
    let described = match arguments.json {
        true => describe_as_json(),
        false => describe(),
    };
    match described {
        Ok(description) => {
            // A failed write means that the reader closed the pipe, which is no error.
            let _ = io::stdout().write_all(description.devices.as_bytes());
            eprint!("{}", description.without);
            match description.any {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("urxe devices: cannot list the devices: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The text that the subcommand prints.
struct Description {
    /// Whether there is a device.
    any: bool,
    /// For standard output: the devices.
    devices: String,
    /// For standard error: the interfaces without a device, one line each.
    without: String,
}

fn describe_as_json() -> io::Result<Description> {
    let found = device::devices()?;
    let without = device::interfaces_without_device()?.into_iter();
    let without = without.map(
        |(interface, why)| json!({"interface": interface.to_string(), "reason": why.to_string()}),
    );
    let document = json!({
        "devices": found.iter().map(|device| device_json(device)).collect::<Vec<_>>(),
        "without_device": without.collect::<Vec<_>>(),
    });
    Ok(Description {
        any: !found.is_empty(),
        devices: format!("{document}\n"),
        without: String::new(),
    })
}

fn device_json(device: &Device) -> Value {
    let gids = device.gids().into_iter().map(
        |(index, ip)| json!({"index": index, "gid": Gid::from_ip(ip).to_string(), "address": ip}),
    );
    json!({
        "name": device.name(),
        "interface": device.interface(),
        "state": state(device),
        "interface_mtu": device.interface_mtu(),
        "path_mtu": device.active_mtu().bytes(),
        "node_guid": guid(device.guid()),
        "gids": gids.collect::<Vec<_>>(),
    })
}

fn describe() -> io::Result<Description> {
    let found = device::devices()?;
    let without = explain_missing()?;
    if found.is_empty() {
        return Ok(Description {
            any: false,
            devices: String::new(),
            without: format!("urxe: {}\n", explain_none()),
        });
    }
    let mut rows = vec![HEADINGS.map(String::from).to_vec()];
    let mut gids = vec![Vec::new()];
    for device in &found {
        rows.push(row(device));
        gids.push(gid_lines(device));
    }
    let mut devices = String::new();
    for (line, gids) in align(&rows).into_iter().zip(gids) {
        devices += &line;
        devices.push('\n');
        for gid in gids {
            devices += &gid;
            devices.push('\n');
        }
    }
    let without = match without.is_empty() {
        true => String::new(),
        false => format!("\nInterfaces without a device:\n{without}"),
    };
    Ok(Description {
        any: true,
        devices,
        without,
    })
}

/// Explains why there is no device: a line with the remedy, and one for each interface.
pub fn explain_none() -> String {
    let why = device::explain_empty_selection().unwrap_or_else(|| NO_DEVICE.to_owned());
    // Without the list, the first line still has the remedy.
    let missing = explain_missing().unwrap_or_default();
    format!("{why}\n{missing}").trim_end().to_owned()
}

/// The message if no interface has a device.
pub const NO_DEVICE: &str = "no device: no network interface is usable. A device needs an \
                             interface that is up and has an address; `ip link set dev lo up` \
                             gives the loopback interface both.";

/// Returns the interfaces without a device, each with the cause and the remedy, one line each.
///
/// # Errors
/// Fails if the interfaces cannot be listed.
pub fn explain_missing() -> io::Result<String> {
    let mut text = String::new();
    for (interface, why) in device::interfaces_without_device()? {
        writeln!(text, "  {interface}: {why}").expect("a string takes every write");
    }
    Ok(text)
}

const HEADINGS: [&str; 6] = [
    "DEVICE",
    "INTERFACE",
    "STATE",
    "MTU",
    "PATH MTU",
    "NODE GUID",
];

fn state(device: &Device) -> &'static str {
    match device.port_state() {
        PortState::Active => "active",
        PortState::Down => "down",
    }
}

fn row(device: &Device) -> Vec<String> {
    vec![
        device.name().to_owned(),
        device.interface().to_owned(),
        state(device).to_owned(),
        device.interface_mtu().to_string(),
        device.active_mtu().bytes().to_string(),
        guid(device.guid()),
    ]
}

/// Formats a GUID as `ibv_devinfo` does: four groups of four digits.
pub fn guid(bytes: [u8; 8]) -> String {
    let groups = bytes
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

/// Formats the GID table. Every GID has the type RoCE v2.
fn gid_lines(device: &Device) -> Vec<String> {
    let line = |(index, ip)| format!("    GID {index:<3} {}  (RoCE v2)", Gid::from_ip(ip));
    device.gids().into_iter().map(line).collect()
}

/// Aligns the cells of all rows in columns.
pub fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell: &String| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let padded = cells.map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_is_written_in_four_groups() {
        assert_eq!(
            guid([0, 0x11, 0x22, 0xff, 0xfe, 3, 4, 5]),
            "0011:22ff:fe03:0405"
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["a".into(), "b".into()],
            vec!["long".into(), "c".into()],
        ];
        assert_eq!(align(&rows), ["a     b", "long  c"]);
    }
}
