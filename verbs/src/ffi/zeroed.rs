//! Structures that begin as zeros, as C programs begin them: most of their members stay so.

use core::mem::MaybeUninit;

use super::*;

/// Types of which all zero bytes are a value.
///
/// # Safety
/// Every member is an integer, a raw pointer, an optional function pointer, a C library's
/// synchronization object that begins as zeros, or made of such.
pub unsafe trait Zeroed: Sized {
    /// All zero bytes.
    fn zeroed() -> Self {
        // SAFETY: that is what the trait says.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

macro_rules! zeroed {
    ($($name:path),* $(,)?) => {
        // SAFETY: their members, above in this directory, are as the trait demands.
        $(unsafe impl Zeroed for $name {})*
    };
}

zeroed!(
    ibv_ah,
    ibv_ah_attr,
    ibv_comp_channel,
    ibv_context,
    ibv_cq,
    ibv_cq_ex,
    ibv_cq_init_attr_ex,
    ibv_device,
    ibv_device_attr,
    ibv_device_attr_ex,
    ibv_gid_entry,
    ibv_mr,
    ibv_mw,
    ibv_pd,
    ibv_port_attr,
    ibv_qp,
    ibv_qp_attr,
    ibv_qp_ex,
    ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
    ibv_srq,
    ibv_srq_init_attr_ex,
    ibv_wc,
    ibv_wq,
    ibv_xrcd,
    verbs_context,
    verbs_device,
    rdma_cm_event,
    rdma_cm_id,
    libc::addrinfo,
    libc::sockaddr_in,
    libc::sockaddr_in6,
    libc::sockaddr_storage,
);
