//! Creating objects. This file has those that depend only on a device or a domain.

mod flow;
mod pair;
mod qp_init;
mod queue;

use super::harness::{Harness, set_non_blocking};
use super::values::{Bits, ByteOverwrite, Count, Length, address, poke};
use arbitrary::Arbitrary;
use libc::{c_int, c_void};
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

use flow::Flow;
pub(super) use pair::Pair;
use qp_init::QpInit;

/// An object to create, with the objects it uses.
#[derive(Arbitrary, Debug)]
pub(super) enum Create {
    Pd {
        second: bool,
    },
    ParentDomain {
        second: bool,
        pd: u8,
        td: u8,
        mask: Bits,
        /// The behaviour of the allocator, and whether its functions are provided.
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
        pokes: Vec<ByteOverwrite>,
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
        /// `None` for a range that wraps around the address space.
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
        pokes: Vec<ByteOverwrite>,
    },
    AhFromWc {
        pd: u8,
        port: u8,
        wc: Vec<ByteOverwrite>,
        header: [u8; 40],
        headless: bool,
    },
    Qp(QpInit),
    QpEx {
        second: bool,
        basic: QpInit,
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

/// The program's allocator. The context selects its behaviour.
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
        // SAFETY: the library asks for an alignment that is a power of two, and the size is a
        // multiple of it.
        _ => unsafe { libc::aligned_alloc(alignment, size.next_multiple_of(alignment)) },
    }
}

/// Frees the memory of the program's allocator.
unsafe extern "C" fn release(_: *mut ibv_pd, _: *mut c_void, memory: *mut c_void, _: u64) {
    // SAFETY: `memory` is from `aligned_alloc` in `allocate`, and the library releases it once.
    unsafe { libc::free(memory) };
}

impl Create {
    pub(super) fn run(&self, harness: &mut Harness) {
        if harness.is_full() {
            return;
        }
        // SAFETY: `pick` returns null or live objects, and each structure outlives its call.
        unsafe { self.call(harness) };
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn call(&self, harness: &mut Harness) {
        match self {
            Create::Pd { second } => {
                // SAFETY: the harness keeps the context open until its end.
                let made = unsafe { ibv_alloc_pd(harness.context(*second)) };
                harness.add("ibv_alloc_pd", made, &[]);
            }
            Create::Channel { second } => {
                // SAFETY: the harness keeps the context open until its end.
                let made = unsafe { ibv_create_comp_channel(harness.context(*second)) };
                if let Some(made) = harness.add("ibv_create_comp_channel", made, &[]) {
                    // SAFETY: `made` is a live channel.
                    set_non_blocking(unsafe { (*made).fd });
                }
            }
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::Qp(basic) => unsafe { basic.call(harness) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::Mr { .. } | Create::NullMr { .. } | Create::DmMr { .. } => unsafe {
                self.region(harness)
            },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::Cq { .. } | Create::CqEx { .. } => unsafe { self.cq(harness) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::Srq { .. } | Create::SrqEx { .. } => unsafe { self.srq(harness) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::Flow(flow) => unsafe { flow.call(harness) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::Ah { .. } | Create::AhFromWc { .. } => unsafe { self.ah(harness) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Create::QpEx { .. } | Create::OpenQp { .. } => unsafe { self.qp_ex(harness) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            _ => unsafe { self.other(harness) },
        }
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn region(&self, harness: &mut Harness) {
        match self {
            Create::Mr {
                pd,
                at,
                length,
                access,
                iova,
            } => {
                let pd = harness.pick::<ibv_pd>(*pd);
                let start = harness.memory.pointer(*at);
                let access = access.get();
                let length = match length {
                    Some(length) => harness.memory.within(*at, length.get()),
                    None => usize::MAX - usize::from(*at),
                };
                // SAFETY: `pd` is null or live. The range is within the program's memory, which
                // outlives the region, or wraps around the address space, which the call rejects.
                let made = unsafe {
                    match iova {
                        None => ibv_reg_mr(pd, start, length, access.cast_signed()),
                        Some(iova) => ibv_reg_mr_iova2(pd, start, length, *iova, access),
                    }
                };
                if harness.add("ibv_reg_mr", made, &[pd.cast()]).is_some()
                    && access & IBV_ACCESS_LOCAL_WRITE != 0
                {
                    harness.memory.allow_writes(*at, length);
                }
            }
            Create::NullMr { pd } => {
                let pd = harness.pick::<ibv_pd>(*pd);
                let Some(alloc) = harness.ops().alloc_null_mr else {
                    return;
                };
                // SAFETY: `pd` is null or live.
                let made = unsafe { alloc(pd) };
                harness.add("ibv_alloc_null_mr", made, &[pd.cast()]);
            }
            Create::DmMr {
                pd,
                dm,
                offset,
                length,
                access,
            } => {
                let (pd, dm) = (harness.pick::<ibv_pd>(*pd), harness.pick::<ibv_dm>(*dm));
                let Some(register) = harness.ops().reg_dm_mr else {
                    return;
                };
                let (offset, length) = (offset.get().into(), length.get() as usize);
                // SAFETY: `pd` and `dm` are null or live.
                let made = unsafe { register(pd, dm, offset, length, access.get()) };
                harness.add("ibv_reg_dm_mr", made, &[pd.cast(), dm.cast()]);
            }
            _ => {}
        }
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn ah(&self, harness: &mut Harness) {
        match self {
            Create::Ah { pd, pokes } => {
                let pd = harness.pick::<ibv_pd>(*pd);
                let mut attr = address(pokes);
                // SAFETY: `pd` is null or live, and `attr` outlives the call.
                let made = unsafe { ibv_create_ah(pd, &raw mut attr) };
                harness.add("ibv_create_ah", made, &[pd.cast()]);
            }
            Create::AhFromWc {
                pd,
                port,
                wc,
                header,
                headless,
            } => {
                let pd = harness.pick::<ibv_pd>(*pd);
                let mut completion = ibv_wc::zeroed();
                completion.wc_flags = IBV_WC_GRH;
                // SAFETY: all members are integers, for which any bytes are valid.
                unsafe { poke(&mut completion, wc) };
                let mut header = *header;
                let grh = match headless {
                    true => ptr::null_mut(),
                    false => header.as_mut_ptr().cast(),
                };
                // SAFETY: `pd` is null or live; `completion` and `header`, which has the length of
                // a GRH, outlive the call.
                let made = unsafe { ibv_create_ah_from_wc(pd, &raw mut completion, grh, *port) };
                harness.add("ibv_create_ah_from_wc", made, &[pd.cast()]);
            }
            _ => {}
        }
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn other(&self, harness: &mut Harness) {
        match self {
            Create::ParentDomain {
                second,
                pd,
                td,
                mask,
                allocates,
                functions,
            } => {
                let (pd, td) = (harness.pick::<ibv_pd>(*pd), harness.pick::<ibv_td>(*td));
                let mut attr = ibv_parent_domain_init_attr {
                    pd,
                    td,
                    comp_mask: mask.get(),
                    alloc: functions.0.then_some(allocate as _),
                    free: functions.1.then_some(release as _),
                    pd_context: ptr::without_provenance_mut((allocates % 4).into()),
                };
                let Some(alloc) = harness.ops().alloc_parent_domain else {
                    return;
                };
                // SAFETY: the context is open, and `attr` outlives the call.
                let made = unsafe { alloc(harness.context(*second), &raw mut attr) };
                harness.add("ibv_alloc_parent_domain", made, &[pd.cast(), td.cast()]);
            }
            Create::Td { second, mask } => {
                let mut attr = ibv_td_init_attr {
                    comp_mask: mask.get(),
                };
                let Some(alloc) = harness.ops().alloc_td else {
                    return;
                };
                // SAFETY: the context is open, and `attr` outlives the call.
                let made = unsafe { alloc(harness.context(*second), &raw mut attr) };
                harness.add("ibv_alloc_td", made, &[]);
            }
            Create::Mw { pd, kind } => {
                let pd = harness.pick::<ibv_pd>(*pd);
                let Some(alloc) = harness.ops().context.ops.alloc_mw else {
                    return;
                };
                // SAFETY: `pd` is null or live.
                let made = unsafe { alloc(pd, kind.get()) };
                harness.add("ibv_alloc_mw", made, &[pd.cast()]);
            }
            Create::Xrcd {
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
                let Some(open) = harness.ops().open_xrcd else {
                    return;
                };
                // SAFETY: the context is open, and `attr` outlives the call.
                let made = unsafe { open(harness.context(*second), &raw mut attr) };
                harness.add("ibv_open_xrcd", made, &[]);
            }
            Create::Wq {
                second,
                sizes,
                pd,
                cq,
                kind,
                mask,
                flags,
            } => {
                let (pd, cq) = (harness.pick::<ibv_pd>(*pd), harness.pick::<ibv_cq>(*cq));
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
                let Some(create) = harness.ops().create_wq else {
                    return;
                };
                // SAFETY: the context is open, the objects are null or live, and `attr` outlives
                // the call.
                let made = unsafe { create(harness.context(*second), &raw mut attr) };
                harness.add("ibv_create_wq", made, &[pd.cast(), cq.cast()]);
            }
            Create::Table {
                second,
                log,
                queues,
                mask,
            } => {
                // A valid table size requires that many entries. Larger sizes are rejected.
                let log = u32::from(log % 40);
                let count = if log > 10 { 1 } else { 1 << log };
                let mut entries: Vec<*mut ibv_wq> = (0..count)
                    .map(|index| harness.pick(queues.wrapping_add(index as u8)))
                    .collect();
                let mut attr = ibv_rwq_ind_table_init_attr {
                    log_ind_tbl_size: log,
                    ind_tbl: entries.as_mut_ptr(),
                    comp_mask: mask.get(),
                };
                let Some(create) = harness.ops().create_rwq_ind_table else {
                    return;
                };
                // SAFETY: the context is open, and `attr` and its table outlive the call.
                let made = unsafe { create(harness.context(*second), &raw mut attr) };
                let uses: Vec<*mut c_void> = entries.iter().map(|wq| wq.cast()).collect();
                harness.add("ibv_create_rwq_ind_table", made, &uses);
            }
            Create::Counters { second, mask } => {
                let mut attr = ibv_counters_init_attr {
                    comp_mask: mask.get(),
                };
                let Some(create) = harness.ops().create_counters else {
                    return;
                };
                // SAFETY: the context is open, and `attr` outlives the call.
                let made = unsafe { create(harness.context(*second), &raw mut attr) };
                harness.add("ibv_create_counters", made, &[]);
            }
            Create::Dm {
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
                let Some(alloc) = harness.ops().alloc_dm else {
                    return;
                };
                // SAFETY: the context is open, and `attr` outlives the call.
                let made = unsafe { alloc(harness.context(*second), &raw mut attr) };
                harness.add("ibv_alloc_dm", made, &[]);
            }
            Create::ImportPd { second, of } => {
                let handle = match of {
                    // SAFETY: `pick` returns null or a live domain.
                    Ok(which) => unsafe {
                        harness
                            .pick::<ibv_pd>(*which)
                            .as_ref()
                            .map_or(0, |pd| pd.handle)
                    },
                    Err(handle) => *handle,
                };
                // SAFETY: the harness keeps the context open until its end.
                let made = unsafe { ibv_import_pd(harness.context(*second), handle) };
                harness.add("ibv_import_pd", made, &[]);
            }
            Create::ImportDm { second, of } => {
                let handle = match of {
                    // SAFETY: `pick` returns null or live device memory.
                    Ok(which) => unsafe {
                        harness
                            .pick::<ibv_dm>(*which)
                            .as_ref()
                            .map_or(0, |dm| dm.handle)
                    },
                    Err(handle) => *handle,
                };
                // SAFETY: the harness keeps the context open until its end.
                let made = unsafe { ibv_import_dm(harness.context(*second), handle) };
                harness.add("ibv_import_dm", made, &[]);
            }
            _ => {}
        }
    }
}
