//! On-demand paging: its availability, and prefetching of pages.
//!
//! The driver accesses memory through the page table of its process and has none of a device. A
//! page that is present for the processor needs no further preparation.

use super::access::{self, PinError};
use crate::memory::regions::{Backing, regions};
use crate::pd::Pd;
use urxe_proto::host::Access;
use urxe_proto::work::Sge;

pub use super::access::can_fault as is_available;

/// The expected use of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// It will be read.
    Read,
    /// It will be written.
    Write,
    /// Only pages that are present are to be prepared; absent pages are not to be populated.
    Present,
}

/// Errors of advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// No region with on-demand paging has the key: ENOENT.
    #[error("no memory region with on-demand paging has the key {0:#x}")]
    NoRegion(u32),
    /// A memory window has the key: EINVAL.
    #[error("the key {0:#x} is a memory window's, not a region's")]
    Window(u32),
    /// The region belongs to another protection domain: EPERM.
    #[error("the region belongs to another protection domain")]
    Domain,
    /// The region has no local write access: EPERM.
    #[error("the region has no local write access")]
    NotWritable,
    /// The range is not within the region: EFAULT.
    #[error("the range lies outside the memory region")]
    Range,
    /// The memory cannot be used: EFAULT or ENOMEM.
    #[error(transparent)]
    Memory(#[from] PinError),
}

impl AdviseError {
    /// Returns the error number that verbs applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoRegion(_) => libc::ENOENT,
            Self::Window(_) => libc::EINVAL,
            Self::Domain | Self::NotWritable => libc::EPERM,
            Self::Range | Self::Memory(PinError::Fault) => libc::EFAULT,
            Self::Memory(PinError::NoMemory) => libc::ENOMEM,
        }
    }
}

/// Applies advice to parts of regions with on-demand paging. Without `wait`, errors of populating
/// the pages are ignored: on hardware, that prefetch is asynchronous.
///
/// # Errors
/// See [`AdviseError`]. Parts before the wrong one may have been populated.
pub fn advise(pd: &Pd, advice: Advice, parts: &[Sge], wait: bool) -> Result<(), AdviseError> {
    for part in parts {
        let addr = find(pd, advice, part)?;
        if advice == Advice::Present {
            continue;
        }
        // The table is not locked here: populating takes long, and is harmless for a range whose
        // region is deregistered meanwhile.
        let brought = access::populate(addr, u64::from(part.length), advice == Advice::Write);
        if wait {
            brought?;
        }
    }
    Ok(())
}

/// Returns the address of a part in the process.
fn find(pd: &Pd, advice: Advice, part: &Sge) -> Result<u64, AdviseError> {
    let held = regions();
    let table = held.table();
    let Some(region) = table.exactly(part.lkey) else {
        return Err(match table.window(part.lkey.0) {
            Ok(_) => AdviseError::Window(part.lkey.0),
            Err(_) => AdviseError::NoRegion(part.lkey.0),
        });
    };
    if region.backing != Backing::OnDemand {
        return Err(AdviseError::NoRegion(part.lkey.0));
    }
    if region.pd != pd.id() {
        return Err(AdviseError::Domain);
    }
    if advice == Advice::Write && !region.access.contains(Access::LOCAL_WRITE) {
        return Err(AdviseError::NotWritable);
    }
    let place = region.locate(part.addr, u64::from(part.length));
    place
        .map(|place| place.addr)
        .map_err(|_| AdviseError::Range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mr::Mr;
    use crate::memory::mw::{Mw, WindowType};
    use std::sync::Arc;
    use urxe_proto::ids::LKey;

    const ON_DEMAND: Access = Access::LOCAL_WRITE.union(Access::ON_DEMAND);

    /// Two pages; the second one is inaccessible.
    struct Fixture {
        mr: Mr,
        pd: Arc<Pd>,
        page: usize,
        _map: memmap2::MmapMut,
    }

    impl Fixture {
        fn new(access: Access) -> Self {
            let (pd, page) = (Pd::new(), rustix::param::page_size());
            let map = memmap2::MmapMut::map_anon(2 * page).unwrap();
            let addr = map.as_ptr() as u64;
            // SAFETY: the page belongs to `map`, and nothing refers to it.
            assert_eq!(0, unsafe {
                libc::mprotect(
                    (addr as usize + page) as *mut libc::c_void,
                    page,
                    libc::PROT_NONE,
                )
            });
            let len = match access.contains(Access::ON_DEMAND) {
                true => 2 * page,
                false => page,
            };
            // SAFETY: `_map` is dropped after `mr`, and only tests access its memory.
            let mr = unsafe { Mr::register(&pd, addr, len as u64, addr, access) }.unwrap();
            Fixture {
                mr,
                pd,
                page,
                _map: map,
            }
        }

        fn part(&self, offset: usize, length: usize) -> Sge {
            Sge {
                addr: self.mr.addr() + offset as u64,
                length: length as u32,
                lkey: self.mr.lkey(),
            }
        }

        fn advise(&self, advice: Advice, part: Sge, wait: bool) -> i32 {
            match advise(&self.pd, advice, &[self.part(0, 8), part], wait) {
                Ok(()) => 0,
                Err(error) => error.errno(),
            }
        }
    }

    #[test]
    fn prefetch_populates_memory_and_reports_unmapped_ranges() {
        let fixture = Fixture::new(ON_DEMAND);
        let (good, bad) = (
            fixture.part(0, fixture.page),
            fixture.part(fixture.page - 1, 2),
        );
        for advice in [Advice::Read, Advice::Write, Advice::Present] {
            assert_eq!(fixture.advise(advice, good, true), 0);
            assert_eq!(fixture.advise(advice, bad, false), 0);
        }
        assert_eq!(fixture.advise(Advice::Read, bad, true), libc::EFAULT);
        assert_eq!(fixture.advise(Advice::Write, bad, true), libc::EFAULT);
        assert_eq!(fixture.advise(Advice::Present, bad, true), 0);
    }

    #[test]
    fn parts_must_lie_in_on_demand_regions_of_the_domain() {
        let fixture = Fixture::new(ON_DEMAND);
        let outside = fixture.part(fixture.page, fixture.page + 1);
        assert_eq!(
            fixture.advise(Advice::Present, outside, false),
            libc::EFAULT
        );
        let part = fixture.part(0, 8);
        let other_key = Sge {
            lkey: LKey(part.lkey.0 ^ 1),
            ..part
        };
        assert_eq!(fixture.advise(Advice::Read, other_key, false), libc::ENOENT);
        let window = Mw::allocate(&fixture.pd, WindowType::One);
        let window_key = Sge {
            lkey: LKey(window.rkey().0),
            ..part
        };
        assert_eq!(
            fixture.advise(Advice::Read, window_key, false),
            libc::EINVAL
        );
        let other = Fixture::new(ON_DEMAND);
        assert_eq!(
            fixture.advise(Advice::Read, other.part(0, 8), false),
            libc::EPERM
        );
        let pinned = Fixture::new(Access::LOCAL_WRITE);
        assert_eq!(
            pinned.advise(Advice::Read, pinned.part(0, 8), true),
            libc::ENOENT
        );
    }

    #[test]
    fn scatter_needs_local_write() {
        let fixture = Fixture::new(Access::ON_DEMAND);
        let part = fixture.part(0, 8);
        assert_eq!(fixture.advise(Advice::Read, part, true), 0);
        assert_eq!(fixture.advise(Advice::Write, part, true), libc::EPERM);
    }
}
