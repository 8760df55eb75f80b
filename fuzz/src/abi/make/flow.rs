//! Flows of frames to raw packet queue pairs.

use super::super::values::{Poke, poke};
use super::super::world::World;
use arbitrary::Arbitrary;
use std::ptr;
use urxe_verbs::ffi::*;

/// A flow of frames, and specifications of these types with these contents.
#[derive(Arbitrary, Debug)]
pub(crate) struct Flow {
    qp: u8,
    pokes: Vec<Poke>,
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
    pub(super) unsafe fn make(&self, world: &mut World) {
        let qp = world.pick::<ibv_qp>(self.qp);
        let counters = world.pick::<ibv_counters>(self.counters);
        // SAFETY: numbers.
        let mut attr: ibv_flow_attr = unsafe { std::mem::zeroed() };
        attr.port = 1;
        // SAFETY: as above.
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
        // In words, which are aligned for the attributes.
        let attr_len = size_of::<ibv_flow_attr>();
        let mut place = vec![0_u64; (attr_len + bytes.len()).div_ceil(8)];
        let start = place.as_mut_ptr().cast::<ibv_flow_attr>();
        let Some(create) = world.ops().ibv_create_flow else {
            return;
        };
        // SAFETY: there is room for both; then, as the caller promises, a queue pair and attributes that as many
        // specifications follow as they say.
        let made = unsafe {
            start.write(attr);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(1).cast(), bytes.len());
            create(qp, start)
        };
        let counters = if counts { counters } else { ptr::null_mut() };
        world.add("ibv_create_flow", made, &[qp.cast(), counters.cast()]);
    }
}
