//! The send quantum: the number of new PSNs that a requester may use on a shared path.

/// The unused part of the send quantum.
///
/// On a path that is shared within the host the driver gives the quanta, on a long path pacing
/// does.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendQuantum {
    /// New PSNs that may still be used; `u32::MAX` where no quantum is needed.
    left: u32,
    /// Whether the driver gives the quanta.
    is_required: bool,
    /// Whether a packet was withheld for lack of a quantum.
    is_needed: bool,
    /// Whether the driver has refused another quantum.
    is_refused: bool,
}

impl Default for SendQuantum {
    fn default() -> Self {
        SendQuantum {
            left: u32::MAX,
            is_required: false,
            is_needed: false,
            is_refused: false,
        }
    }
}

impl SendQuantum {
    /// Sets whether new PSNs need a quantum of the driver.
    pub(super) fn require(&mut self, required: bool) {
        *self = SendQuantum {
            left: if required { 0 } else { u32::MAX },
            is_required: required,
            ..SendQuantum::default()
        };
    }

    /// Whether new PSNs need a quantum of the driver.
    pub(super) fn is_required(&self) -> bool {
        self.is_required
    }

    /// Raises the driver's quantum to `psns`, the unused part included.
    pub(super) fn renew(&mut self, psns: u32) {
        if self.is_required {
            self.left = psns.max(self.left);
            self.is_needed = false;
            self.is_refused = false;
        }
    }

    /// Records that the driver gives no quantum now. Returns whether a part of the present one is
    /// left, for the first refusal.
    pub(super) fn refuse(&mut self) -> bool {
        !std::mem::replace(&mut self.is_refused, true) && self.left > 0
    }

    /// Whether the driver has refused another quantum, and given none since.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Sets the number of PSNs that pacing permits now, `u32::MAX` where it does not limit them.
    pub(super) fn pace(&mut self, psns: u32) {
        if !self.is_required {
            self.left = psns;
        }
    }

    /// The number of new PSNs that may be used.
    #[inline]
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Records whether a packet was withheld for lack of a quantum.
    #[inline]
    pub(super) fn set_needed(&mut self, needed: bool) {
        self.is_needed = needed;
    }

    /// Whether a packet was withheld for lack of a quantum.
    #[inline]
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Deducts `psns` new PSNs that were used.
    #[inline]
    pub(super) fn spend(&mut self, psns: u32) {
        if self.left != u32::MAX {
            self.left = self.left.saturating_sub(psns);
        }
    }
}
