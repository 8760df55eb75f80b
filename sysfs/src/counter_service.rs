//! The counter service: keeps the counter files of the sysfs view up to date.
//!
//! The service queries this user's urxe processes several times a second, and sooner if a counter
//! file is opened. Processes that end send their last counts. The service ends when no other
//! process uses the view. It is not a child of the program, because a program may wait for all its
//! children.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource};
use urxe_driver::isolation;
use urxe_driver::stat::{self, DeviceReport, FinalReports, Process, Report};

use crate::{mount, preload, tree};

/// The name of the hidden subcommand.
pub const COMMAND: &str = "sysfs-counters";

/// What the service writes to its standard output when it is ready.
const READY: &[u8] = b"ready\n";
/// The query interval per process. The interval between surveys grows with the number of processes,
/// so each process is queried this often by each service.
const QUERY_INTERVAL: Duration = Duration::from_millis(250);
/// The number of processes up to which the survey interval does not grow.
const MIN_PROCESSES: usize = 2;
/// The shortest interval between surveys, used while counter files are being opened.
const MIN_SURVEY_INTERVAL: Duration = Duration::from_millis(50);
/// The interval of checks for users of the view, once the program has ended.
const USER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The consecutive checks without a user after which the service ends. A single check can miss a
/// process: its environment is empty during `execve`, and a child may start as its parent ends.
const CHECKS_WITHOUT_USER: u32 = 3;
/// The time to wait for the counters of a process.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(100);

/// The arguments of the hidden subcommand, [`COMMAND`].
#[derive(Debug)]
pub struct Arguments {
    /// The process ID of the program that uses the view.
    pub program: u32,
    /// The root directory of the view, `None` if it is mounted: `--root`.
    pub root: Option<PathBuf>,
    /// Whether this process is the service and not its starter: `--detached`.
    pub detached: bool,
}

/// Starts the counter service for this process and the program that it executes; returns when the
/// service is ready. `root` is the root directory of a view that is not mounted. The service
/// removes it at its end.
///
/// # Errors
/// Fails if the service cannot be started.
pub fn start(root: Option<&Path>) -> io::Result<()> {
    let starter = command(std::process::id(), root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    match starter.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&starter.stderr);
            Err(io::Error::other(why.trim().to_owned()))
        }
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

/// Runs the subcommand.
///
/// # Errors
/// Fails if the service cannot be started or cannot continue.
pub fn run(arguments: &Arguments) -> io::Result<()> {
    let root = arguments.root.as_deref();
    match (arguments.detached, root) {
        (false, _) => detach(arguments.program, root),
        (true, None) => serve(
            arguments.program,
            Path::new(mount::CLASS),
            mounts_have_users,
        ),
        (true, Some(root)) => {
            let class = preload::class(root);
            let served = serve(arguments.program, &class, || root_has_users(root));
            served.and(fs::remove_dir_all(root))
        }
    }
}

/// Starts the service in the background and waits until it is ready.
fn detach(program: u32, root: Option<&Path>) -> io::Result<()> {
    // An inherited pipe would stay open as long as the service runs.
    isolation::close_descriptors_on_exec();
    let mut service = command(program, root)
        .arg("--detached")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // The service closes its standard output when it is ready, and the kernel does when it exits.
    let mut output = Vec::new();
    if let Some(mut pipe) = service.stdout.take() {
        pipe.read_to_end(&mut output)?;
    }
    match output == READY {
        true => Ok(()),
        false => Err(io::Error::other("the service has exited")),
    }
}

/// Updates the counters below `class` while the program runs or `has_users` returns true.
fn serve(program: u32, class: &Path, has_users: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    // A session of its own: signals from the terminal go to the program only.
    rustix::process::setsid()?;
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(Resource::Nofile, limit)?;
    let pid = i32::try_from(program).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no such process"))?;
    let program = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(program) => Some(program),
        // The kernel is older than Linux 5.3. The checks for users detect the end of the program
        // too.
        Err(Errno::NOSYS) => None,
        Err(error) => return Err(error.into()),
    };

    let final_reports = FinalReports::listen()?;
    let opens = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let mut files = open_all(&class.join(tree::DEVICES), &opens)?;
    let mut totals = Totals::default();
    totals.refresh(&mut files)?;
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    rustix::stdio::dup2_stdout(File::open("/dev/null")?)?;

    let mut program = program;
    let mut last_check = Instant::now();
    let mut without_user = 0;
    loop {
        let wait = totals
            .next_survey()
            .saturating_duration_since(Instant::now());
        let events = wait_for(&opens, final_reports.as_ref(), program.as_ref(), wait)?;
        for process in final_reports.iter().flat_map(FinalReports::take) {
            totals.record(process);
            totals.write(&mut files)?;
        }
        if events.program_ended {
            program = None;
        }
        if program.is_none() && last_check.elapsed() >= USER_CHECK_INTERVAL {
            last_check = Instant::now();
            without_user = if has_users()? { 0 } else { without_user + 1 };
            if without_user == CHECKS_WITHOUT_USER {
                return Ok(());
            }
        }
        if events.file_opened {
            totals.expedite();
        }
        if totals.next_survey() <= Instant::now() {
            totals.refresh(&mut files)?;
        }
    }
}

/// The events that ended a wait.
struct Events {
    file_opened: bool,
    program_ended: bool,
}

fn wait_for(
    opens: &OwnedFd,
    final_reports: Option<&FinalReports>,
    program: Option<&OwnedFd>,
    wait: Duration,
) -> io::Result<Events> {
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = vec![watch(opens.as_fd())];
    fds.extend(program.map(|program| watch(program.as_fd())));
    fds.extend(final_reports.map(|final_reports| watch(final_reports.fd())));
    let timeout = Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let happened = |index: usize| !fds[index].revents().is_empty();
    let (file_opened, program_ended) = (happened(0), program.is_some() && happened(1));
    // Any open file triggers a survey, so the events themselves do not matter.
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(opens, &mut buffer);
    while reader.next().is_ok() {}
    Ok(Events {
        file_opened,
        program_ended,
    })
}

/// An open counter file.
struct CounterFile {
    file: File,
    device: String,
    directory: &'static str,
    name: String,
    /// The value in the file.
    written: u64,
}

impl CounterFile {
    fn write(&mut self, count: u64) -> io::Result<()> {
        if count != self.written {
            // Counters only grow, so the new text covers the old one.
            self.file.write_all_at(format!("{count}\n").as_bytes(), 0)?;
            self.written = count;
        }
        Ok(())
    }
}

/// Opens the counter files of urxe's devices, and adds watches for opens of them to `opens`.
fn open_all(class: &Path, opens: &OwnedFd) -> io::Result<Vec<CounterFile>> {
    let zero = DeviceReport::zero();
    let mut files = Vec::new();
    for device in fs::read_dir(class)? {
        let device = device?;
        // Devices of the kernel are symbolic links.
        if !device.file_type()?.is_dir() {
            continue;
        }
        let port = device.path().join("ports/1");
        for (directory, counts) in tree::counters(&zero) {
            for name in counts.keys() {
                let path = port.join(directory).join(name);
                files.push(CounterFile {
                    file: File::options().write(true).open(path)?,
                    device: device.file_name().to_string_lossy().into_owned(),
                    directory,
                    name: name.clone(),
                    written: 0,
                });
            }
        }
        for (directory, _) in tree::counters(&zero) {
            inotify::add_watch(opens, port.join(directory), inotify::WatchFlags::OPEN)?;
        }
    }
    Ok(files)
}

/// The last counts of all processes, running and ended.
struct Totals {
    /// By the instance number of their reports.
    processes: BTreeMap<u64, Process>,
    /// The sums of ended processes.
    ended: BTreeMap<String, DeviceReport>,
    last_survey: Instant,
    /// The time of the next survey.
    next: Instant,
}

impl Default for Totals {
    fn default() -> Self {
        let now = Instant::now();
        Totals {
            processes: BTreeMap::new(),
            ended: BTreeMap::new(),
            last_survey: now,
            next: now,
        }
    }
}

impl Totals {
    fn next_survey(&self) -> Instant {
        self.next
    }

    /// Brings the next survey forward, because a counter file was opened.
    fn expedite(&mut self) {
        self.next = self.next.min(self.last_survey + MIN_SURVEY_INTERVAL);
    }

    /// Queries all processes and writes the changed counters.
    fn refresh(&mut self, files: &mut [CounterFile]) -> io::Result<()> {
        let survey = stat::survey(RESPONSE_TIMEOUT)?;
        self.last_survey = Instant::now();
        self.next =
            self.last_survey + QUERY_INTERVAL * survey.processes.len().max(MIN_PROCESSES) as u32;
        let answered: HashSet<u64> = survey.processes.iter().map(|p| p.report.instance).collect();
        let silent = survey.silent;
        for process in survey.processes {
            self.record(process);
        }
        let is_gone = |(instance, process): (&u64, &Process)| {
            let gone = match process.pid {
                // Its PID namespace is not visible here; it may be one that did not answer in time.
                0 => silent == 0 && !answered.contains(instance),
                pid => !Path::new("/proc").join(pid.to_string()).exists(),
            };
            gone.then_some(*instance)
        };
        let gone: Vec<u64> = self.processes.iter().filter_map(is_gone).collect();
        for instance in gone {
            if let Some(process) = self.processes.remove(&instance) {
                self.retire(process.report);
            }
        }
        self.write(files)
    }

    fn write(&self, files: &mut [CounterFile]) -> io::Result<()> {
        for file in files {
            let count = self.count(&file.device, file.directory, &file.name);
            file.write(count)?;
        }
        Ok(())
    }

    /// Stores the counts of a process.
    fn record(&mut self, process: Process) {
        self.processes.insert(process.report.instance, process);
    }

    fn retire(&mut self, report: Report) {
        for (name, device) in report.devices {
            self.ended.entry(name).or_default().add(&device);
        }
    }

    fn count(&self, device: &str, directory: &str, name: &str) -> u64 {
        let reports = self
            .processes
            .values()
            .filter_map(|process| process.report.devices.get(device));
        let counts = reports.chain(self.ended.get(device)).map(|report| {
            let groups = tree::counters(report).into_iter();
            let mut groups = groups.filter(|(group, _)| *group == directory);
            groups
                .find_map(|(_, counts)| counts.get(name).copied())
                .unwrap_or(0)
        });
        counts.fold(0, u64::wrapping_add)
    }
}

/// Returns whether another process shares this mount namespace.
fn mounts_have_users() -> io::Result<bool> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    any_other(|process| fs::read_link(process.join("ns/mnt")).is_ok_and(|other| other == own))
}

/// Returns whether another process was started with this root in its environment. Processes of
/// other users cannot be checked.
fn root_has_users(root: &Path) -> io::Result<bool> {
    let variable = [preload::VARIABLE.as_bytes(), root.as_os_str().as_bytes()].join(&b'=');
    any_other(|process| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable)
    })
}

/// Returns whether the predicate holds for the `/proc` directory of any other process.
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
