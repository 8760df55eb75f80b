//! What `urxe run` and the object that it preloads agree on. Part of both.

/// The variable that names the directory, an absolute path, below which there are files in the place of those in
/// `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`. `urxe run` sets it.
pub const VARIABLE: &str = "URXE_SYSFS_ROOT";

/// The longest such path, in bytes.
pub const LONGEST_ROOT: usize = 255;
