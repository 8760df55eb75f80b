//! The send quantum: the number of new PSNs that a requester may use on a shared path.

/// The unused part of the send quantum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendQuantum {
    /// New PSNs that may still be used; `None` where no quantum is required.
    left: Option<u32>,
    /// Whether a packet was withheld for lack of a quantum.
    is_needed: bool,
}

impl SendQuantum {
    /// Sets whether new PSNs need a quantum.
    pub(super) fn require(&mut self, required: bool) {
        *self = SendQuantum {
            left: required.then_some(0),
            is_needed: false,
        };
    }

    /// Whether new PSNs need a quantum.
    pub(super) fn is_required(&self) -> bool {
        self.left.is_some()
    }

    /// Raises the quantum to `psns`, the unused part included.
    pub(super) fn renew(&mut self, psns: u32) {
        if let Some(left) = &mut self.left {
            *left = psns.max(*left);
        }
        self.is_needed = false;
    }

    /// The number of new PSNs that may be used.
    pub(super) fn left(&self) -> u32 {
        self.left.unwrap_or(u32::MAX)
    }

    /// Records whether a packet was withheld for lack of a quantum.
    pub(super) fn set_needed(&mut self, needed: bool) {
        self.is_needed = needed;
    }

    /// Whether a packet was withheld for lack of a quantum.
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Deducts `psns` new PSNs that were used.
    pub(super) fn spend(&mut self, psns: u32) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(psns);
        }
    }
}
