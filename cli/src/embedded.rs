//! The shared objects that the command contains, and their copies in the user's cache.
//!
//! `cargo install` installs commands only, so with the Cargo feature `embed` the command carries
//! the objects. The dynamic linker needs a file: an object is written to the user's cache when it
//! is first needed, in a directory that is named after its content and accessible to this user
//! only. The file is renamed when it is complete, so processes may start concurrently.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use crate::private;

/// The replacement for libibverbs and librdmacm.
pub const LIBRARY: &str = "liburxe.so";
/// The object that redirects sysfs paths, where mounts are not possible.
pub use urxe_sysfs::PRELOAD;
/// The object that redirects socket calls to rsockets.
pub const RSPRELOAD: &str = "librspreload.so";

/// An object that this command contains.
#[derive(Clone, Copy)]
pub struct Object {
    /// The file name.
    pub name: &'static str,
    /// The content.
    pub bytes: &'static [u8],
}

/// Returns the object with this name, if the command contains it.
pub fn object(name: &str) -> Option<Object> {
    objects::all()
        .into_iter()
        .find(|object| object.name == name)
}

/// Returns the path of a file with this object, which is created if it is missing.
///
/// # Errors
/// The last directory that was tried, and why the file cannot be there.
pub fn unpack(object: Object) -> Result<PathBuf, (PathBuf, io::Error)> {
    unpack_in(private::caches(), object)
}

/// As [`unpack`], in the first directory that is usable.
fn unpack_in(
    directories: impl IntoIterator<Item = PathBuf>,
    object: Object,
) -> Result<PathBuf, (PathBuf, io::Error)> {
    let mut last = (
        PathBuf::from("/"),
        io::Error::other("there is no directory for it"),
    );
    for directory in directories {
        match private::directory(&directory).and_then(|()| unpack_to(&directory, object)) {
            Ok(path) => return Ok(path),
            Err(error) => last = (directory, error),
        }
    }
    Err(last)
}

fn unpack_to(base: &Path, object: Object) -> io::Result<PathBuf> {
    if rustix::fs::statvfs(base)?
        .f_flag
        .contains(StatVfsMountFlags::NOEXEC)
    {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the file system is mounted with noexec",
        ));
    }
    // The directory belongs to this user, so the checksum only distinguishes builds.
    let checksum = crc32fast::hash(object.bytes);
    let directory = base.join(format!("{checksum:08x}{:08x}", object.bytes.len()));
    private::directory(&directory)?;
    let path = directory.join(object.name);
    // A system crash may leave a renamed file without its content.
    let complete = fs::metadata(&path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() == object.bytes.len() as u64);
    if complete {
        return Ok(path);
    }
    let draft = directory.join(format!(".{}.{}", object.name, std::process::id()));
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(&draft)?;
    let written = file.write_all(object.bytes);
    if let Err(error) = written.and_then(|()| fs::rename(&draft, &path)) {
        // The file system may be full. Fails only where the draft is gone.
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    Ok(path)
}

#[cfg(feature = "embed")]
mod objects {
    use super::Object;
    use super::{LIBRARY, PRELOAD, RSPRELOAD};

    /// Defines a function that returns the content of a file that Cargo has built.
    ///
    /// The assembler reads the file, not `include_bytes!`: `cargo check` builds no shared objects,
    /// and does not run the assembler. Cargo links the command again after a dependency has
    /// changed. With incremental compilation, in the profile `dev`, rustc may keep the former
    /// content; a command in the build tree uses the file beside it instead.
    macro_rules! content {
        ($function:ident, $start:literal, $end:literal, $file:literal) => {
            core::arch::global_asm!(
                ".pushsection .rodata.urxe_objects, \"a\", %progbits",
                concat!(".hidden ", $start, "\n.globl ", $start, "\n", $start, ":"),
                concat!(".incbin \"", env!("URXE_OBJECTS"), "/", $file, "\""),
                concat!(".hidden ", $end, "\n.globl ", $end, "\n", $end, ":"),
                ".byte 0",
                ".popsection",
                options(raw)
            );

            fn $function() -> &'static [u8] {
                unsafe extern "C" {
                    #[link_name = $start]
                    static START: u8;
                    #[link_name = $end]
                    static END: u8;
                }
                let (start, end) = (&raw const START, &raw const END);
                // SAFETY: the assembler places the bytes of the file between the two labels, in a
                // section that is mapped read-only for the life of the process.
                unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
            }
        };
    }

    content!(
        library,
        "urxe_library_start",
        "urxe_library_end",
        "liburxe.so"
    );
    content!(
        preload,
        "urxe_preload_start",
        "urxe_preload_end",
        "liburxe_preload.so"
    );
    content!(
        rspreload,
        "urxe_rspreload_start",
        "urxe_rspreload_end",
        "librspreload.so"
    );

    pub fn all() -> Vec<Object> {
        let object = |name, bytes| Object { name, bytes };
        vec![
            object(LIBRARY, library()),
            object(PRELOAD, preload()),
            object(RSPRELOAD, rspreload()),
        ]
    }
}

#[cfg(not(feature = "embed"))]
mod objects {
    use super::Object;

    pub fn all() -> Vec<Object> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::os::unix::fs::PermissionsExt;

    const OBJECT: Object = Object {
        name: "libmine.so",
        bytes: b"content",
    };

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("urxe-embedded-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("own directory");
        path
    }

    #[test]
    fn object_is_written_once_and_incomplete_file_is_replaced() {
        let base = scratch("once");
        let path = unpack_in([base.join("cache")], OBJECT).expect("own directory");
        assert_eq!(fs::read(&path).expect("written"), OBJECT.bytes);
        let mode = fs::metadata(path.parent().expect("a directory"))
            .expect("own directory")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);

        // The same length, so the file counts as complete.
        fs::write(&path, b"CONTENT").expect("own file");
        assert_eq!(
            unpack_in([base.join("cache")], OBJECT).expect("again"),
            path
        );
        assert_eq!(fs::read(&path).expect("kept"), b"CONTENT");

        fs::write(&path, b"con").expect("own file");
        unpack_in([base.join("cache")], OBJECT).expect("again");
        assert_eq!(fs::read(&path).expect("replaced"), OBJECT.bytes);
        fs::remove_dir_all(base).expect("own directory");
    }

    #[test]
    fn directory_that_others_can_write_to_is_passed_over() {
        let base = scratch("writable");
        let (open, closed) = (base.join("open"), base.join("closed"));
        fs::create_dir(&open).expect("own directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("own directory");
        let path = unpack_in([open.clone(), closed.clone()], OBJECT).expect("the second");
        assert!(path.starts_with(&closed));
        let (refused, _) = unpack_in([open.clone()], OBJECT).expect_err("refused");
        assert_eq!(refused, open);
        fs::remove_dir_all(base).expect("own directory");
    }

    #[cfg(feature = "embed")]
    #[test]
    fn embedded_objects_are_shared_objects() {
        for object in objects::all() {
            assert!(object.bytes.starts_with(b"\x7fELF"), "{}", object.name);
        }
    }
}
