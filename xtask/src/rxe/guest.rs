//! The Linux guest: built from Debian packages and booted in QEMU, without root or KVM.
//!
//! The root file system is an initramfs with the programs and rxe's kernel modules. A job is a
//! directory of this machine, which the guest mounts as `/job` (9p). The guest runs `/job/run` and
//! writes results and the exit status there. Output goes to the serial console.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::archive::{Archive, program_in, unpack};
use super::cpio::Cpio;
use super::error::{AtPath, Error, Result, not_started, run};

/// The packages with the guest's programs.
const GUEST_PACKAGES: &[&str] = &[
    "bash",
    "coreutils",
    "dash",
    "ethtool",
    "gawk",
    "grep",
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "kmod",
    "libcap2-bin",
    "mount",
    "perftest",
    "procps",
    "rdmacm-utils",
    "sed",
    "tcpdump",
    "util-linux",
];

/// The modules to load. `modprobe` finds their dependencies.
const MODULES: &[&str] = &[
    "9p",
    "9pnet_virtio",
    "act_mirred",
    "cls_matchall",
    "dummy",
    "ib_umad",
    "ib_uverbs",
    "rdma_rxe",
    "rdma_ucm",
    "sch_ingress",
    "sch_netem",
    "sch_prio",
    "veth",
    "virtio_pci",
];

/// Checksum modules for rxe. Newer kernels do not have them, and rxe calls the checksum functions.
const CHECKSUMS: &[&str] = &["crc32_generic", "crc32_pclmul"];

/// The file name of the kernel image beside its modules; older packages have it in `boot`.
const IMAGE: &str = "vmlinuz";

/// Directories that the guest does not need.
const LEFT_OUT: &[&str] = &[
    "boot",
    "usr/include",
    "usr/lib/modules",
    "usr/lib/systemd",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/misc",
    "usr/share/perl",
    "usr/share/perl5",
    "var/cache",
];

const INIT: &str = include_str!("../../../tests/rxe/init.sh");

/// The version of the guest's layout. Increase it when the build changes and the lists above do
/// not.
const LAYOUT: &str = "5";

/// A kernel with its Debian release, from the oldest to the newest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 12 with the kernel of Debian 11: Linux 5.10
    Bullseye,
    /// Debian 12: Linux 6.1, rdma-core 44, perftest 4.5
    #[default]
    Bookworm,
    /// Debian 12 with the kernel of its backports
    Backports,
    /// Debian 13: Linux 6.12, rdma-core 56, perftest 25
    Trixie,
    /// Debian 13 with the kernel of its backports, the newest of all
    TrixieBackports,
}

impl Kernel {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Bullseye => "bullseye",
            Self::Backports => "backports",
            Self::Trixie => "trixie",
            Self::TrixieBackports => "trixie-backports",
        }
    }

    /// Returns the suites of the guest's programs.
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Bookworm | Self::Bullseye => {
                &["bookworm", "bookworm-updates", "bookworm-security"]
            }
            Self::Backports => &["bookworm", "bookworm-security", "bookworm-backports"],
            Self::Trixie => &["trixie", "trixie-updates", "trixie-security"],
            Self::TrixieBackports => &["trixie", "trixie-security", "trixie-backports"],
        }
    }

    /// Returns the suites of the guest's kernel.
    fn kernel_suites(self) -> &'static [&'static str] {
        match self {
            Self::Bullseye => &["bullseye", "bullseye-security"],
            _ => self.suites(),
        }
    }

    fn kernel_release(self) -> Option<&'static str> {
        match self {
            Self::Bookworm | Self::Bullseye | Self::Trixie => None,
            Self::Backports => Some("bookworm-backports"),
            Self::TrixieBackports => Some("trixie-backports"),
        }
    }
}

/// A guest that is ready to boot.
pub(crate) struct Guest {
    /// The unpacked packages of the guest.
    root: PathBuf,
    kernel: PathBuf,
    initramfs: PathBuf,
    /// The Linux release.
    pub(crate) release: String,
    qemu: Qemu,
}

/// The clock of the guest.
#[derive(Clone, Copy)]
pub(crate) enum Clock {
    /// That of this machine. The speed of the guest's two processors depends on its load.
    Host,
    /// The instructions that the guest executes, each taking the same time, and no time passes
    /// while its single processor sleeps. So a busy host makes the guest neither slower, as
    /// programs in it measure, nor late.
    Instructions,
}

/// The time of an instruction with [`Clock::Instructions`]: 2 to the power of this, in nanoseconds.
const INSTRUCTION: u32 = 2;

/// The source of QEMU.
enum Qemu {
    Installed,
    Unpacked(PathBuf),
}

impl Guest {
    /// Builds the guest in `directory`, unless it exists there.
    pub(crate) fn prepare(directory: &Path, kernel: Kernel) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::OtherArchitecture);
        }
        let qemu = Qemu::provide(&directory.join("qemu"))?;
        let home = directory.join(kernel.name());
        let root = home.join("root");
        once(&home.join("packages"), &stamp(GUEST_PACKAGES), || {
            discard(&root)?;
            let archive = Archive::open(&home.join("archive"), kernel.suites(), None)?;
            unpack(&archive.fetch(GUEST_PACKAGES)?, &root)?;
            let release = kernel.kernel_release();
            let archive = Archive::open(
                &home.join("kernel-archive"),
                kernel.kernel_suites(),
                release,
            )?;
            let packages = archive.fetch(&["linux-image-amd64"])?;
            // Newer kernels have separate packages for the image, the modules and their index.
            let of_kernel = |path: &PathBuf| path.to_string_lossy().contains("/linux-");
            let kernel: Vec<PathBuf> = packages.into_iter().filter(of_kernel).collect();
            unpack(&kernel, &root)
        })?;

        let (release, image) = find_kernel(&root)?;
        let initramfs = home.join("initramfs.cpio");
        let content = [
            stamp(MODULES),
            stamp(LEFT_OUT),
            INIT.to_owned(),
            release.clone(),
        ]
        .join("\n");
        once(&home.join("initramfs"), &content, || {
            println!("rxe: packing {}", initramfs.display());
            pack(&root, &release, &initramfs)
        })?;
        Ok(Self {
            root,
            kernel: image,
            initramfs,
            release,
            qemu,
        })
    }

    /// Returns the directory with the guest's unpacked packages.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the version of one of the guest's packages.
    pub(crate) fn version_of(&self, package: &str) -> Option<String> {
        let archives = self.root.parent()?.join("archive/cache/archives");
        fs::read_dir(archives).ok()?.find_map(|entry| {
            let file = entry.ok()?.file_name().into_string().ok()?;
            let version = file.strip_prefix(package)?.strip_prefix('_')?;
            version.split('_').next().map(str::to_owned)
        })
    }

    /// Boots the guest and runs the job in `job`; `show` gets each line of the console.
    pub(crate) fn run(&self, job: &Path, show: &mut dyn FnMut(&str)) -> Result<()> {
        self.run_by(Clock::Host, job, show)
    }

    /// Like [`Guest::run`], with the given clock.
    pub(crate) fn run_by(
        &self,
        clock: Clock,
        job: &Path,
        show: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let status = job.join("status");
        remove(&status)?;
        let console = job.join("console.log");
        let mut log = File::create(&console).at(&console)?;
        let mut command = self.command(clock, job, "quiet loglevel=3");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| not_started(&command, "qemu-system-x86", error))?;
        if let Some(stdout) = child.stdout.take() {
            let mut lines = BufReader::new(stdout);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).at(&console)? > 0 {
                log.write_all(&line).at(&console)?;
                show(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
        child.wait().at(&console)?;
        match fs::read_to_string(&status).map(|text| text.trim().parse::<i32>()) {
            Ok(Ok(0)) => Ok(()),
            Ok(Ok(status)) => Err(Error::JobFailed { status, console }),
            _ => Err(Error::GuestDied { console }),
        }
    }

    /// Boots the guest with a shell on this terminal.
    pub(crate) fn shell(&self, job: &Path) -> Result<()> {
        let mut command = self.command(Clock::Host, job, "quiet loglevel=3 urxe.shell");
        command
            .status()
            .map_err(|error| not_started(&command, "qemu-system-x86", error))?;
        Ok(())
    }

    fn command(&self, clock: Clock, job: &Path, more: &str) -> Command {
        let mut qemu = self.qemu.command();
        match clock {
            Clock::Host => qemu.args(["-accel", "tcg,thread=multi", "-smp", "2"]),
            // Only a single processor gets its share of time in this mode.
            Clock::Instructions => qemu
                .args(["-accel", "tcg,thread=single", "-smp", "1"])
                .args(["-icount", &format!("shift={INSTRUCTION},sleep=off")]),
        };
        qemu.args(["-cpu", "max", "-m", "4096", "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!("console=ttyS0 panic=-1 mitigations=off {more}"))
            .arg("-virtfs")
            .arg(format!(
                "local,path={},mount_tag=job,security_model=none",
                // Commas separate QEMU's options, so a comma in a value is doubled.
                job.display().to_string().replace(',', ",,")
            ));
        qemu
    }
}

impl Qemu {
    fn provide(directory: &Path) -> Result<Self> {
        let installed = Command::new("qemu-system-x86_64")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if installed.is_ok_and(|status| status.success()) {
            return Ok(Self::Installed);
        }
        let packages = ["qemu-system-x86"];
        let root = directory.join("root");
        once(&directory.join("packages"), &stamp(&packages), || {
            discard(&root)?;
            let suites = Kernel::Bookworm.suites();
            let archive = Archive::open(&directory.join("archive"), suites, None)?;
            unpack(&archive.fetch(&packages)?, &root)
        })?;
        Ok(Self::Unpacked(root))
    }

    /// Returns a QEMU command with low priority, because it uses several processors for minutes.
    fn command(&self) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", "10"]);
        match self {
            Self::Installed => {
                command.arg("qemu-system-x86_64");
            }
            Self::Unpacked(root) => {
                let program = program_in(root, "usr/bin/qemu-system-x86_64", "qemu-system-x86_64");
                command.arg(program.get_program()).args(program.get_args());
                let modules = root.join("usr/lib/x86_64-linux-gnu/qemu");
                command.env("QEMU_MODULE_DIR", modules);
                for data in ["usr/share/qemu", "usr/share/seabios"] {
                    command.arg("-L").arg(root.join(data));
                }
            }
        }
        command
    }
}

/// Returns Linux's release and image in an unpacked tree.
fn find_kernel(root: &Path) -> Result<(String, PathBuf)> {
    let modules = root.join("usr/lib/modules");
    let mut releases: Vec<String> = fs::read_dir(&modules)
        .at(&modules)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    releases.sort();
    let found = releases.pop().and_then(|release| {
        let image = root.join(format!("boot/vmlinuz-{release}"));
        let beside_modules = modules.join(&release).join(IMAGE);
        let image = [image, beside_modules]
            .into_iter()
            .find(|path| path.exists());
        Some((release, image?))
    });
    found.ok_or_else(|| Error::NotInPackages {
        what: "kernel image".into(),
        directory: root.to_owned(),
    })
}

/// Writes the initramfs: programs, required modules and the init program.
fn pack(root: &Path, release: &str, initramfs: &Path) -> Result<()> {
    let depmod = |command: &mut Command| run(command.arg("-b").arg(root).arg(release), "kmod");
    depmod(&mut program_in(root, "usr/bin/kmod", "depmod"))?;
    let mut modules = BTreeSet::new();
    for module in MODULES.iter().chain(CHECKSUMS) {
        let mut modprobe = program_in(root, "usr/bin/kmod", "modprobe");
        modprobe
            .args(["--show-depends", "--set-version", release, "--dirname"])
            .arg(root)
            .arg(module);
        let found = match run(&mut modprobe, "kmod") {
            Err(_) if CHECKSUMS.contains(module) => continue,
            found => found?,
        };
        // Modules are listed as `insmod PATH`, built-in drivers as `builtin`.
        for line in found.lines() {
            if let Some(path) = line.strip_prefix("insmod ") {
                let path = Path::new(path.trim());
                let relative = path.strip_prefix(root).unwrap_or(path);
                let relative = relative.strip_prefix("/").unwrap_or(relative);
                modules.insert(
                    Path::new("usr").join(relative.strip_prefix("usr").unwrap_or(relative)),
                );
            }
        }
    }

    let index = Path::new("usr/lib/modules").join(release);
    let image = index.join(IMAGE);
    let keep_under_modules = |path: &Path| {
        path == Path::new("usr/lib/modules")
            || index.starts_with(path)
            || (path.parent() == Some(&index) && path != image && root.join(path).is_file())
            || modules.iter().any(|module| module.starts_with(path))
    };
    let leave_out = |path: &Path| {
        if path.starts_with("usr/lib/modules") {
            return !keep_under_modules(path);
        }
        LEFT_OUT.iter().any(|directory| path.starts_with(directory))
    };
    let mut cpio = Cpio::create(initramfs)?;
    for directory in ["dev", "job", "proc", "run", "sys", "tmp", "root"] {
        cpio.add_mount_point(directory)?;
    }
    cpio.add_program("init", INIT.as_bytes())?;
    cpio.add_tree(root, &leave_out)?;
    cpio.finish()
}

fn stamp(list: &[&str]) -> String {
    format!("{LAYOUT} {}", list.join(" "))
}

/// Runs `make` unless the stamp file has this content.
fn once(stamp: &Path, content: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
    if fs::read_to_string(stamp).is_ok_and(|found| found == content) {
        return Ok(());
    }
    if let Some(parent) = stamp.parent() {
        fs::create_dir_all(parent).at(parent)?;
    }
    remove(stamp)?;
    make()?;
    fs::write(stamp, content).at(stamp)
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at(file),
        _ => Ok(()),
    }
}

fn discard(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at(directory),
        _ => Ok(()),
    }
}
