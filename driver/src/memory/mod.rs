//! Program memory that queue pairs access: regions and windows, by key.
//!
//! - `access`: raw access to the program's memory, the only module that makes it.
//! - `regions`: the table of regions and windows; `window`: its entries for windows.
//! - [`mr`], [`mw`]: memory regions and memory windows. [`odp`]: on-demand paging.
//! - [`owned`]: registered memory that the library owns. [`dm`]: device memory. [`dmabuf`]: DMA
//!   buffers.

pub(crate) mod access;
pub mod dm;
pub mod dmabuf;
pub mod mr;
pub mod mw;
pub mod odp;
pub mod owned;
pub(crate) mod regions;
mod window;
