//! Writes an initramfs: a cpio archive in the "newc" format, with root as the owner of all files.
//! The kernel's `Documentation/driver-api/early-userspace/buffer-format.rst` specifies the format.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::{AtPath, Result};

/// The mode of a regular file.
const REGULAR: u32 = 0o100_000;
/// The mode of a directory.
const DIRECTORY: u32 = 0o040_000;
/// The file type bits of the mode.
const KIND: u32 = 0o170_000;
/// The name of the last entry.
const TRAILER: &str = "TRAILER!!!";

/// An archive being written.
pub(crate) struct Cpio {
    out: BufWriter<File>,
    written: u64,
    entries: u32,
}

impl Cpio {
    /// Creates an archive.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        Ok(Self {
            out: BufWriter::with_capacity(1 << 20, File::create(path).at(path)?),
            written: 0,
            entries: 0,
        })
    }

    /// Adds the tree below `root`, except relative paths for which `leave_out` returns true.
    pub(crate) fn add_tree(
        &mut self,
        root: &Path,
        leave_out: &dyn Fn(&Path) -> bool,
    ) -> Result<()> {
        self.add_directory(root, Path::new(""), leave_out)
    }

    fn add_directory(
        &mut self,
        root: &Path,
        under: &Path,
        leave_out: &dyn Fn(&Path) -> bool,
    ) -> Result<()> {
        let directory = root.join(under);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).at(&directory)? {
            names.push(entry.at(&directory)?.file_name());
        }
        names.sort();
        for name in names {
            let relative = under.join(&name);
            if leave_out(&relative) {
                continue;
            }
            let path = root.join(&relative);
            let metadata = fs::symlink_metadata(&path).at(&path)?;
            if metadata.is_dir() {
                self.entry(&relative, metadata.mode() | 0o700, &[])
                    .at(&path)?;
                self.add_directory(root, &relative, leave_out)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).at(&path)?;
                self.entry(&relative, metadata.mode(), target.as_os_str().as_bytes())
                    .at(&path)?;
            } else if metadata.is_file() {
                let data = fs::read(&path).at(&path)?;
                self.entry(&relative, metadata.mode(), &data).at(&path)?;
            }
        }
        Ok(())
    }

    /// Adds an executable file.
    pub(crate) fn add_program(&mut self, name: &str, data: &[u8]) -> Result<()> {
        self.entry(Path::new(name), REGULAR | 0o755, data)
            .at(Path::new(name))
    }

    /// Adds an empty directory.
    pub(crate) fn add_mount_point(&mut self, name: &str) -> Result<()> {
        self.entry(Path::new(name), DIRECTORY | 0o755, &[])
            .at(Path::new(name))
    }

    /// Writes the last entry.
    pub(crate) fn finish(mut self) -> Result<()> {
        let end = |cpio: &mut Self| {
            cpio.entry(Path::new(TRAILER), 0, &[])?;
            cpio.out.flush()
        };
        end(&mut self).at(Path::new(TRAILER))
    }

    fn entry(&mut self, name: &Path, mode: u32, data: &[u8]) -> io::Result<()> {
        let name = name.as_os_str().as_bytes();
        self.entries += 1;
        let links = if mode & KIND == DIRECTORY { 2 } else { 1 };
        let size = u32::try_from(data.len()).map_err(|_| {
            io::Error::other("a file of 4 GiB or more does not fit in a cpio archive")
        })?;
        // Magic, then inode, mode, uid, gid, links, mtime, size, device (2), special device (2),
        // length of the name with its NUL, checksum.
        let mut header = String::from("070701");
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            size,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.write(header.as_bytes())?;
        self.write(name)?;
        self.write(&[0])?;
        self.align()?;
        self.write(data)?;
        self.align()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn align(&mut self) -> io::Result<()> {
        let over = (self.written % 4) as usize;
        if over == 0 {
            return Ok(());
        }
        self.write(&[0; 4][over..])
    }
}
