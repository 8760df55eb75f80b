//! Where fuzzing begins: the golden packets that the kernel's rxe sent.

use std::fs;
use std::path::Path;

use super::{Error, at};

const VECTORS: &str = "proto/tests/vectors/rxe.txt";
/// Bytes of IPv4, IPv6 and UDP headers, and of an ICRC.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const ICRC: usize = 4;

/// Puts them into the corpus of a target whose inputs are packets.
pub(super) fn provide(target: &str, workspace: &Path, corpus: &Path) -> Result<(), Error> {
    if target != "packet" {
        return Ok(());
    }
    let path = workspace.join(VECTORS);
    let vectors = fs::read_to_string(&path).map_err(at(&path))?;
    for (number, packet) in vectors.lines().filter_map(packet).enumerate() {
        let file = corpus.join(format!("rxe-{number}"));
        fs::write(&file, packet).map_err(at(&file))?;
    }
    Ok(())
}

/// A packet from the BTH to the end of the pad. The last word of a line is all of it, from the IP header
/// to the ICRC.
fn packet(line: &str) -> Option<Vec<u8>> {
    if line.starts_with('#') {
        return None;
    }
    let digits = line.split(' ').next_back()?;
    let bytes: Option<Vec<u8>> = (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok())
        .collect();
    let bytes = bytes?;
    let ip = if bytes.first()? >> 4 == 4 { IPV4 } else { IPV6 };
    let end = bytes.len().checked_sub(ICRC)?;
    Some(bytes.get(ip + UDP..end)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_becomes_the_packet_in_it() {
        let line = format!(
            "v4 04 00 45{}{}aabb{}",
            "00".repeat(19),
            "11".repeat(8),
            "22".repeat(4)
        );
        assert_eq!(packet(&line), Some(vec![0xaa, 0xbb]));
        assert_eq!(packet("# v4"), None);
    }
}
