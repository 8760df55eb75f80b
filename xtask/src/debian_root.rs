//! Base systems of Debian's releases, which debootstrap makes once. Checks mount overlays over them, so
//! that they are unchanged.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::release::succeed;

/// The mirror, unless `URXE_DEBIAN_MIRROR` names another one.
const MIRROR: &str = "http://deb.debian.org/debian";

/// Returns why there can be no base system here, if so.
pub(crate) fn unmet_need() -> Option<String> {
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if !is_root {
        return Some("a root of another release needs root".to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|directory| directory.join("debootstrap").is_file());
    (!found).then(|| {
        "a root of another release needs debootstrap: apt-get install debootstrap".to_owned()
    })
}

/// Returns the directory with the base system of a release and these packages, with commas between
/// them.
pub(crate) fn make(target: &Path, suite: &str, packages: &str) -> Result<PathBuf, String> {
    if let Some(unmet_need) = unmet_need() {
        return Err(unmet_need);
    }
    // A comma would end the option of a mount.
    let name = format!("{suite}-{}", packages.replace(',', "+"));
    let base = target.join(&name);
    if base.exists() {
        return Ok(base);
    }
    let mirror = env::var("URXE_DEBIAN_MIRROR").unwrap_or_else(|_| MIRROR.to_owned());
    println!("xtask: debootstrap {suite} from {mirror}");
    // Renamed when complete.
    let draft = target.join(format!("{name}.{}", std::process::id()));
    let made = succeed(
        Command::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={packages}"), suite])
            .arg(&draft)
            .arg(&mirror)
            .stdout(Stdio::null()),
    );
    made.and_then(|()| {
        std::fs::rename(&draft, &base).map_err(|error| format!("{}: {error}", base.display()))
    })
    .inspect_err(|_| {
        // The directory is in the target directory, and the failure is already reported.
        let _ = std::fs::remove_dir_all(&draft);
    })?;
    Ok(base)
}
