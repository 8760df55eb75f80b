//! Creating flows to raw packet queue pairs.

use super::super::harness::Harness;
use super::super::values::{ByteOverwrite, poke};
use arbitrary::Arbitrary;
use std::ptr;
use urxe_verbs::ffi::*;

/// A flow with specifications of these types and contents.
#[derive(Arbitrary, Debug)]
pub(crate) struct Flow {
    qp: u8,
    pokes: Vec<ByteOverwrite>,
    specs: Vec<(u8, Vec<u8>)>,
    counters: u8,
}

const SPECS: [ibv_flow_spec_type; 9] = [
    IBV_FLOW_SPEC_ETH,
    IBV_FLOW_SPEC_IPV4,
    IBV_FLOW_SPEC_IPV4_EXT,
    IBV_FLOW_SPEC_IPV6,
    IBV_FLOW_SPEC_TCP,
    IBV_FLOW_SPEC_UDP,
    IBV_FLOW_SPEC_ACTION_DROP,
    IBV_FLOW_SPEC_VXLAN_TUNNEL,
    77,
];

impl Flow {
    /// # Safety
    /// All objects of `harness` must be live.
    pub(super) unsafe fn call(&self, harness: &mut Harness) {
        let qp = harness.pick::<ibv_qp>(self.qp);
        let counters = harness.pick::<ibv_counters>(self.counters);
        // SAFETY: all members are integers, for which zeros are valid.
        let mut attr: ibv_flow_attr = unsafe { std::mem::zeroed() };
        attr.port = 1;
        // SAFETY: all members are integers, for which any bytes are valid.
        unsafe { poke(&mut attr, &self.pokes) };
        let specs = &self.specs[..self.specs.len().min(8)];
        attr.num_of_specs = specs.len() as u8;
        let mut bytes = Vec::new();
        let mut counts = false;
        for (kind, body) in specs {
            let (kind, body) = match kind % 10 {
                9 => (
                    IBV_FLOW_SPEC_ACTION_COUNT,
                    counters.expose_provenance().to_ne_bytes().to_vec(),
                ),
                other => (SPECS[usize::from(other)], body.clone()),
            };
            counts |= kind == IBV_FLOW_SPEC_ACTION_COUNT;
            let size = 8 + body.len().min(1000) as u16;
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&size.to_ne_bytes());
            bytes.extend_from_slice(&[0; 2]);
            bytes.extend_from_slice(&body[..usize::from(size) - 8]);
        }
        // The attributes need the alignment of a u64.
        let attr_len = size_of::<ibv_flow_attr>();
        let mut place = vec![0_u64; (attr_len + bytes.len()).div_ceil(8)];
        let start = place.as_mut_ptr().cast::<ibv_flow_attr>();
        let Some(create) = harness.ops().ibv_create_flow else {
            return;
        };
        // SAFETY: `place` has room for the attributes and the specifications, and is aligned for
        // the attributes. `qp` is null or live. `num_of_specs` is set after
        // `poke`, so that many specifications follow, each with its size.
        let made = unsafe {
            start.write(attr);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(1).cast(), bytes.len());
            create(qp, start)
        };
        let counters = if counts { counters } else { ptr::null_mut() };
        harness.add("ibv_create_flow", made, &[qp.cast(), counters.cast()]);
    }
}
