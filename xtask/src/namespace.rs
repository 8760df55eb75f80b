//! A network namespace of a command's own, where nobody else's packets pass, and one for its mounts.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Says that this process is in its network namespace already.
const INSIDE: &str = "URXE_XTASK_INSIDE";

/// Whether this process is in one already.
pub(crate) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Starts this command again in a namespace, with its loopback interface up. Comes back only, with false,
/// where there can be none.
pub(crate) fn enter() -> Result<bool, String> {
    let this = env::current_exe().map_err(|error| format!("the path of this command: {error}"))?;
    for flags in [
        &["--net", "--mount"][..],
        &["--map-root-user", "--net", "--mount"],
    ] {
        let works = Command::new("unshare")
            .args(flags)
            .args(["ip", "link", "set", "lo", "up"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if works {
            let mut command = Command::new("unshare");
            command
                .args(flags)
                .args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"])
                .arg(this)
                .args(env::args_os().skip(1))
                .env(INSIDE, "1");
            return Err(format!("unshare: {}", command.exec()));
        }
    }
    Ok(false)
}
