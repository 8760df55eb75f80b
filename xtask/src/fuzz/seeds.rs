//! Where fuzzing begins: the golden packets that the kernel's rxe sent, and long stories.

use std::fs;
use std::path::Path;

use super::{Error, at};

const VECTORS: &str = "proto/tests/vectors/rxe.txt";
/// Bytes of IPv4, IPv6 and UDP headers, and of an ICRC.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const ICRC: usize = 4;

/// Targets that tell few stories in a second: grown from nothing, they would stay short for long.
const SLOW: [&str; 2] = ["abi", "sharing"];
/// How many stories these begin with, and how long the longest is.
const STORIES: u16 = 100;
const LONGEST: u64 = 1500;

/// Puts them into the corpus: packets for the target whose inputs these are.
pub(super) fn provide(target: &str, workspace: &Path, corpus: &Path) -> Result<(), Error> {
    if SLOW.contains(&target) {
        for number in 0..STORIES {
            let file = corpus.join(format!("story-{number}"));
            fs::write(&file, story(number)).map_err(at(&file))?;
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

/// Bytes that look random, every third of them small: those are what names things that exist.
fn story(number: u16) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..next() % LONGEST)
        .map(|_| match next().to_ne_bytes() {
            [byte, choice, ..] if choice % 3 == 0 => byte % 5,
            [byte, ..] => byte,
        })
        .collect()
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
    fn stories_differ_and_are_the_same_each_time() {
        assert_ne!(story(1), story(2));
        assert_eq!(story(7), story(7));
        assert!((0..STORIES).map(story).any(|story| story.len() > 1000));
    }

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
