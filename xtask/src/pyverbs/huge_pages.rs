//! Huge pages for the tests that want some: root has the kernel set a few aside, and gives them back.

use std::fs;
use std::io;

/// How many pages of 2 MiB, the size that the suite wants, the kernel has set aside.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// What the suite's tests have at one time.
const WANTED: u64 = 16;

/// Huge pages that are set aside until it is dropped.
#[derive(Debug)]
pub(super) struct HugePages {
    /// As many as the kernel found room for.
    added: u64,
}

impl HugePages {
    /// Asks for them, unless the machine has some anyway. `None` then, and where there is no such thing, or
    /// this user may not ask: the tests say themselves what they miss.
    pub(super) fn reserve() -> Option<Self> {
        let before = pool().ok()?;
        if before >= WANTED {
            return None;
        }
        set_pool(before + WANTED).ok()?;
        let added = pool().ok()?.saturating_sub(before);
        Some(Self { added })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Others may have changed the number meanwhile, so it does not become again what it was.
        let given_back = pool().and_then(|pages| set_pool(pages.saturating_sub(self.added)));
        if let Err(error) = given_back {
            let added = self.added;
            eprintln!("pyverbs: {added} huge pages stay set aside: {POOL}: {error}");
        }
    }
}

fn set_pool(pages: u64) -> io::Result<()> {
    fs::write(POOL, pages.to_string())
}

fn pool() -> io::Result<u64> {
    fs::read_to_string(POOL)?
        .trim()
        .parse()
        .map_err(io::Error::other)
}
