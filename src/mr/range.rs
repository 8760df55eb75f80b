//! Ranges of bytes of a region.
#![forbid(unsafe_code)]

use std::ops::{Bound, RangeBounds};
use urxe_driver::owned::{RangeError, check_range};

/// The offset and length of a range within `len` bytes.
pub(super) fn bounds(
    range: &impl RangeBounds<usize>,
    len: usize,
) -> Result<(usize, usize), RangeError> {
    let wide = |bound: Bound<&usize>| bound.map(|at| *at as u64);
    let range = (wide(range.start_bound()), wide(range.end_bound()));
    let (offset, part) = bounds64(&range, len as u64)?;
    Ok((offset as usize, part as usize))
}

/// See [`bounds`].
pub(super) fn bounds64(range: &impl RangeBounds<u64>, len: u64) -> Result<(u64, u64), RangeError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len.max(start),
    };
    let part = end
        .checked_sub(start)
        .ok_or(RangeError::Backwards { start, end })?;
    check_range(start, part, len)?;
    Ok((start, part))
}
