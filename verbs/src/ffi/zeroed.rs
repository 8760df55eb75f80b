//! Structures that are initialized to zeros, as in C programs.

use core::mem::MaybeUninit;

use super::*;

/// Types for which all zero bytes are a valid value.
///
/// # Safety
/// Every member must be an integer, a raw pointer, an optional function pointer, a synchronization
/// object of the C library whose static initializer is all zeros, or a structure, union or array of
/// these.
pub unsafe trait Zeroed: Sized {
    /// Returns the value of all zero bytes.
    fn zeroed() -> Self {
        // SAFETY: all zero bytes are a valid value of `Self`: the contract of the trait, section
        // Safety.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

macro_rules! zeroed {
    ($($name:path),* $(,)?) => {
        // SAFETY: every member of these C structures is of a type that the trait's section Safety
        // lists.
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
