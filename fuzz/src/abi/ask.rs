//! Asking about objects.

use super::values::{Bits, Element, Poke, poke};
use super::world::{World, done, done_by_errno};
use arbitrary::Arbitrary;
use libc::c_int;
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

#[derive(Arbitrary, Debug)]
pub(super) enum Ask {
    Qp {
        qp: u8,
        mask: Bits,
    },
    Srq {
        srq: u8,
    },
    SrqNumber {
        srq: u8,
    },
    Device {
        second: bool,
        size: u16,
        mask: Bits,
    },
    Port {
        port: Port,
        size: u8,
    },
    Gid {
        port: Port,
        index: Index,
    },
    GidEntry {
        port: Port,
        index: Index,
        flags: Bits,
        size: u8,
    },
    GidTable {
        entries: u8,
        flags: Bits,
        size: u8,
    },
    PKey {
        port: Port,
        index: i32,
        key: u16,
    },
    Counters {
        counters: u8,
        count: u8,
        flags: Bits,
    },
    Time {
        mask: Bits,
    },
    Advise {
        pd: u8,
        advice: u8,
        flags: Bits,
        elements: Vec<Element>,
    },
    AddressOf {
        port: Port,
        wc: Vec<Poke>,
        header: [u8; 40],
    },
}

/// Room for what is asked for, more than any call is told of: what lies behind that stays as it is.
struct Room(Vec<u64>);

impl Room {
    const UNTOUCHED: u64 = u64::from_ne_bytes([0xa5; 8]);

    fn new() -> Room {
        Room(vec![Self::UNTOUCHED; 9000])
    }

    /// A call was told of so many bytes.
    fn check(&mut self, told: usize) {
        let bytes = self.0.iter().flat_map(|word| word.to_ne_bytes());
        let behind = bytes.enumerate().skip(told);
        let written = behind.filter(|(_, byte)| *byte != 0xa5).map(|(at, _)| at);
        assert_eq!(written.max(), None, "{told} bytes were to be written");
        self.0.fill(Self::UNTOUCHED);
    }
}

/// The number of a port: mostly that of the one there is.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Port {
    One,
    Any(u8),
}

impl Port {
    fn get(self) -> u8 {
        match self {
            Port::One => 1,
            Port::Any(number) => number,
        }
    }
}

/// An index of the table of GIDs: near its end, or any.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Index {
    Near(i8),
    Any(i32),
}

impl Index {
    fn get(self, length: i32) -> i32 {
        match self {
            Index::Near(by) => length + i32::from(by),
            Index::Any(index) => index,
        }
    }
}

/// How long the table of GIDs is.
fn gid_table_len(world: &World) -> i32 {
    let mut attr = ibv_port_attr::zeroed();
    let query = world.ops().query_port.expect("every device has it");
    // SAFETY: an opened device, and room.
    let status = unsafe { query(world.context(false), 1, &raw mut attr, size_of_val(&attr)) };
    assert_eq!(status, 0);
    attr.gid_tbl_len
}

impl Ask {
    pub(super) fn tell(&self, world: &World) {
        // SAFETY: pointers are null, or objects that live, or room for what is asked for.
        unsafe { self.ask(world) };
    }

    unsafe fn ask(&self, world: &World) {
        let context = world.context(false);
        let mut room = Room::new();
        let place = room.0.as_mut_ptr();
        // SAFETY: the caller's promise; there is more room at `place` than any of these is told.
        unsafe {
            match self {
                Ask::Qp { qp, mask } => {
                    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
                    let mask = mask.get().cast_signed();
                    let qp = world.pick::<ibv_qp>(*qp);
                    let status = ibv_query_qp(qp, &raw mut attr, mask, &raw mut init);
                    if done("ibv_query_qp", status) {
                        assert!(attr.qp_state < IBV_QPS_UNKNOWN);
                        assert_eq!(init.qp_type, (*qp).qp_type);
                    }
                    ibv_query_qp_data_in_order(qp, mask.cast_unsigned(), 0);
                }
                Ask::Srq { srq } => {
                    done(
                        "ibv_query_srq",
                        ibv_query_srq(world.pick(*srq), place.cast()),
                    );
                }
                Ask::SrqNumber { srq } => {
                    if let Some(number) = world.ops().get_srq_num {
                        done("ibv_get_srq_num", number(world.pick(*srq), place.cast()));
                    }
                }
                Ask::Device { second, size, mask } => {
                    let input = ibv_query_device_ex_input {
                        comp_mask: mask.get(),
                    };
                    if let Some(query) = world.ops().query_device_ex {
                        let size = usize::from(size % 1000);
                        let context = world.context(*second);
                        done(
                            "ibv_query_device_ex",
                            query(context, &raw const input, place.cast(), size),
                        );
                        room.check(size);
                    }
                    done("ibv_query_device", ibv_query_device(context, place.cast()));
                }
                Ask::Port { port, size } => {
                    if let Some(query) = world.ops().query_port {
                        done(
                            "ibv_query_port",
                            query(context, port.get(), place.cast(), (*size).into()),
                        );
                        room.check((*size).into());
                    }
                    done(
                        "ibv_query_port",
                        ibv_query_port(context, port.get(), place.cast()),
                    );
                    room.check(COMPAT_PORT_ATTR_LEN);
                }
                Ask::Gid { port, index } => {
                    let length = gid_table_len(world);
                    let index = index.get(length);
                    let status = ibv_query_gid(context, port.get(), index, place.cast());
                    let found = done_by_errno("ibv_query_gid", status);
                    room.check(size_of::<ibv_gid>());
                    let index = index.cast_unsigned();
                    let status = ibv_query_gid_type(context, port.get(), index, place.cast());
                    let known = done_by_errno("ibv_query_gid_type", status);
                    room.check(size_of::<u32>());
                    assert!(index < length.cast_unsigned() || !found && !known);
                }
                Ask::GidEntry {
                    port,
                    index,
                    flags,
                    size,
                } => {
                    let size = usize::from(*size);
                    let length = gid_table_len(world);
                    let index = index.get(length).cast_unsigned();
                    let status = _ibv_query_gid_ex(
                        context,
                        port.get().into(),
                        index,
                        place.cast(),
                        flags.get(),
                        size,
                    );
                    let found = done("_ibv_query_gid_ex", status);
                    assert!(index < length.cast_unsigned() || !found);
                    room.check(size);
                }
                Ask::GidTable {
                    entries,
                    flags,
                    size,
                } => {
                    let (entries, size) = (usize::from(*entries), usize::from(*size));
                    let count =
                        _ibv_query_gid_table(context, place.cast(), entries, flags.get(), size);
                    if count < 0 {
                        done("_ibv_query_gid_table", -count as c_int);
                    }
                    assert!(count <= entries.cast_signed());
                    room.check(count.max(0).cast_unsigned() * size);
                }
                Ask::PKey { port, index, key } => {
                    done_by_errno(
                        "ibv_query_pkey",
                        ibv_query_pkey(context, port.get(), *index, place.cast()),
                    );
                    done_by_errno(
                        "ibv_get_pkey_index",
                        ibv_get_pkey_index(context, port.get(), *key),
                    );
                }
                Ask::Counters {
                    counters,
                    count,
                    flags,
                } => {
                    if let Some(read) = world.ops().read_counters {
                        let counters = world.pick(*counters);
                        done(
                            "ibv_read_counters",
                            read(counters, place, (*count).into(), flags.get()),
                        );
                    }
                }
                Ask::Time { mask } => {
                    let mut values: ibv_values_ex = std::mem::zeroed();
                    values.comp_mask = mask.get();
                    if let Some(query) = world.ops().query_rt_values {
                        done("ibv_query_rt_values_ex", query(context, &raw mut values));
                    }
                }
                Ask::Advise {
                    pd,
                    advice,
                    flags,
                    elements,
                } => {
                    let mut list: Vec<_> = elements
                        .iter()
                        .map(|element| element.shown(world, false))
                        .collect();
                    let first = match list.is_empty() {
                        true => ptr::null_mut(),
                        false => list.as_mut_ptr(),
                    };
                    if let Some(advise) = world.ops().advise_mr {
                        let advice = (advice % 5).into();
                        let count = list.len() as u32;
                        done(
                            "ibv_advise_mr",
                            advise(world.pick(*pd), advice, flags.get(), first, count),
                        );
                    }
                }
                Ask::AddressOf { port, wc, header } => {
                    let mut shown = ibv_wc::zeroed();
                    shown.wc_flags = IBV_WC_GRH;
                    poke(&mut shown, wc);
                    let mut header = *header;
                    let grh = header.as_mut_ptr().cast();
                    let status =
                        ibv_init_ah_from_wc(context, port.get(), &raw mut shown, grh, place.cast());
                    done_by_errno("ibv_init_ah_from_wc", status);
                }
            }
        }
    }
}
