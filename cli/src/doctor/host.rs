//! The checks of this host.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::thread;

use urxe_driver::device::{self, Device};
use urxe_net::{Options, Shared};

use super::check::Check;
use crate::devices::{NO_DEVICE, explain_missing};
use crate::library;

/// The default of `net.core.rmem_max`, for which the limits of urxe's senders are made.
const DEFAULT_RMEM_MAX: u64 = 212_992;

/// Clock sources that a process reads without a system call.
const FAST_CLOCKS: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "riscv_clocksource",
];

/// Runs the checks one after the other.
pub(super) fn checks() -> impl Iterator<Item = Check> {
    let checks: [fn() -> Vec<Check>; 9] = [
        || vec![objects()],
        devices,
        || vec![unix_sockets()],
        ports,
        || vec![offloads()],
        || vec![receive_buffer()],
        || vec![sysfs_view()],
        || vec![clock()],
        || vec![processors()],
    ];
    checks.into_iter().flat_map(|check| check())
}

fn objects() -> Check {
    match library::find(library::LIBRARY) {
        Ok(path) => Check::ok("library", path.display().to_string()),
        Err(error) => Check::failure(
            "library",
            error.to_string(),
            "install the complete package, or use `cargo install`",
        ),
    }
}

fn devices() -> Vec<Check> {
    const NAME: &str = "device";
    let found = match device::devices() {
        Ok(found) => found,
        Err(error) => {
            return vec![Check::failure(
                NAME,
                format!("the interfaces cannot be listed: {error}"),
                "permit netlink sockets",
            )];
        }
    };
    if found.is_empty() {
        let why = device::explain_empty_selection();
        let missing = explain_missing().unwrap_or_default();
        return vec![Check::failure(
            NAME,
            why.unwrap_or_else(|| NO_DEVICE.to_owned()),
            missing.trim(),
        )];
    }
    found.iter().map(|device| device_check(device)).collect()
}

fn device_check(device: &Device) -> Check {
    const NAME: &str = "device";
    let (name, mtu) = (device.name(), device.active_mtu());
    let found = format!(
        "{name}: path MTU {}, {} addresses",
        mtu.bytes(),
        device.gids().len()
    );
    match mtu.bytes() {
        1024.. => Check::ok(NAME, found),
        _ => Check::warning(
            NAME,
            found,
            format!(
                "the MTU of {} is {}; an MTU of 1500 permits a path MTU of 1024",
                device.interface(),
                device.interface_mtu()
            ),
        ),
    }
}

/// Processes share port 4791 through Unix sockets with abstract names.
fn unix_sockets() -> Check {
    const NAME: &str = "unix sockets";
    let bound = {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("urxe-doctor-{}", std::process::id());
        std::os::unix::net::SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixDatagram::bind_addr(&address))
    };
    match bound {
        Ok(_) => Check::ok(NAME, "permitted"),
        Err(error) => Check::failure(
            NAME,
            format!("a socket cannot be bound: {error}"),
            "permit AF_UNIX sockets in the sandbox (seccomp, RestrictAddressFamilies)",
        ),
    }
}

/// Opens port 4791 at each address of each device, as a program does.
fn ports() -> Vec<Check> {
    const NAME: &str = "port 4791";
    let shared = match Shared::new(Options::default()) {
        Ok(shared) => shared,
        Err(error) => {
            return vec![Check::failure(NAME, error.to_string(), "")];
        }
    };
    let mut opened = 0;
    let mut failures = Vec::new();
    for device in device::devices().unwrap_or_default() {
        for (index, ip) in device.gids() {
            let Some(address) = u8::try_from(index)
                .ok()
                .and_then(|index| device.source(index))
            else {
                continue;
            };
            match shared.open(address) {
                Ok(_) => opened += 1,
                Err(error) => failures.push(Check::failure(
                    NAME,
                    format!("{} at {ip}: {error}", device.name()),
                    "free the port there, or choose other devices by URXE_DEVICES",
                )),
            }
        }
    }
    if opened > 0 {
        failures.push(Check::ok(
            NAME,
            format!("free or shared at {opened} addresses"),
        ));
    }
    failures
}

fn offloads() -> Check {
    const NAME: &str = "offloads";
    let socket = match UdpSocket::bind(("0.0.0.0", 0)) {
        Ok(socket) => socket,
        Err(error) => {
            return Check::failure(
                NAME,
                format!("a UDP socket cannot be opened: {error}"),
                "permit AF_INET sockets in the sandbox (seccomp, RestrictAddressFamilies)",
            );
        }
    };
    let missing: Vec<&str> = [
        ("UDP_SEGMENT (Linux 4.18)", libc::UDP_SEGMENT, 0),
        ("UDP_GRO (Linux 5.0)", libc::UDP_GRO, 1),
    ]
    .into_iter()
    .filter(|(_, option, value)| set_option(&socket, libc::IPPROTO_UDP, *option, *value).is_err())
    .map(|(name, ..)| name)
    .collect();
    match missing.is_empty() {
        true => Check::ok(NAME, "GSO and GRO"),
        false => Check::warning(
            NAME,
            format!("the kernel refuses {}", missing.join(" and ")),
            "each packet costs a system call's work; use a newer kernel, or permit the option",
        ),
    }
}

/// Sets an integer option of a socket.
pub(super) fn set_option(
    socket: &UdpSocket,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<c_int>()).expect("four bytes");
    // SAFETY: the descriptor is open while `socket` is borrowed, and the value is an initialised
    // `c_int` of the given length that lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            len,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn receive_buffer() -> Check {
    const NAME: &str = "rmem_max";
    let text = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(bytes) if bytes < DEFAULT_RMEM_MAX => Check::warning(
            NAME,
            format!("{bytes} bytes"),
            format!(
                "bursts of many peers overflow the receive buffer: sysctl -w \
                 net.core.rmem_max={DEFAULT_RMEM_MAX}"
            ),
        ),
        Ok(bytes) => Check::ok(NAME, format!("{bytes} bytes")),
        // Network namespaces other than the first have no such file.
        Err(_) => Check::ok(NAME, "not visible in this network namespace"),
    }
}

fn sysfs_view() -> Check {
    const NAME: &str = "view of /sys";
    let trial = Command::new("/proc/self/exe")
        .arg(urxe_sysfs::TRIAL)
        .stdin(Stdio::null())
        .output();
    let why = match trial {
        Ok(output) if output.status.success() => return Check::ok(NAME, "by mounts"),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    match library::find(library::PRELOAD) {
        Ok(_) => Check::ok(NAME, format!("by a preloaded object, because {why}")),
        Err(error) => Check::warning(
            NAME,
            format!("{why}; {error}"),
            "programs that read /sys/class/infiniband find no devices; libibverbs does",
        ),
    }
}

fn clock() -> Check {
    const NAME: &str = "clock";
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let Ok(source) = fs::read_to_string(SOURCE) else {
        return Check::ok(NAME, "not visible");
    };
    let source = source.trim();
    match FAST_CLOCKS.contains(&source) {
        true => Check::ok(NAME, source),
        false => Check::warning(
            NAME,
            source,
            "each reading may be a system call, which adds to the latency; boot with \
             clocksource=tsc if the processor has a constant one",
        ),
    }
}

fn processors() -> Check {
    const NAME: &str = "processors";
    match thread::available_parallelism() {
        Ok(count) if count.get() == 1 => Check::warning(
            NAME,
            "1",
            "two programs that poll take turns, so latencies are times of the scheduler",
        ),
        Ok(count) => Check::ok(NAME, count.to_string()),
        Err(error) => Check::warning(
            NAME,
            error.to_string(),
            "the number of processors cannot be read: check the permissions of /proc and the cgroup",
        ),
    }
}
