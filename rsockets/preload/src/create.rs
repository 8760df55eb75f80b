//! Creating rsockets.

use std::env;
use std::ffi::c_int;
use std::sync::OnceLock;

use crate::rdma;
use crate::side::Side;

/// Returns the sizes in the environment, by the number of the option.
fn requested_sizes() -> &'static [(c_int, c_int)] {
    static REQUESTED_SIZES: OnceLock<Vec<(c_int, c_int)>> = OnceLock::new();
    REQUESTED_SIZES.get_or_init(|| {
        let names = [(0, "RS_SQ_SIZE"), (1, "RS_RQ_SIZE"), (2, "RS_INLINE")];
        let wish = |(option, name)| {
            let value = env::var(name).ok()?.trim().parse().ok()?;
            (value != 0).then_some((option, value))
        };
        names.into_iter().filter_map(wish).collect()
    })
}

/// Creates an rsocket with the sizes in the environment.
pub(crate) fn make_rsocket(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    type Make = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    // SAFETY: `rsocket` has this type and no further preconditions.
    let rsocket = unsafe {
        let function = rdma::RSOCKET.get::<Make>()?;
        rdma::inside(|| function(domain, kind, protocol))
    };
    if rsocket < 0 {
        return None;
    }
    for (option, value) in requested_sizes() {
        Side::Rdma.set(rsocket, rdma::SOL_RDMA, *option, *value);
    }
    Some(rsocket)
}
