//! A private network namespace, free of other packets, with a private mount namespace.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The environment variable of a process inside the namespace.
const INSIDE: &str = "URXE_XTASK_INSIDE";

/// Returns whether this process is inside the namespace.
pub(crate) fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Executes this command again in a namespace with its loopback interface up. Returns false where
/// namespaces are not allowed.
pub(crate) fn enter() -> Result<bool, String> {
    let this = env::current_exe().map_err(|error| format!("path of this command: {error}"))?;
    let Some(flags) = flags() else {
        return Ok(false);
    };
    let mut command = Command::new("unshare");
    command
        .args(flags)
        .args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"])
        .arg(this)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1");
    Err(format!("unshare: {}", command.exec()))
}

/// Returns the options of `unshare` that make a namespace, for root or for another user, or `None`
/// where namespaces are not allowed.
pub(crate) fn flags() -> Option<&'static [&'static str]> {
    let choices = [
        &["--net", "--mount"][..],
        &["--map-root-user", "--net", "--mount"],
    ];
    choices.into_iter().find(|flags| {
        Command::new("unshare")
            .args(*flags)
            .args(["ip", "link", "set", "lo", "up"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}
