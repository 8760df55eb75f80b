//! Memory that a program maps for writes of its peer.

use super::super::error::Error;
use super::super::sync::lock;
use rustix::io::Errno;
use std::sync::{Arc, Mutex};
use urxe_driver::{Mr, Pd};
use urxe_proto::rsocket::wire::{Area, IomapEntry};

/// The mapped memory.
#[derive(Debug)]
pub(super) struct Iomaps {
    pub pd: Arc<Pd>,
    mapped: Mutex<Vec<Mapped>>,
}

#[derive(Debug)]
struct Mapped {
    mr: Mr,
    /// The index in the peer's list; `None` for memory that is not announced.
    index: Option<u16>,
    entry: IomapEntry,
    announced: bool,
}

impl Iomaps {
    pub fn new(pd: &Arc<Pd>) -> Self {
        Iomaps {
            pd: Arc::clone(pd),
            mapped: Mutex::default(),
        }
    }

    /// Maps registered memory at `offset`; with `for_peer` assigns one of the peer's `entries`.
    ///
    /// # Errors
    /// `ENOMEM` if all entries are in use.
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
            announced: index.is_none(),
        });
        Ok(())
    }

    /// Removes a mapping.
    ///
    /// # Errors
    /// `EINVAL` if the memory is not mapped.
    pub fn remove(&self, addr: u64, len: u64) -> Result<(), Error> {
        let mut mapped = lock(&self.mapped);
        let is_it = |mapped: &Mapped| mapped.mr.addr() == addr && mapped.mr.len() == len;
        let at = mapped.iter().position(is_it).ok_or(Errno::INVAL)?;
        mapped.remove(at);
        Ok(())
    }

    /// Announces new mappings to the peer, in order.
    ///
    /// # Errors
    /// Those of `announce`; the mapping is announced again by the next call.
    pub fn announce(
        &self,
        mut announce: impl FnMut(u16, &IomapEntry) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            // The lock is not held during the announcement, which may wait.
            let next = lock(&self.mapped)
                .iter()
                .find(|mapped| !mapped.announced)
                .and_then(|mapped| Some((mapped.index?, mapped.entry)));
            let Some((index, entry)) = next else {
                return Ok(());
            };
            announce(index, &entry)?;
            for mapped in lock(&self.mapped).iter_mut() {
                mapped.announced |= mapped.entry == entry;
            }
        }
    }
}
