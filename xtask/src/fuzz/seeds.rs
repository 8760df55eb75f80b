//! The initial corpus: packets that the kernel's rxe sent, and long random inputs.

use std::fs;
use std::path::Path;

use super::error::{Error, at};

const VECTORS: &str = "proto/tests/vectors/rxe.txt";
/// The lengths of IPv4, IPv6 and UDP headers and of an ICRC, in bytes.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const ICRC: usize = 4;

/// Targets with few executions per second. Starting from an empty corpus, their inputs would stay
/// short.
const SLOW_TARGETS: [&str; 2] = ["abi", "sharing"];
/// The number of random inputs.
const INPUTS: u16 = 100;
/// Random inputs are shorter than this, in bytes.
const MAX_RANDOM_LEN: u64 = 1500;

/// Writes the initial corpus of a target.
pub(super) fn provide(target: &str, workspace: &Path, corpus: &Path) -> Result<(), Error> {
    if SLOW_TARGETS.contains(&target) {
        for number in 0..INPUTS {
            let file = corpus.join(format!("random-{number}"));
            fs::write(&file, random_input(number)).map_err(at(&file))?;
        }
    }
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

/// Returns random bytes. About a third of them are small, because small values select existing
/// objects.
fn random_input(number: u16) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..next() % MAX_RANDOM_LEN)
        .map(|_| match next().to_ne_bytes() {
            [byte, choice, ..] if choice % 3 == 0 => byte % 5,
            [byte, ..] => byte,
        })
        .collect()
}

/// Returns the packet of a line, from the BTH to the pad. The last word of a line is the packet
/// from the IP header to the ICRC.
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
    fn random_inputs_are_distinct_and_reproducible() {
        assert_ne!(random_input(1), random_input(2));
        assert_eq!(random_input(7), random_input(7));
        assert!(
            (0..INPUTS)
                .map(random_input)
                .any(|input| input.len() > 1000)
        );
    }

    #[test]
    fn packet_of_a_vector_begins_with_the_bth() {
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
