//! Extracts one packet of each kind from a capture, as test vectors.
//!
//! The capture is tcpdump's, of Ethernet frames. A kind is the IP version and the opcode, with the
//! syndrome of an acknowledgement or the attribute of a connection manager's message.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Error, Result};

/// The magic number of a little-endian capture with microseconds.
const MAGIC: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];
/// The length of the file header in bytes.
const FILE_HEADER: usize = 24;
/// The length of a frame header in bytes. Offset 8 is a word with the captured length.
const FRAME_HEADER: usize = 16;
/// The length of an Ethernet header in bytes.
const ETHERNET: usize = 14;
/// The length of a UDP header in bytes.
const UDP: usize = 8;
/// The length of the BTH in bytes.
const BTH: usize = 12;
/// The opcode of an acknowledgement without the three transport bits. Its syndrome follows the BTH.
const ACKNOWLEDGE: u8 = 0x11;
/// The opcode of UD SEND only. MADs are datagrams to queue pair 1.
const DATAGRAM: u8 = 0x64;
/// The destination queue pair in the BTH.
const QPN: std::ops::Range<usize> = 5..8;
/// The offset of a MAD's attribute from the BTH: after the DETH. Attributes of the connection
/// manager are below 256.
const ATTRIBUTE: usize = BTH + 8 + 17;

/// The sort key of vectors, of which there is one per kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    ip_version: u8,
    opcode: u8,
    /// The syndrome of an RNR or other NAK, the attribute of a MAD, or 0.
    what: u8,
}

/// Writes the vectors of `capture` to `file` and returns their number.
pub(crate) fn write(capture: &Path, file: &Path, kernel: &str) -> Result<usize> {
    let bytes = fs::read(capture).at(capture)?;
    let mut kinds: BTreeMap<Kind, &[u8]> = BTreeMap::new();
    for frame in frames(&bytes) {
        if let Some((kind, packet)) = kind_of(frame) {
            kinds.entry(kind).or_insert(packet);
        }
    }
    if kinds.is_empty() {
        return Err(Error::NothingCaptured {
            capture: capture.to_owned(),
        });
    }
    let mut text = format!(
        "# Packets of the Linux kernel's rxe, {kernel}, from the IP header to the ICRC, a line each: the version\n\
         # of IP, the opcode, the syndrome of an acknowledgement or the attribute of a MAD (else 00), and the\n\
         # bytes.\n\
         # Taken by `cargo xtask rxe --capture`: two rxe devices joined by a veth pair in a guest, the first\n\
         # packet of each kind that tcpdump saw.\n"
    );
    for (kind, packet) in &kinds {
        let Kind {
            ip_version,
            opcode,
            what,
        } = kind;
        let _ = write!(text, "v{ip_version} {opcode:02x} {what:02x} ");
        for byte in *packet {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).at(parent)?;
    }
    fs::write(file, text).at(file)?;
    Ok(kinds.len())
}

/// Returns the complete frames of a capture.
fn frames(capture: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = match capture.get(..4) {
        Some(magic) if magic == MAGIC => capture.get(FILE_HEADER..).unwrap_or_default(),
        _ => &[],
    };
    std::iter::from_fn(move || {
        let length = rest.get(8..12)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let frame = rest.get(FRAME_HEADER..FRAME_HEADER + length)?;
        rest = &rest[FRAME_HEADER + length..];
        Some(frame)
    })
}

/// Returns the kind of a frame's packet, and the packet from the IP header on.
fn kind_of(frame: &[u8]) -> Option<(Kind, &[u8])> {
    let packet = frame.get(ETHERNET..)?;
    let ip_version = packet.first()? >> 4;
    let ip_header = match ip_version {
        4 => usize::from(packet.first()? & 0xf) * 4,
        6 => 40,
        _ => return None,
    };
    let length = match ip_version {
        4 => usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?])),
        _ => 40 + usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?])),
    };
    let packet = packet.get(..length)?;
    let transport = packet.get(ip_header + UDP..)?;
    let opcode = *transport.first()?;
    let what = match opcode {
        // One positive acknowledgement is sufficient, whatever its credits.
        ACKNOWLEDGE => Some(*transport.get(BTH)?).filter(|&syndrome| syndrome >= 0x20),
        DATAGRAM if transport.get(QPN)? == [0, 0, 1] => Some(*transport.get(ATTRIBUTE)?),
        _ => None,
    };
    let kind = Kind {
        ip_version,
        opcode,
        what: what.unwrap_or(0),
    };
    Some((kind, packet))
}
