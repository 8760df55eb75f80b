//! Enhanced connection establishment (ECE): vendor options of two channel adapters.
//!
//! As in the kernel, the vendor ID is in formerly reserved bits of REQ and REP, and the options are
//! in the MAD's attribute modifier.

/// Vendor options of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// The vendor's IEEE OUI, 24 bits; 0 if there are no options.
    pub vendor_id: u32,
    /// The options; their meaning is defined by the vendor.
    pub options: u32,
}

/// The mask of a vendor ID.
const VENDOR_ID: u32 = 0xff_ffff;

impl Ece {
    /// Returns the vendor ID without options; those are in the MAD header.
    pub(super) fn of_vendor(vendor_id: u32) -> Self {
        Ece {
            vendor_id: vendor_id & VENDOR_ID,
            options: 0,
        }
    }

    /// The vendor ID, truncated to its field.
    pub(super) fn vendor(self) -> u32 {
        self.vendor_id & VENDOR_ID
    }
}
