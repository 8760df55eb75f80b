//! The keeper: sees to it that the counters that `urxe run` shows in sysfs are those of now.
//!
//! It asks the urxe processes of this user what they count, several times a second, and at once when
//! somebody opens one of the files; processes that end tell it what they counted last. It ends when
//! no other process sees the files. It is no child of the program's: a program that waits for
//! all its children does not wait for this one.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Resource};
use urxe_driver::isolation;
use urxe_driver::stat::{self, DeviceReport, Farewells, Process, Report};

use crate::{mount, preload, tree};

/// The name of the hidden subcommand.
pub const COMMAND: &str = "sysfs-keeper";

/// How often each process is asked by one keeper, on average: the more processes there are, and
/// perhaps keepers, the less often each asks all of them.
const ASK: Duration = Duration::from_millis(250);
/// How many processes it takes at least to make a keeper slower.
const FEW: usize = 2;
/// How soon after another answer who looks gets a new one.
const FRESH: Duration = Duration::from_millis(50);
/// How often to look whether anybody is left, once the program has ended.
const LOOK: Duration = Duration::from_secs(1);
/// How often nobody is seen in a row before nobody is left: a process shows no environment at the moment
/// in which it becomes another program, and one look may come between a parent's end and its child's start.
const UNSEEN: u32 = 3;
/// How long to wait for processes that do not answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// The arguments of the hidden subcommand, [`COMMAND`].
#[derive(Debug)]
pub struct Arguments {
    /// The process id of the program that sees the files.
    pub program: u32,
    /// The directory of the files, unless they are in mounts of this process: `--root`.
    pub root: Option<PathBuf>,
    /// Whether this process is the keeper; otherwise it starts it: `--detached`.
    pub detached: bool,
}

/// Starts the keeper for this process and what becomes of it; returns when it is ready. `root` is where the
/// devices are, if not in mounts of this process's own; the keeper removes it in the end.
///
/// # Errors
/// When it cannot be started.
pub fn start(root: Option<&Path>) -> io::Result<()> {
    let status = command(std::process::id(), root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other("it did not start")),
    }
}

fn command(program: u32, root: Option<&Path>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, &program.to_string()]);
    if let Some(root) = root {
        command.arg("--root").arg(root);
    }
    command
}

/// What the subcommand does.
///
/// # Errors
/// When the keeper cannot be started, or cannot go on.
pub fn keeper(arguments: &Arguments) -> io::Result<()> {
    let root = arguments.root.as_deref();
    match (arguments.detached, root) {
        (false, _) => detach(arguments.program, root),
        (true, None) => keep(arguments.program, Path::new(mount::CLASS), anybody_left),
        (true, Some(root)) => {
            let class = preload::class(root);
            let kept = keep(arguments.program, &class, || anybody_looks(root));
            kept.and(fs::remove_dir_all(root))
        }
    }
}

/// Starts the keeper, waits until it is ready, and leaves it alone.
fn detach(program: u32, root: Option<&Path>) -> io::Result<()> {
    // A pipe that the keeper held would never end.
    isolation::keep_descriptors();
    let mut keeper = command(program, root)
        .arg("--detached")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // It says nothing, and closes its standard output when it is ready.
    if let Some(mut output) = keeper.stdout.take() {
        io::copy(&mut output, &mut io::sink())?;
    }
    Ok(())
}

/// Keeps the counters below `class` while the program runs, or `anybody_left` says that somebody sees them.
fn keep(program: u32, class: &Path, anybody_left: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    // Signals from the terminal are the program's.
    rustix::process::setsid()?;
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(Resource::Nofile, limit)?;
    let pid = i32::try_from(program).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no such process"))?;
    let program = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;

    let farewells = Farewells::listen()?;
    let looks = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let mut files = open_all(&class.join(tree::DEVICES), &looks)?;
    let mut known = Known::default();
    known.refresh(&mut files)?;
    rustix::stdio::dup2_stdout(File::open("/dev/null")?)?;

    let mut program = Some(program);
    let mut looked = Instant::now();
    let mut unseen = 0;
    loop {
        let wait = known
            .next_refresh()
            .saturating_duration_since(Instant::now());
        let events = wait_for(&looks, farewells.as_ref(), program.as_ref(), wait)?;
        for process in farewells.iter().flat_map(Farewells::take) {
            known.learn(process);
            known.write(&mut files)?;
        }
        if events.program_ended {
            program = None;
        }
        if program.is_none() && looked.elapsed() >= LOOK {
            looked = Instant::now();
            unseen = if anybody_left()? { 0 } else { unseen + 1 };
            if unseen == UNSEEN {
                return Ok(());
            }
        }
        if events.somebody_looks {
            known.hurry();
        }
        if known.next_refresh() <= Instant::now() {
            known.refresh(&mut files)?;
        }
    }
}

/// What the keeper woke up for.
struct Events {
    somebody_looks: bool,
    program_ended: bool,
}

fn wait_for(
    looks: &OwnedFd,
    farewells: Option<&Farewells>,
    program: Option<&OwnedFd>,
    wait: Duration,
) -> io::Result<Events> {
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = vec![watch(looks.as_fd())];
    fds.extend(program.map(|program| watch(program.as_fd())));
    fds.extend(farewells.map(|farewells| watch(farewells.fd())));
    let timeout = Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let happened = |index: usize| !fds[index].revents().is_empty();
    let (somebody_looks, program_ended) = (happened(0), program.is_some() && happened(1));
    // What exactly was opened does not matter.
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(looks, &mut buffer);
    while reader.next().is_ok() {}
    Ok(Events {
        somebody_looks,
        program_ended,
    })
}

/// A counter's file.
struct Kept {
    file: File,
    device: String,
    directory: &'static str,
    name: String,
    /// What it holds.
    written: u64,
}

impl Kept {
    fn write(&mut self, count: u64) -> io::Result<()> {
        if count != self.written {
            // Counters grow, so nothing of the number before stays behind.
            self.file.write_all_at(format!("{count}\n").as_bytes(), 0)?;
            self.written = count;
        }
        Ok(())
    }
}

/// The counters of urxe's devices; `looks` tells from now on when one is opened.
fn open_all(class: &Path, looks: &OwnedFd) -> io::Result<Vec<Kept>> {
    let zero = DeviceReport::zero();
    let mut files = Vec::new();
    for device in fs::read_dir(class)? {
        let device = device?;
        // The kernel's own are links.
        if !device.file_type()?.is_dir() {
            continue;
        }
        let port = device.path().join("ports/1");
        for (directory, counts) in tree::counters(&zero) {
            for name in counts.keys() {
                let path = port.join(directory).join(name);
                files.push(Kept {
                    file: File::options().write(true).open(path)?,
                    device: device.file_name().to_string_lossy().into_owned(),
                    directory,
                    name: name.clone(),
                    written: 0,
                });
            }
        }
        for (directory, _) in tree::counters(&zero) {
            inotify::add_watch(looks, port.join(directory), inotify::WatchFlags::OPEN)?;
        }
    }
    Ok(files)
}

/// What processes have told, those that have ended included.
struct Known {
    /// By the instance of their reports.
    processes: BTreeMap<u64, Process>,
    /// Of processes that are gone.
    past: BTreeMap<String, DeviceReport>,
    asked: Instant,
    /// When to ask again.
    next: Instant,
}

impl Default for Known {
    fn default() -> Self {
        let now = Instant::now();
        Known {
            processes: BTreeMap::new(),
            past: BTreeMap::new(),
            asked: now,
            next: now,
        }
    }
}

impl Known {
    fn next_refresh(&self) -> Instant {
        self.next
    }

    /// Somebody looks: it is to be soon.
    fn hurry(&mut self) {
        self.next = self.next.min(self.asked + FRESH);
    }

    /// Asks all, and writes what has changed.
    fn refresh(&mut self, files: &mut [Kept]) -> io::Result<()> {
        let survey = stat::survey(PATIENCE)?;
        self.asked = Instant::now();
        self.next = self.asked + ASK * survey.processes.len().max(FEW) as u32;
        let told: HashSet<u64> = survey.processes.iter().map(|p| p.report.instance).collect();
        let silent = survey.silent;
        for process in survey.processes {
            self.learn(process);
        }
        let is_gone = |(instance, process): (&u64, &Process)| {
            let gone = match process.pid {
                // It cannot be seen from here, and may be one of those that are silent.
                0 => silent == 0 && !told.contains(instance),
                pid => !Path::new("/proc").join(pid.to_string()).exists(),
            };
            gone.then_some(*instance)
        };
        let gone: Vec<u64> = self.processes.iter().filter_map(is_gone).collect();
        for instance in gone {
            if let Some(process) = self.processes.remove(&instance) {
                self.bury(process.report);
            }
        }
        self.write(files)
    }

    fn write(&self, files: &mut [Kept]) -> io::Result<()> {
        for file in files {
            let count = self.count(&file.device, file.directory, &file.name);
            file.write(count)?;
        }
        Ok(())
    }

    /// A process told what it counted so far.
    fn learn(&mut self, process: Process) {
        self.processes.insert(process.report.instance, process);
    }

    fn bury(&mut self, report: Report) {
        for (name, device) in report.devices {
            self.past.entry(name).or_default().add(&device);
        }
    }

    fn count(&self, device: &str, directory: &str, name: &str) -> u64 {
        let reports = self
            .processes
            .values()
            .filter_map(|process| process.report.devices.get(device));
        let counts = reports.chain(self.past.get(device)).map(|report| {
            let groups = tree::counters(report).into_iter();
            let mut groups = groups.filter(|(group, _)| *group == directory);
            groups
                .find_map(|(_, counts)| counts.get(name).copied())
                .unwrap_or(0)
        });
        counts.fold(0, u64::wrapping_add)
    }
}

/// Whether another process has the mounts of this one.
fn anybody_left() -> io::Result<bool> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    any_other(|process| fs::read_link(process.join("ns/mnt")).is_ok_and(|other| other == own))
}

/// Whether another process was started with this root in its environment. Those of other users do not say.
fn anybody_looks(root: &Path) -> io::Result<bool> {
    let variable = [preload::VARIABLE.as_bytes(), root.as_os_str().as_bytes()].join(&b'=');
    any_other(|process| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable)
    })
}

/// Whether this is so of any process but this one, given its directory in `/proc`.
fn any_other(is_so: impl Fn(&Path) -> bool) -> io::Result<bool> {
    let me = std::process::id().to_string();
    let others: HashSet<_> = fs::read_dir("/proc")?
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit) && *name != *me)
        .collect();
    let mut others = others.iter();
    Ok(others.any(|name| is_so(&Path::new("/proc").join(name))))
}
