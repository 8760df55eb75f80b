//! The environment variable by which `urxe run` passes the view to the object that it preloads.
//! Compiled into both.

/// The environment variable with the root directory of the view, an absolute path, which `urxe run`
/// sets. Below it are the replacements of `/sys/class/infiniband`, `/sys/class/infiniband_verbs`
/// and `/dev/infiniband`.
pub const VARIABLE: &str = "URXE_SYSFS_ROOT";

/// The longest root path, in bytes.
pub const LONGEST_ROOT: usize = 255;
