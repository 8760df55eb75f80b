//! Picks one packet of each kind out of a capture and writes them as test vectors.
//!
//! The capture is tcpdump's, of Ethernet frames. A kind is an opcode, the version of IP, and for an
//! acknowledgement its syndrome, for a message of the connection manager which one it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::error::{AtPath, Error, Result};

/// The first four bytes of a capture with microseconds, as a little-endian machine writes it.
const MAGIC: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];
/// Bytes of the header of the file.
const FILE_HEADER: usize = 24;
/// Bytes of the header of each frame; its captured length is a word at offset 8.
const FRAME_HEADER: usize = 16;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of a UDP header.
const UDP: usize = 8;
/// Bytes of the base transport header.
const BTH: usize = 12;
/// Opcodes of acknowledgements, whose syndrome follows the BTH: after the transport's own three bits,
/// ACKNOWLEDGE.
const ACKNOWLEDGE: u8 = 0x11;
/// The opcode of datagrams, of which those to queue pair 1 hold MADs.
const DATAGRAM: u8 = 0x64;
/// Where in a datagram's headers its queue pair is, from the BTH on.
const QPN: std::ops::Range<usize> = 5..8;
/// Where the attribute of a MAD is, from the BTH on: behind the datagram's own header. Those of the
/// connection manager are below 256.
const ATTRIBUTE: usize = BTH + 8 + 17;

/// What tells one vector from another; they are sorted by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    ip_version: u8,
    opcode: u8,
    /// The syndrome of an acknowledgement that refuses or delays, the attribute of a MAD; else 0.
    what: u8,
}

/// Writes the vectors found in `capture` to `file`; how many there are.
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

/// The frames of a capture, as far as it is whole.
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

/// What kind of packet a frame holds, and the packet from its IP header on.
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
        // Of positive acknowledgements one is enough, whatever credits it carries.
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
