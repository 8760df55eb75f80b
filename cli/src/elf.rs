//! The headers of ELF programs.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PT_INTERP: u32 = 3;
const CLASS_64: u8 = 2;
/// The size of the longest path.
const PATH_MAX: usize = 4096;

/// Returns the first bytes of a file, at most `len`.
pub fn start_of(path: &Path, len: usize) -> Option<Vec<u8>> {
    let mut start = vec![0; len];
    let count = File::open(path).ok()?.read_at(&mut start, 0).ok()?;
    start.truncate(count);
    Some(start)
}

/// Returns whether a file is a 64-bit ELF program without an interpreter. Anything else counts as
/// dynamic.
pub fn is_static(path: &Path) -> bool {
    segments_of(path).is_some_and(|(_, all)| !all.iter().any(|segment| segment.kind == PT_INTERP))
}

/// Returns whether a file is a 32-bit ELF program.
pub fn is_32_bit(path: &Path) -> bool {
    start_of(path, 5).is_some_and(|start| start.as_slice() == b"\x7fELF\x01")
}

/// Returns the dynamic linker that a 64-bit ELF program names.
pub fn interpreter(path: &Path) -> Option<PathBuf> {
    let (file, segments) = segments_of(path)?;
    let segment = segments.iter().find(|segment| segment.kind == PT_INTERP)?;
    let size = usize::try_from(segment.size).ok();
    let mut name = vec![0; size.filter(|size| *size <= PATH_MAX)?];
    file.read_exact_at(&mut name, segment.offset).ok()?;
    let name = name.strip_suffix(b"\0")?;
    Some(PathBuf::from(OsString::from_vec(name.to_vec())))
}

/// A program header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    kind: u32,
    offset: u64,
    size: u64,
}

fn segments_of(path: &Path) -> Option<(File, Vec<Segment>)> {
    let file = File::open(path).ok()?;
    let all = segments(|at, bytes| file.read_exact_at(bytes, at).ok())?;
    Some((file, all))
}

/// Returns the program headers of a 64-bit little-endian ELF file; `None` for other formats. `read`
/// reads at an offset.
fn segments(read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Vec<Segment>> {
    let number = |at: u64, len: usize| {
        let mut bytes = [0; 8];
        read(at, &mut bytes[..len])?;
        Some(u64::from_le_bytes(bytes))
    };
    let mut magic = [0; 5];
    read(0, &mut magic)?;
    if !magic.starts_with(b"\x7fELF") || magic[4] != CLASS_64 {
        return None;
    }
    // Offsets in the ELF header: e_phoff, e_phentsize, e_phnum; in a program header: p_type,
    // p_offset and p_filesz.
    let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let segment = |index: u64| {
        let at = first.checked_add(index * size)?;
        Some(Segment {
            kind: u32::try_from(number(at, 4)?).ok()?,
            offset: number(at.checked_add(8)?, 8)?,
            size: number(at.checked_add(32)?, 8)?,
        })
    };
    (0..count).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A little-endian ELF header with program headers of these types.
    fn elf(types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(types.len()).expect("few");
        for kind in types {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    fn kinds(file: &[u8]) -> Option<Vec<u32>> {
        let all = segments(|at, bytes| {
            let at = usize::try_from(at).ok()?;
            let found = file.get(at..at.checked_add(bytes.len())?)?;
            bytes.copy_from_slice(found);
            Some(())
        });
        all.map(|all| all.iter().map(|segment| segment.kind).collect())
    }

    #[test]
    fn program_headers_are_found() {
        assert_eq!(kinds(&elf(&[1, 3, 2])), Some(vec![1, 3, 2]));
        assert_eq!(kinds(&elf(&[])), Some(vec![]));
    }

    #[test]
    fn other_formats_have_no_program_headers() {
        assert_eq!(kinds(b"#!/bin/sh\n"), None);
        assert_eq!(kinds(b""), None);
        let mut far = elf(&[1]);
        far[32..40].fill(0xff);
        assert_eq!(kinds(&far), None);
        assert_eq!(kinds(&elf(&[1, 3])[..80]), None);
    }

    #[test]
    fn this_program_names_its_dynamic_linker() {
        let own = std::env::current_exe().expect("running");
        assert!(!is_static(&own) && !is_32_bit(&own));
        let interpreter = interpreter(&own).expect("dynamic");
        assert!(interpreter.is_file(), "{}", interpreter.display());
    }

    #[test]
    fn script_is_neither_static_nor_has_a_dynamic_linker() {
        let script = std::env::temp_dir().join(format!("urxe-elf-{}", std::process::id()));
        std::fs::write(&script, "#!/bin/sh\n").expect("own file");
        assert!(!is_static(&script));
        assert_eq!(interpreter(&script), None);
        assert_eq!(start_of(&script, 2).as_deref(), Some(&b"#!"[..]));
        assert!(!is_32_bit(&script));
        std::fs::write(&script, b"\x7fELF\x01\x01\x01").expect("own file");
        assert!(is_32_bit(&script) && !is_static(&script));
        std::fs::remove_file(&script).expect("own file");
    }
}
