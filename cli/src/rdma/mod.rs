//! The command `rdma` of iproute2, as programs under `urxe run` find it.
//!
//! `urxe run` puts a link with this name to its own executable first in `PATH`. The command shows
//! urxe's devices in iproute2's formats, followed by the kernel's devices, which it gets from
//! iproute2's own `rdma`, the next one in `PATH`. That one also executes all other requests.

mod kernel;
mod output;
mod request;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use urxe_driver::device::{self, Device, PORT, PortState};
use urxe_driver::stat::{self, Counts, DeviceReport, RESOURCES};

use crate::devices::guid;
pub use kernel::NAME;
use kernel::{Kernel, Reply};
use output::Record;
use request::{Format, Object, Request, Subject};

/// The time to wait for the counters of processes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether this process was started as `rdma`, judged by its first argument.
pub fn is_called(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new);
    program.and_then(Path::file_name) == Some(OsStr::new(NAME))
}

/// Executes the command with these arguments, without the command's name.
pub fn rdma(arguments: &[OsString]) -> ExitCode {
    let kernel = Kernel::find();
    let Some(request) = request::parse(arguments) else {
        return kernel.execute(arguments);
    };
    let devices = match device::devices() {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("{NAME}: cannot list urxe's devices: {error}");
            return ExitCode::FAILURE;
        }
    };
    match &request.subject {
        Subject::All => {
            let records = devices.iter().map(|device| record(device, &request));
            let records: Vec<Record> = records.collect();
            beside_the_kernels(&records, request.format, &kernel.ask(arguments))
        }
        Subject::One { device, port } => {
            match devices.iter().find(|known| known.name() == device) {
                Some(device) => one(device, *port, &request),
                None => absent(device, &request, &kernel, arguments),
            }
        }
    }
}

/// Shows one of urxe's devices.
fn one(device: &Device, port: Option<u32>, request: &Request) -> ExitCode {
    if let Some(extra) = &request.extra {
        // iproute2 reports success here.
        eprintln!("Unknown parameter '{extra}'.");
        return show(&[], request.format);
    }
    match (request.object, port) {
        // Without a port there are no counters, but no error either.
        (Object::Statistic, Some(0)) => show(&[], request.format),
        (Object::Link, None | Some(0)) => wrong_device(device.name(), request),
        (_, Some(port)) if port > u32::from(PORT) => wrong_device(device.name(), request),
        _ => show(&[record(device, request)], request.format),
    }
}

/// Handles a device that is not urxe's: the kernel's, if it has one with this name.
fn absent(device: &str, request: &Request, kernel: &Kernel, arguments: &[OsString]) -> ExitCode {
    if request.object == Object::Resource {
        // Only iproute2 can tell the name of a device from the name of a kind of resource.
        return kernel.execute(arguments);
    }
    match kernel.ask(arguments) {
        Reply::None => wrong_device(device, request),
        reply => beside_the_kernels(&[], request.format, &reply),
    }
}

fn wrong_device(name: &str, request: &Request) -> ExitCode {
    match request.object {
        Object::Device => eprintln!("Wrong device name - {name}"),
        _ => eprintln!("Wrong device name"),
    }
    show(&[], request.format);
    ExitCode::FAILURE
}

fn show(records: &[Record], format: Format) -> ExitCode {
    print(&output::write(records, format, ""));
    ExitCode::SUCCESS
}

/// Shows urxe's devices and the reply of iproute2's command, whose exit status is kept.
fn beside_the_kernels(records: &[Record], format: Format, reply: &Reply) -> ExitCode {
    match reply {
        Reply::None => show(records, format),
        Reply::Finished { status, stdout } => {
            print(&output::write(records, format, stdout));
            ExitCode::from(*status)
        }
    }
}

fn print(text: &str) {
    // A failed write means that the reader closed the pipe, which is no error.
    let _ = io::stdout().write_all(text.as_bytes());
}

fn record(device: &Device, request: &Request) -> Record {
    match request.object {
        Object::Device => describe_device(device),
        Object::Link => describe_link(device, request.format.details),
        Object::Resource => describe_resources(device),
        Object::Statistic => describe_counters(device),
    }
}

/// Describes a device as `rdma dev` does. The index is that of the network interface.
fn describe_device(device: &Device) -> Record {
    let mut record = Record::default();
    record.number("ifindex", device.interface_index(), "{}: ");
    record.text("ifname", device.name(), "{}: ");
    record.text("node_type", "ca", "node_type {} ");
    record.text("protocol", "roce", "protocol {} ");
    record.text("fw", env!("CARGO_PKG_VERSION"), "fw {} ");
    let guid = guid(device.guid());
    record.text("node_guid", &guid, "node_guid {} ");
    record.text("sys_image_guid", &guid, "sys_image_guid {} ");
    record
}

/// Describes a port as `rdma link` does. The kernel shows no LID, subnet prefix and capabilities of
/// RoCE ports.
fn describe_link(device: &Device, details: bool) -> Record {
    let (state, physical_state) = match device.port_state() {
        PortState::Active => ("ACTIVE", "LINK_UP"),
        PortState::Down => ("DOWN", "DISABLED"),
    };
    let mut record = Record::default();
    record.number("ifindex", device.interface_index(), "");
    record.text("ifname", device.name(), "link {}/");
    record.number("port", PORT, "{} ");
    record.text("state", state, "state {} ");
    record.text("physical_state", physical_state, "physical_state {} ");
    record.text("netdev", device.interface(), "netdev {} ");
    let index = if details { "netdev_index {} " } else { "" };
    record.number("netdev_index", device.interface_index(), index);
    record
}

/// Describes a port's counters as `rdma statistic` does.
fn describe_counters(device: &Device) -> Record {
    let mut record = Record::default();
    record.text("ifname", device.name(), "link {}/");
    record.number("port", PORT, "{} ");
    for (name, count) in counters(device.name()) {
        record.counter(&name, count);
    }
    record
}

/// Describes the numbers of objects of a device as `rdma resource` does.
fn describe_resources(device: &Device) -> Record {
    let resources = running_processes(device.name()).resources;
    let mut record = Record::default();
    record.number("ifindex", device.interface_index(), "{}: ");
    record.text("ifname", device.name(), "{}: ");
    for name in RESOURCES {
        let number = resources.get(name).copied().unwrap_or_default();
        record.number(name, number, &format!("{name} {{}} "));
    }
    record
}

/// Returns the counters of a device: those in sysfs, which include processes that have ended, or
/// else those of the running processes.
fn counters(device: &str) -> Counts {
    let directory = format!("/sys/class/infiniband/{device}/ports/{PORT}/hw_counters");
    let Ok(files) = fs::read_dir(directory) else {
        let mut report = running_processes(device);
        report.hw.append(&mut report.diagnostic);
        return report.hw;
    };
    let read = |file: fs::DirEntry| {
        let count = fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
        Some((file.file_name().into_string().ok()?, count))
    };
    files.flatten().filter_map(read).collect()
}

/// Returns the sums over this user's processes that use the device.
fn running_processes(device: &str) -> DeviceReport {
    let mut sums = DeviceReport::zero();
    match stat::survey(RESPONSE_TIMEOUT) {
        Ok(survey) => {
            let reports = survey.processes.iter();
            let reports = reports.filter_map(|process| process.report.devices.get(device));
            reports.for_each(|report| sums.add(report));
        }
        Err(error) => eprintln!("{NAME}: cannot query the processes: {error}"),
    }
    sums
}
