//! Memory that a program maps for its peer to write to.

use super::super::error::Error;
use super::super::lock;
use rustix::io::Errno;
use std::sync::{Arc, Mutex};
use urxe_driver::{Mr, Pd};
use urxe_proto::rsocket::wire::{Area, IomapEntry};

/// What is mapped.
#[derive(Debug)]
pub(super) struct Iomaps {
    pub pd: Arc<Pd>,
    mapped: Mutex<Vec<Mapped>>,
}

#[derive(Debug)]
struct Mapped {
    mr: Mr,
    /// Which of the peer's entries tells of it; none for memory that the peer is not told of.
    index: Option<u16>,
    entry: IomapEntry,
    told: bool,
}

impl Iomaps {
    pub fn new(pd: &Arc<Pd>) -> Self {
        Iomaps {
            pd: Arc::clone(pd),
            mapped: Mutex::default(),
        }
    }

    /// Maps memory that is registered, by `offset`; for the peer if it has an entry for it among
    /// `entries`.
    ///
    /// # Errors
    /// `ENOMEM` when it has none.
    pub fn add(&self, mr: Mr, offset: u64, for_peer: bool, entries: u16) -> Result<(), Error> {
        let mut mapped = lock(&self.mapped);
        let taken = |index: u16| mapped.iter().any(|other| other.index == Some(index));
        let index = match for_peer {
            true => Some(
                (0..entries)
                    .find(|index| !taken(*index))
                    .ok_or(Errno::NOMEM)?,
            ),
            false => None,
        };
        let area = Area {
            addr: mr.addr(),
            key: mr.rkey(),
            len: u32::try_from(mr.len()).map_err(|_| Errno::INVAL)?,
        };
        mapped.push(Mapped {
            mr,
            index,
            entry: IomapEntry { offset, area },
            told: index.is_none(),
        });
        Ok(())
    }

    /// Ends the mapping of this memory.
    ///
    /// # Errors
    /// `EINVAL` when it is not mapped.
    pub fn remove(&self, addr: u64, len: u64) -> Result<(), Error> {
        let mut mapped = lock(&self.mapped);
        let is_it = |mapped: &Mapped| mapped.mr.addr() == addr && mapped.mr.len() == len;
        let at = mapped.iter().position(is_it).ok_or(Errno::INVAL)?;
        mapped.remove(at);
        Ok(())
    }

    /// Has the peer told of what it does not know, in order.
    ///
    /// # Errors
    /// That of `tell`; what it was asked for is to be told again then.
    pub fn tell(
        &self,
        mut tell: impl FnMut(u16, &IomapEntry) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            // Not held while the peer is told, which may take waiting.
            let next = lock(&self.mapped)
                .iter()
                .find(|mapped| !mapped.told)
                .and_then(|mapped| Some((mapped.index?, mapped.entry)));
            let Some((index, entry)) = next else {
                return Ok(());
            };
            tell(index, &entry)?;
            for mapped in lock(&self.mapped).iter_mut() {
                mapped.told |= mapped.entry == entry;
            }
        }
    }
}
