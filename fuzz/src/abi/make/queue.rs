//! Making queues: of completions, and shared ones of receives.

use super::super::values::{Count, poke};
use super::super::world::World;
use super::Make;
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

impl Make {
    pub(super) unsafe fn cq(&self, world: &mut World) {
        match self {
            Make::Cq {
                second,
                cqe,
                channel,
                vector,
            } => {
                let channel = world.pick::<ibv_comp_channel>(*channel);
                let cqe = cqe.get().cast_signed();
                let context = world.context(*second);
                // SAFETY: the caller's promise, as below.
                let made = unsafe {
                    ibv_create_cq(context, cqe, ptr::null_mut(), channel, (*vector).into())
                };
                if let Some(made) = world.add("ibv_create_cq", made, &[channel.cast()]) {
                    // SAFETY: it was just made.
                    assert!(unsafe { (*made).cqe } >= cqe);
                }
            }
            Make::CqEx {
                second,
                cqe,
                channel,
                domain,
                pokes,
            } => {
                let mut attr = ibv_cq_init_attr_ex::zeroed();
                // SAFETY: numbers; the pointers in it are set afterwards.
                unsafe { poke(&mut attr, pokes) };
                let channel = world.pick::<ibv_comp_channel>(*channel);
                let domain = world.pick::<ibv_pd>(*domain);
                (attr.cqe, attr.channel) = (cqe.get(), channel);
                attr.parent_domain = domain;
                let Some(create) = world.ops().create_cq_ex else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { create(world.context(*second), &raw mut attr) };
                let domain = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
                    0 => ptr::null_mut(),
                    _ => domain,
                };
                world.add::<ibv_cq>(
                    "ibv_create_cq_ex",
                    made.cast(),
                    &[channel.cast(), domain.cast()],
                );
            }
            _ => {}
        }
    }

    pub(super) unsafe fn srq(&self, world: &mut World) {
        match self {
            Make::Srq { pd, sizes: counts } => {
                let pd = world.pick::<ibv_pd>(*pd);
                let wanted = sizes(*counts);
                let mut attr = ibv_srq_init_attr {
                    srq_context: ptr::null_mut(),
                    attr: wanted,
                };
                // SAFETY: the caller's promise, as below.
                let made = unsafe { ibv_create_srq(pd, &raw mut attr) };
                if world.add("ibv_create_srq", made, &[pd.cast()]).is_some() {
                    assert!(attr.attr.max_wr >= wanted.max_wr);
                    assert!(attr.attr.max_sge >= wanted.max_sge);
                }
            }
            Make::SrqEx {
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
                    (world.pick(*pd), world.pick(*xrcd), world.pick(*cq));
                let Some(create) = world.ops().create_srq_ex else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { create(world.context(*second), &raw mut attr) };
                let of_xrc =
                    attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type == IBV_SRQT_XRC;
                let all = [attr.pd.cast(), attr.xrcd.cast(), attr.cq.cast()];
                let used = if of_xrc { &all[..] } else { &all[..1] };
                world.add("ibv_create_srq_ex", made, used);
            }
            _ => {}
        }
    }
}
