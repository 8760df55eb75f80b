//! Making objects: here what is made of a device or a domain alone.

mod flow;
mod pair;
mod queue;

use super::values::{Bits, Count, Length, Poke, address, poke};
use super::world::{World, do_not_wait};
use arbitrary::Arbitrary;
use libc::{c_int, c_void};
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

use flow::Flow;
use pair::Made;
pub(super) use pair::Pair;

/// What is made, of which objects.
#[derive(Arbitrary, Debug)]
pub(super) enum Make {
    Pd {
        second: bool,
    },
    ParentDomain {
        second: bool,
        pd: u8,
        td: u8,
        mask: Bits,
        /// What its allocator does, and whether there are functions at all.
        allocates: u8,
        functions: (bool, bool),
    },
    Td {
        second: bool,
        mask: Bits,
    },
    Channel {
        second: bool,
    },
    Cq {
        second: bool,
        cqe: Count,
        channel: u8,
        vector: i8,
    },
    CqEx {
        second: bool,
        cqe: Count,
        channel: u8,
        domain: u8,
        pokes: Vec<Poke>,
    },
    Srq {
        pd: u8,
        sizes: [Count; 3],
    },
    SrqEx {
        second: bool,
        sizes: [Count; 3],
        mask: Bits,
        kind: Bits,
        pd: u8,
        xrcd: u8,
        cq: u8,
    },
    Mr {
        pd: u8,
        at: u16,
        /// `None` for one that goes over the end of the address space.
        length: Option<Length>,
        access: Bits,
        iova: Option<u64>,
    },
    NullMr {
        pd: u8,
    },
    DmMr {
        pd: u8,
        dm: u8,
        offset: Length,
        length: Length,
        access: Bits,
    },
    Mw {
        pd: u8,
        kind: Bits,
    },
    Ah {
        pd: u8,
        pokes: Vec<Poke>,
    },
    AhFromWc {
        pd: u8,
        port: u8,
        wc: Vec<Poke>,
        header: [u8; 40],
        headless: bool,
    },
    Qp(Made),
    QpEx {
        second: bool,
        basic: Made,
        mask: Bits,
        xrcd: u8,
        table: u8,
        flags: Bits,
        operations: Bits,
        hash: (u8, u8, u64),
    },
    OpenQp {
        second: bool,
        xrcd: u8,
        mask: Bits,
        kind: u8,
        number: Result<u8, u32>,
    },
    Xrcd {
        second: bool,
        mask: Bits,
        flags: Bits,
        fd: u8,
    },
    Wq {
        second: bool,
        sizes: [Count; 2],
        pd: u8,
        cq: u8,
        kind: u8,
        mask: Bits,
        flags: Bits,
    },
    Table {
        second: bool,
        log: u8,
        queues: u8,
        mask: Bits,
    },
    Counters {
        second: bool,
        mask: Bits,
    },
    Flow(Flow),
    Dm {
        second: bool,
        length: Length,
        align: Bits,
        mask: Bits,
    },
    ImportPd {
        second: bool,
        of: Result<u8, u32>,
    },
    ImportDm {
        second: bool,
        of: Result<u8, u32>,
    },
}

/// The program's allocator, which does what its context says.
unsafe extern "C" fn allocate(
    _: *mut ibv_pd,
    context: *mut c_void,
    size: usize,
    alignment: usize,
    _: u64,
) -> *mut c_void {
    match context.addr() {
        0 => ptr::without_provenance_mut(IBV_ALLOCATOR_USE_DEFAULT),
        1 => ptr::null_mut(),
        // SAFETY: a power of two, and a multiple of it.
        _ => unsafe { libc::aligned_alloc(alignment, size.next_multiple_of(alignment)) },
    }
}

unsafe extern "C" fn release(_: *mut ibv_pd, _: *mut c_void, memory: *mut c_void, _: u64) {
    // SAFETY: what `allocate` gave, which is given back once.
    unsafe { libc::free(memory) };
}

impl Make {
    pub(super) fn tell(&self, world: &mut World) {
        if world.is_full() {
            return;
        }
        // SAFETY: here and in what is called, pointers are null, or objects that live, or structures on the stack.
        unsafe { self.make(world) };
    }

    unsafe fn make(&self, world: &mut World) {
        match self {
            Make::Pd { second } => {
                // SAFETY: the caller's promise, as below.
                let made = unsafe { ibv_alloc_pd(world.context(*second)) };
                world.add("ibv_alloc_pd", made, &[]);
            }
            Make::Channel { second } => {
                // SAFETY: as above.
                let made = unsafe { ibv_create_comp_channel(world.context(*second)) };
                if let Some(made) = world.add("ibv_create_comp_channel", made, &[]) {
                    // SAFETY: it was just made.
                    do_not_wait(unsafe { (*made).fd });
                }
            }
            // SAFETY: as above.
            Make::Qp(basic) => unsafe { basic.make(world) },
            // SAFETY: as above.
            Make::Mr { .. } | Make::NullMr { .. } | Make::DmMr { .. } => unsafe {
                self.region(world)
            },
            // SAFETY: as above.
            Make::Cq { .. } | Make::CqEx { .. } => unsafe { self.cq(world) },
            // SAFETY: as above.
            Make::Srq { .. } | Make::SrqEx { .. } => unsafe { self.srq(world) },
            // SAFETY: as above.
            Make::Flow(flow) => unsafe { flow.make(world) },
            // SAFETY: as above.
            Make::Ah { .. } | Make::AhFromWc { .. } => unsafe { self.ah(world) },
            // SAFETY: as above.
            Make::QpEx { .. } | Make::OpenQp { .. } => unsafe { self.qp_ex(world) },
            // SAFETY: as above.
            _ => unsafe { self.other(world) },
        }
    }

    unsafe fn region(&self, world: &mut World) {
        match self {
            Make::Mr {
                pd,
                at,
                length,
                access,
                iova,
            } => {
                let pd = world.pick::<ibv_pd>(*pd);
                let start = world.memory.pointer(*at);
                let access = access.get();
                let length = match length {
                    Some(length) => world.memory.within(*at, length.get()),
                    None => usize::MAX - usize::from(*at),
                };
                // SAFETY: the caller's promise, as below; the memory lives as long as the world.
                let made = unsafe {
                    match iova {
                        None => ibv_reg_mr(pd, start, length, access.cast_signed()),
                        Some(iova) => ibv_reg_mr_iova2(pd, start, length, *iova, access),
                    }
                };
                if world.add("ibv_reg_mr", made, &[pd.cast()]).is_some()
                    && access & IBV_ACCESS_LOCAL_WRITE != 0
                {
                    world.memory.grant(*at, length);
                }
            }
            Make::NullMr { pd } => {
                let pd = world.pick::<ibv_pd>(*pd);
                let Some(alloc) = world.ops().alloc_null_mr else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { alloc(pd) };
                world.add("ibv_alloc_null_mr", made, &[pd.cast()]);
            }
            Make::DmMr {
                pd,
                dm,
                offset,
                length,
                access,
            } => {
                let (pd, dm) = (world.pick::<ibv_pd>(*pd), world.pick::<ibv_dm>(*dm));
                let Some(register) = world.ops().reg_dm_mr else {
                    return;
                };
                let (offset, length) = (offset.get().into(), length.get() as usize);
                // SAFETY: as above.
                let made = unsafe { register(pd, dm, offset, length, access.get()) };
                world.add("ibv_reg_dm_mr", made, &[pd.cast(), dm.cast()]);
            }
            _ => {}
        }
    }

    unsafe fn ah(&self, world: &mut World) {
        match self {
            Make::Ah { pd, pokes } => {
                let pd = world.pick::<ibv_pd>(*pd);
                let mut attr = address(pokes);
                // SAFETY: the caller's promise, as below.
                let made = unsafe { ibv_create_ah(pd, &raw mut attr) };
                world.add("ibv_create_ah", made, &[pd.cast()]);
            }
            Make::AhFromWc {
                pd,
                port,
                wc,
                header,
                headless,
            } => {
                let pd = world.pick::<ibv_pd>(*pd);
                let mut shown = ibv_wc::zeroed();
                shown.wc_flags = IBV_WC_GRH;
                // SAFETY: it is numbers.
                unsafe { poke(&mut shown, wc) };
                let mut header = *header;
                let grh = match headless {
                    true => ptr::null_mut(),
                    false => header.as_mut_ptr().cast(),
                };
                // SAFETY: as above.
                let made = unsafe { ibv_create_ah_from_wc(pd, &raw mut shown, grh, *port) };
                world.add("ibv_create_ah_from_wc", made, &[pd.cast()]);
            }
            _ => {}
        }
    }

    unsafe fn other(&self, world: &mut World) {
        match self {
            Make::ParentDomain {
                second,
                pd,
                td,
                mask,
                allocates,
                functions,
            } => {
                let (pd, td) = (world.pick::<ibv_pd>(*pd), world.pick::<ibv_td>(*td));
                let mut attr = ibv_parent_domain_init_attr {
                    pd,
                    td,
                    comp_mask: mask.get(),
                    alloc: functions.0.then_some(allocate as _),
                    free: functions.1.then_some(release as _),
                    pd_context: ptr::without_provenance_mut((allocates % 4).into()),
                };
                let Some(alloc) = world.ops().alloc_parent_domain else {
                    return;
                };
                // SAFETY: the caller's promise, as below.
                let made = unsafe { alloc(world.context(*second), &raw mut attr) };
                world.add("ibv_alloc_parent_domain", made, &[pd.cast(), td.cast()]);
            }
            Make::Td { second, mask } => {
                let mut attr = ibv_td_init_attr {
                    comp_mask: mask.get(),
                };
                let Some(alloc) = world.ops().alloc_td else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { alloc(world.context(*second), &raw mut attr) };
                world.add("ibv_alloc_td", made, &[]);
            }
            Make::Mw { pd, kind } => {
                let pd = world.pick::<ibv_pd>(*pd);
                let Some(alloc) = world.ops().context.ops.alloc_mw else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { alloc(pd, kind.get()) };
                world.add("ibv_alloc_mw", made, &[pd.cast()]);
            }
            Make::Xrcd {
                second,
                mask,
                flags,
                fd,
            } => {
                let fd: c_int = match fd % 4 {
                    0 => -1,
                    1 => 0,
                    2 => 100_000,
                    _ => -2,
                };
                let mut attr = ibv_xrcd_init_attr {
                    comp_mask: mask.get(),
                    fd,
                    oflags: match flags.get() % 4 {
                        0 => libc::O_CREAT,
                        1 => libc::O_CREAT | libc::O_EXCL,
                        2 => 0,
                        _ => flags.get().cast_signed(),
                    },
                };
                let Some(open) = world.ops().open_xrcd else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { open(world.context(*second), &raw mut attr) };
                world.add("ibv_open_xrcd", made, &[]);
            }
            Make::Wq {
                second,
                sizes,
                pd,
                cq,
                kind,
                mask,
                flags,
            } => {
                let (pd, cq) = (world.pick::<ibv_pd>(*pd), world.pick::<ibv_cq>(*cq));
                let mut attr = ibv_wq_init_attr {
                    wq_context: ptr::null_mut(),
                    wq_type: (kind / 0x40).into(),
                    max_wr: sizes[0].get(),
                    max_sge: sizes[1].get(),
                    pd,
                    cq,
                    comp_mask: mask.get(),
                    create_flags: flags.get(),
                };
                let Some(create) = world.ops().create_wq else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { create(world.context(*second), &raw mut attr) };
                world.add("ibv_create_wq", made, &[pd.cast(), cq.cast()]);
            }
            Make::Table {
                second,
                log,
                queues,
                mask,
            } => {
                // A table that is taken has as many entries as are read, by the program's duty.
                let log = u32::from(log % 40);
                let count = if log > 10 { 1 } else { 1 << log };
                let mut entries: Vec<*mut ibv_wq> = (0..count)
                    .map(|index| world.pick(queues.wrapping_add(index as u8)))
                    .collect();
                let mut attr = ibv_rwq_ind_table_init_attr {
                    log_ind_tbl_size: log,
                    ind_tbl: entries.as_mut_ptr(),
                    comp_mask: mask.get(),
                };
                let Some(create) = world.ops().create_rwq_ind_table else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { create(world.context(*second), &raw mut attr) };
                let uses: Vec<*mut c_void> = entries.iter().map(|wq| wq.cast()).collect();
                world.add("ibv_create_rwq_ind_table", made, &uses);
            }
            Make::Counters { second, mask } => {
                let mut attr = ibv_counters_init_attr {
                    comp_mask: mask.get(),
                };
                let Some(create) = world.ops().create_counters else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { create(world.context(*second), &raw mut attr) };
                world.add("ibv_create_counters", made, &[]);
            }
            Make::Dm {
                second,
                length,
                align,
                mask,
            } => {
                let mut attr = ibv_alloc_dm_attr {
                    length: length.get() as usize,
                    log_align_req: align.get(),
                    comp_mask: mask.get(),
                };
                let Some(alloc) = world.ops().alloc_dm else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { alloc(world.context(*second), &raw mut attr) };
                world.add("ibv_alloc_dm", made, &[]);
            }
            Make::ImportPd { second, of } => {
                let handle = match of {
                    // SAFETY: what is picked is null or lives.
                    Ok(which) => unsafe {
                        world
                            .pick::<ibv_pd>(*which)
                            .as_ref()
                            .map_or(0, |pd| pd.handle)
                    },
                    Err(handle) => *handle,
                };
                // SAFETY: as above.
                let made = unsafe { ibv_import_pd(world.context(*second), handle) };
                world.add("ibv_import_pd", made, &[]);
            }
            Make::ImportDm { second, of } => {
                let handle = match of {
                    // SAFETY: what is picked is null or lives.
                    Ok(which) => unsafe {
                        world
                            .pick::<ibv_dm>(*which)
                            .as_ref()
                            .map_or(0, |dm| dm.handle)
                    },
                    Err(handle) => *handle,
                };
                // SAFETY: as above.
                let made = unsafe { ibv_import_dm(world.context(*second), handle) };
                world.add("ibv_import_dm", made, &[]);
            }
            _ => {}
        }
    }
}
