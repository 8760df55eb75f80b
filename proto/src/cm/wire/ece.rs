//! Enhanced connection establishment: what the vendors of two channel adapters have to tell each other.
//!
//! The vendor is in bits of REQ and REP that were reserved, the options are in the MAD's attribute modifier, as
//! the kernel has them.

/// A vendor's options for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// The vendor's IEEE number, 24 bits; 0 where there are no options.
    pub vendor_id: u32,
    /// What they mean is for the vendor to know.
    pub options: u32,
}

/// The bits of a vendor's number.
const VENDOR_ID: u32 = 0xff_ffff;

impl Ece {
    /// The options of a vendor, without those that the MAD's header has.
    pub(super) fn of_vendor(vendor_id: u32) -> Self {
        Ece {
            vendor_id: vendor_id & VENDOR_ID,
            options: 0,
        }
    }

    /// The vendor's number, as wide as its field.
    pub(super) fn vendor(self) -> u32 {
        self.vendor_id & VENDOR_ID
    }
}
