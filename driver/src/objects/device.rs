//! Calls on devices that concern all queue pairs of the process.

use crate::device::Device;
use crate::path;

impl Device {
    /// Returns the numbers of received packets with a wrong partition key and with a wrong queue
    /// key, for queue pairs of this process (`P_KeyViolations` and `Q_KeyViolations` of 14.2.5.6;
    /// these counters are wider than the 16 bits there).
    pub fn key_violations(&self) -> (u64, u64) {
        let counted = path::get().totals_of(self.name()).transport;
        (counted.bad_pkey, counted.bad_qkey)
    }
}
