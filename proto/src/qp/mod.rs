//! Queue pairs: states, attributes and transitions (10.3, 11.2.4).
//!
//! `transition` has the one table of the attributes that each transition requires and permits.

mod attributes;
mod counters;
mod mask;
mod migration;
mod state;
#[cfg(test)]
mod tests;
mod transition;

pub use attributes::{AddressVector, MAX_RD_ATOMIC, PathMigState, QpAttr};
pub use counters::Counters;
pub use mask::AttrMask;
pub(crate) use migration::Migration;
pub use state::{QpState, QpType};
pub use transition::{TransitionError, transitions_to_rts};
