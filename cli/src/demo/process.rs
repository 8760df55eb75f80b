//! The executable and the output of this process.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;

/// Returns the path of this program. `/proc/self/exe` is valid even if a newer build has replaced
/// the file.
pub fn own_path() -> PathBuf {
    let path = env::current_exe().ok().filter(|path| path.is_file());
    path.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// Writes to standard output. A failed write means that the reader closed the pipe.
pub fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
