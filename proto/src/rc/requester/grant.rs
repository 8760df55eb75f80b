//! How much a requester may send that it has not sent before, where the way to its peer is shared out.

/// What is left of what was granted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    /// PSNs that may still be used for the first time; `None` where nobody grants, and all may.
    left: Option<u32>,
    /// Something was not sent for want of more.
    is_wanted: bool,
}

impl Grant {
    /// From now on only what is granted may go, or all may.
    pub(super) fn require(&mut self, required: bool) {
        *self = Grant {
            left: required.then_some(0),
            is_wanted: false,
        };
    }

    /// So many PSNs may be used, those included that were left.
    pub(super) fn renew(&mut self, psns: u32) {
        if let Some(left) = &mut self.left {
            *left = psns.max(*left);
        }
        self.is_wanted = false;
    }

    /// How many PSNs may be used for the first time.
    pub(super) fn left(&self) -> u32 {
        self.left.unwrap_or(u32::MAX)
    }

    /// Whether more are wanted than are left.
    pub(super) fn set_wanted(&mut self, wanted: bool) {
        self.is_wanted = wanted;
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// So many were used for the first time.
    pub(super) fn spend(&mut self, psns: u32) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(psns);
        }
    }
}
