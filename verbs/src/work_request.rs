//! Conversion of the parts of work requests that several calls share.

use urxe_proto::ids::LKey;
use urxe_proto::work::{SendFlags, Sge};

use super::errno::Errno;
use super::ffi::*;

pub(super) fn element_from(sge: &ibv_sge) -> Sge {
    Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: LKey(sge.lkey),
    }
}

/// Converts send flags.
///
/// # Errors
/// `EINVAL` for flags that no operation has.
pub(super) fn flags_from(flags: ibv_send_flags) -> Result<SendFlags, Errno> {
    SendFlags::from_bits(flags).ok_or(Errno(libc::EINVAL))
}
