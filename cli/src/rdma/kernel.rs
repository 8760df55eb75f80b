//! The kernel's devices, by iproute2's own `rdma`.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

/// The name of the command.
pub const NAME: &str = "rdma";

/// iproute2's command, if it is installed.
pub struct Kernel(Option<Installed>);

struct Installed {
    program: PathBuf,
    /// The directories of `PATH` that follow this command's own.
    path: OsString,
}

/// The reply of iproute2's command.
#[derive(Debug)]
pub enum Reply {
    /// The command is not installed, or the kernel has no RDMA.
    None,
    /// The command's exit status and output.
    Finished { status: u8, stdout: String },
}

impl Kernel {
    /// Finds the command in `PATH`.
    pub fn find() -> Kernel {
        let path = env::var_os("PATH").unwrap_or_default();
        let own = env::current_exe().unwrap_or_default();
        let directories: Vec<PathBuf> = env::split_paths(&path).collect();
        // A link to this executable, or of another `urxe run` to another version of it.
        let is_own = |directory: &PathBuf| {
            let found = directory.join(NAME).canonicalize();
            found.is_ok_and(|found| found.file_name() == own.file_name())
        };
        let after = directories.iter().rposition(is_own).map_or(0, |at| at + 1);
        let rest = &directories[after..];
        let mut candidates = rest.iter().map(|directory| directory.join(NAME));
        let program = candidates.find(|program| is_executable(program));
        Kernel(program.and_then(|program| {
            let path = env::join_paths(rest).ok()?;
            Some(Installed { program, path })
        }))
    }

    /// Replaces this process with the command. Returns only on failure.
    pub fn execute(&self, arguments: &[OsString]) -> ExitCode {
        let Some(installed) = &self.0 else {
            eprintln!(
                "{NAME}: urxe shows its devices by `{NAME} dev`, `link`, `resource` and \
                 `statistic`; other requests need iproute2's `{NAME}`, which is not in PATH"
            );
            return ExitCode::FAILURE;
        };
        let error = installed.command(arguments).exec();
        eprintln!("{NAME}: {}: {error}", installed.program.display());
        ExitCode::FAILURE
    }

    /// Runs the command and returns its reply. Its errors are passed on, unless the reason is that
    /// the kernel has no RDMA.
    pub fn ask(&self, arguments: &[OsString]) -> Reply {
        let Some(installed) = &self.0 else {
            return Reply::None;
        };
        let output = installed.command(arguments).stdin(Stdio::null()).output();
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                eprintln!("{NAME}: {}: {error}", installed.program.display());
                return Reply::None;
            }
        };
        if !output.status.success() && !has_rdma() {
            return Reply::None;
        }
        // A failed write means that nobody reads errors.
        let _ = io::stderr().write_all(&output.stderr);
        Reply::Finished {
            status: output
                .status
                .code()
                .and_then(|code| code.try_into().ok())
                .unwrap_or(1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        }
    }
}

impl Installed {
    fn command(&self, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        // Its messages begin with this name.
        command.arg0(NAME).args(arguments);
        // It cannot find this command again, whatever it executes.
        command.env("PATH", &self.path);
        command
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Returns whether the kernel has RDMA, which iproute2 reaches through a netlink socket.
fn has_rdma() -> bool {
    let protocol = Some(netlink::RDMA);
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).is_ok()
}
