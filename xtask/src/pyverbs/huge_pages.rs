//! Reserves huge pages for tests that need them, if running as root, and releases them.

use std::fs;
use std::io;

/// The number of reserved pages of 2 MiB, the size that the suite uses.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// The number of pages that the tests use at one time.
const WANTED: u64 = 16;

/// Reserved huge pages; released when dropped.
#[derive(Debug)]
pub(super) struct HugePages {
    /// The number of pages that the kernel could reserve.
    added: u64,
}

impl HugePages {
    /// Reserves pages, unless some are reserved already. Returns `None` then, and where the kernel
    /// or the privileges do not allow it. The tests check for huge pages themselves.
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
        // Subtracts the pages, because others may have changed the number.
        let given_back = pool().and_then(|pages| set_pool(pages.saturating_sub(self.added)));
        if let Err(error) = given_back {
            let added = self.added;
            eprintln!("pyverbs: {added} huge pages remain reserved: {POOL}: {error}");
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
