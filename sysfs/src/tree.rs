//! The sysfs files of a device, as a kernel driver would create them.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use urxe_driver::device::{Device, PORT, PortState};
use urxe_driver::stat::{Counts, DeviceReport};
use urxe_proto::ids::{Gid, PKey};

/// The directory of the devices in `/sys/class`.
pub const DEVICES: &str = "infiniband";
/// The directory of the uverbs devices in `/sys/class`.
pub const VERBS: &str = "infiniband_verbs";
/// The directory of the parent device, within that of the device. The entry `device` is a link to
/// it. hwloc ignores a device without such a link, and one whose link contains `/virtual/`.
const PARENT: &str = ".parent";
/// The version of the kernel's uverbs ABI, which scripts read.
const VERBS_ABI: u32 = 6;
/// The ABI version of a driver without an ABI of its own.
const DRIVER_ABI: u32 = 1;

/// Creates `to` with links to the entries of `from`, a class of the kernel that may not exist.
///
/// # Errors
/// Fails if `to` exists or cannot be created.
pub fn copy_links(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    if !from.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        match fs::read_link(entry.path()) {
            Ok(target) => symlink(target, place)?,
            // A regular file, such as `abi_version`.
            Err(_) => fs::write(place, fs::read(entry.path())?)?,
        }
    }
    Ok(())
}

/// Writes the files of a device below `class`, which stands for `/sys/class`.
///
/// # Errors
/// Fails if `class` does not exist or has no space.
pub fn write(class: &Path, device: &Device) -> io::Result<()> {
    let name = device.name();
    let root = class.join(DEVICES).join(name);
    for directory in [DEVICES, VERBS] {
        // A device of the kernel may have a name that was given to this one.
        match fs::remove_file(class.join(directory).join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    write_node(&root, device)?;
    write_parent(&root.join(PARENT), class, device)?;
    symlink(PARENT, root.join("device"))?;
    write_port(&root.join("ports").join(PORT.to_string()), device)?;

    let verbs = class.join(VERBS);
    file(&verbs.join("abi_version"), VERBS_ABI)?;
    let verbs = verbs.join(name);
    file(&verbs.join("ibdev"), name)?;
    file(&verbs.join("abi_version"), DRIVER_ABI)?;
    symlink(
        format!("../../{DEVICES}/{name}/device"),
        verbs.join("device"),
    )
}

fn write_node(root: &Path, device: &Device) -> io::Result<()> {
    let guid = groups(&device.guid());
    file(&root.join("node_type"), "1: CA")?;
    file(&root.join("node_guid"), &guid)?;
    file(&root.join("sys_image_guid"), &guid)?;
    file(&root.join("node_desc"), device.name())?;
    file(&root.join("fw_ver"), env!("CARGO_PKG_VERSION"))?;
    file(&root.join("hw_rev"), "0x0")?;
    file(&root.join("hca_type"), "urxe")?;
    file(&root.join("board_id"), "urxe")?;
    // The kernel's rxe reports its interface in this file.
    file(&root.join("parent"), device.interface())
}

/// Writes the files of the parent device: those of the interface's hardware, such as its NUMA node.
fn write_parent(root: &Path, class: &Path, device: &Device) -> io::Result<()> {
    let interface = device.interface();
    let net = root.join("net");
    fs::create_dir_all(&net)?;
    symlink(format!("../../../../net/{interface}"), net.join(interface))?;
    let hardware = class.join("net").join(interface).join("device");
    let node = fs::read_to_string(hardware.join("numa_node")).unwrap_or_default();
    // -1: no NUMA node.
    file(
        &root.join("numa_node"),
        node.trim().parse::<i32>().unwrap_or(-1),
    )?;
    for name in ["local_cpus", "local_cpulist"] {
        if let Ok(text) = fs::read_to_string(hardware.join(name)) {
            file(&root.join(name), text.trim())?;
        }
    }
    // The unused PCI vendor ID.
    file(&root.join("vendor"), "0xffff")?;
    file(&root.join("device"), "0x0000")?;
    file(&root.join("subsystem_vendor"), "0xffff")?;
    file(&root.join("subsystem_device"), "0x0000")
}

fn write_port(root: &Path, device: &Device) -> io::Result<()> {
    let (state, physical) = match device.port_state() {
        PortState::Active => ("4: ACTIVE", "5: LinkUp"),
        PortState::Down => ("1: DOWN", "3: Disabled"),
    };
    file(&root.join("state"), state)?;
    file(&root.join("phys_state"), physical)?;
    file(&root.join("rate"), device.speed().sysfs_rate())?;
    file(&root.join("link_layer"), "Ethernet")?;
    file(&root.join("lid"), "0x0")?;
    file(&root.join("lid_mask_count"), 0)?;
    file(&root.join("sm_lid"), "0x0")?;
    file(&root.join("sm_sl"), 0)?;
    /// Connection management supported, and IP-based GIDs (14.2.5.6).
    const CAPABILITIES: u32 = 1 << 16 | 1 << 26;
    file(&root.join("cap_mask"), format!("{CAPABILITIES:#010x}"))?;
    file(&root.join("pkeys/0"), format!("{:#06x}", PKey::DEFAULT.0))?;
    for (index, ip) in device.gids() {
        let index = index.to_string();
        file(&root.join("gids").join(&index), gid(ip))?;
        let attributes = root.join("gid_attrs");
        file(&attributes.join("types").join(&index), "RoCE v2")?;
        file(&attributes.join("ndevs").join(&index), device.interface())?;
    }
    let zero = DeviceReport::zero();
    for (directory, counts) in counters(&zero) {
        for (name, count) in counts {
            file(&root.join(directory).join(name), count)?;
        }
    }
    Ok(())
}

/// Returns the counters of a port with their sysfs directories.
pub fn counters(report: &DeviceReport) -> [(&'static str, &Counts); 3] {
    [
        ("counters", &report.port),
        ("hw_counters", &report.hw),
        ("hw_counters", &report.diagnostic),
    ]
}

/// Formats a GID as sysfs does: eight groups of four digits.
fn gid(ip: IpAddr) -> String {
    groups(&Gid::from_ip(ip).0)
}

fn groups(bytes: &[u8]) -> String {
    let groups = bytes.chunks(2).map(|pair| {
        let digits = pair.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    });
    groups.collect::<Vec<_>>().join(":")
}

/// Writes one line to a file and creates its directories.
fn file(path: &Path, line: impl std::fmt::Display) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, format!("{line}\n"))
}
