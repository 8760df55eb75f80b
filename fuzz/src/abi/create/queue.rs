//! Creating completion queues and shared receive queues.

use super::super::harness::Harness;
use super::super::values::{Count, poke};
use super::Create;
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

fn sizes(counts: [Count; 3]) -> ibv_srq_attr {
    let [max_wr, max_sge, srq_limit] = counts.map(Count::get);
    ibv_srq_attr {
        max_wr,
        max_sge,
        srq_limit,
    }
}

impl Create {
    /// # Safety
    /// All objects of `harness` must be live.
    pub(super) unsafe fn cq(&self, harness: &mut Harness) {
        match self {
            Create::Cq {
                second,
                cqe,
                channel,
                vector,
            } => {
                let channel = harness.pick::<ibv_comp_channel>(*channel);
                let cqe = cqe.get().cast_signed();
                let context = harness.context(*second);
                // SAFETY: the context is open, and the channel is null or live.
                let made = unsafe {
                    ibv_create_cq(context, cqe, ptr::null_mut(), channel, (*vector).into())
                };
                if let Some(made) = harness.add("ibv_create_cq", made, &[channel.cast()]) {
                    // SAFETY: `made` is a live queue.
                    assert!(unsafe { (*made).cqe } >= cqe);
                }
            }
            Create::CqEx {
                second,
                cqe,
                channel,
                domain,
                pokes,
            } => {
                let mut attr = ibv_cq_init_attr_ex::zeroed();
                // SAFETY: any bytes are valid for integers and raw pointers. The pointers are set
                // below.
                unsafe { poke(&mut attr, pokes) };
                let channel = harness.pick::<ibv_comp_channel>(*channel);
                let domain = harness.pick::<ibv_pd>(*domain);
                (attr.cqe, attr.channel) = (cqe.get(), channel);
                attr.parent_domain = domain;
                let Some(create) = harness.ops().create_cq_ex else {
                    return;
                };
                // SAFETY: the context is open, the objects are null or live, and `attr` outlives
                // the call.
                let made = unsafe { create(harness.context(*second), &raw mut attr) };
                let domain = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
                    0 => ptr::null_mut(),
                    _ => domain,
                };
                harness.add::<ibv_cq>(
                    "ibv_create_cq_ex",
                    made.cast(),
                    &[channel.cast(), domain.cast()],
                );
            }
            _ => {}
        }
    }

    /// # Safety
    /// All objects of `harness` must be live.
    pub(super) unsafe fn srq(&self, harness: &mut Harness) {
        match self {
            Create::Srq { pd, sizes: counts } => {
                let pd = harness.pick::<ibv_pd>(*pd);
                let wanted = sizes(*counts);
                let mut attr = ibv_srq_init_attr {
                    srq_context: ptr::null_mut(),
                    attr: wanted,
                };
                // SAFETY: `pd` is null or live, and `attr` outlives the call.
                let made = unsafe { ibv_create_srq(pd, &raw mut attr) };
                if harness.add("ibv_create_srq", made, &[pd.cast()]).is_some() {
                    assert!(attr.attr.max_wr >= wanted.max_wr);
                    assert!(attr.attr.max_sge >= wanted.max_sge);
                }
            }
            Create::SrqEx {
                second,
                sizes: counts,
                mask,
                kind,
                pd,
                xrcd,
                cq,
            } => {
                let mut attr = ibv_srq_init_attr_ex::zeroed();
                attr.attr = sizes(*counts);
                attr.comp_mask = mask.get();
                attr.srq_type = kind.get();
                (attr.pd, attr.xrcd, attr.cq) =
                    (harness.pick(*pd), harness.pick(*xrcd), harness.pick(*cq));
                let Some(create) = harness.ops().create_srq_ex else {
                    return;
                };
                // SAFETY: the context is open, the objects are null or live, and `attr` outlives
                // the call.
                let made = unsafe { create(harness.context(*second), &raw mut attr) };
                let of_xrc =
                    attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type == IBV_SRQT_XRC;
                let all = [attr.pd.cast(), attr.xrcd.cast(), attr.cq.cast()];
                let used = if of_xrc { &all[..] } else { &all[..1] };
                harness.add("ibv_create_srq_ex", made, used);
            }
            _ => {}
        }
    }
}
