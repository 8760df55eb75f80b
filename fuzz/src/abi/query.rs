//! Querying objects.

use super::harness::{Harness, check_errno, check_status};
use super::values::{Bits, ByteOverwrite, Element, poke};
use arbitrary::Arbitrary;
use libc::c_int;
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

#[derive(Arbitrary, Debug)]
pub(super) enum Query {
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
        wc: Vec<ByteOverwrite>,
        header: [u8; 40],
    },
}

/// A buffer for results, larger than any result. Bytes after the result must not change.
struct OutputBuffer(Vec<u64>);

impl OutputBuffer {
    const UNTOUCHED: u64 = u64::from_ne_bytes([0xa5; 8]);

    fn new() -> OutputBuffer {
        OutputBuffer(vec![Self::UNTOUCHED; 9000])
    }

    /// Checks that a call has written at most `len` bytes.
    fn check(&mut self, len: usize) {
        let bytes = self.0.iter().flat_map(|word| word.to_ne_bytes());
        let after = bytes.enumerate().skip(len);
        let written = after.filter(|(_, byte)| *byte != 0xa5).map(|(at, _)| at);
        assert_eq!(written.max(), None, "at most {len} bytes may be written");
        self.0.fill(Self::UNTOUCHED);
    }
}

/// A port number. The device has port 1 only.
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

/// An index of the GID table: near its end, or any.
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

/// The length of the GID table.
fn gid_table_len(harness: &Harness) -> i32 {
    let mut attr = ibv_port_attr::zeroed();
    let query = harness
        .ops()
        .query_port
        .expect("every device provides query_port");
    // SAFETY: the context is open, and `attr` outlives the call.
    let status = unsafe { query(harness.context(false), 1, &raw mut attr, size_of_val(&attr)) };
    assert_eq!(status, 0);
    attr.gid_tbl_len
}

impl Query {
    pub(super) fn run(&self, harness: &Harness) {
        // SAFETY: `pick` returns null or live objects.
        unsafe { self.call(harness) };
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn call(&self, harness: &Harness) {
        let context = harness.context(false);
        let mut output = OutputBuffer::new();
        let place = output.0.as_mut_ptr();
        // SAFETY: `pick` returns null or live objects. The buffer at `place` is larger than each
        // size that is passed, and larger than each structure.
        unsafe {
            match self {
                Query::Qp { qp, mask } => {
                    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
                    let mask = mask.get().cast_signed();
                    let qp = harness.pick::<ibv_qp>(*qp);
                    let status = ibv_query_qp(qp, &raw mut attr, mask, &raw mut init);
                    if check_status("ibv_query_qp", status) {
                        assert!(attr.qp_state < IBV_QPS_UNKNOWN);
                        assert_eq!(init.qp_type, (*qp).qp_type);
                    }
                    ibv_query_qp_data_in_order(qp, mask.cast_unsigned(), 0);
                }
                Query::Srq { srq } => {
                    check_status(
                        "ibv_query_srq",
                        ibv_query_srq(harness.pick(*srq), place.cast()),
                    );
                }
                Query::SrqNumber { srq } => {
                    if let Some(number) = harness.ops().get_srq_num {
                        check_status("ibv_get_srq_num", number(harness.pick(*srq), place.cast()));
                    }
                }
                Query::Device { second, size, mask } => {
                    let input = ibv_query_device_ex_input {
                        comp_mask: mask.get(),
                    };
                    if let Some(query) = harness.ops().query_device_ex {
                        let size = usize::from(size % 1000);
                        let context = harness.context(*second);
                        check_status(
                            "ibv_query_device_ex",
                            query(context, &raw const input, place.cast(), size),
                        );
                        output.check(size);
                    }
                    check_status("ibv_query_device", ibv_query_device(context, place.cast()));
                }
                Query::Port { port, size } => {
                    if let Some(query) = harness.ops().query_port {
                        check_status(
                            "ibv_query_port",
                            query(context, port.get(), place.cast(), (*size).into()),
                        );
                        output.check((*size).into());
                    }
                    check_status(
                        "ibv_query_port",
                        ibv_query_port(context, port.get(), place.cast()),
                    );
                    output.check(COMPAT_PORT_ATTR_LEN);
                }
                Query::Gid { port, index } => {
                    let length = gid_table_len(harness);
                    let index = index.get(length);
                    let status = ibv_query_gid(context, port.get(), index, place.cast());
                    let found = check_errno("ibv_query_gid", status);
                    output.check(size_of::<ibv_gid>());
                    let index = index.cast_unsigned();
                    let status = ibv_query_gid_type(context, port.get(), index, place.cast());
                    let known = check_errno("ibv_query_gid_type", status);
                    output.check(size_of::<u32>());
                    assert!(index < length.cast_unsigned() || !found && !known);
                }
                Query::GidEntry {
                    port,
                    index,
                    flags,
                    size,
                } => {
                    let size = usize::from(*size);
                    let length = gid_table_len(harness);
                    let index = index.get(length).cast_unsigned();
                    let status = _ibv_query_gid_ex(
                        context,
                        port.get().into(),
                        index,
                        place.cast(),
                        flags.get(),
                        size,
                    );
                    let found = check_status("_ibv_query_gid_ex", status);
                    assert!(index < length.cast_unsigned() || !found);
                    output.check(size);
                }
                Query::GidTable {
                    entries,
                    flags,
                    size,
                } => {
                    let (entries, size) = (usize::from(*entries), usize::from(*size));
                    let count =
                        _ibv_query_gid_table(context, place.cast(), entries, flags.get(), size);
                    if count < 0 {
                        check_status("_ibv_query_gid_table", -count as c_int);
                    }
                    assert!(count <= entries.cast_signed());
                    output.check(count.max(0).cast_unsigned() * size);
                }
                Query::PKey { port, index, key } => {
                    check_errno(
                        "ibv_query_pkey",
                        ibv_query_pkey(context, port.get(), *index, place.cast()),
                    );
                    check_errno(
                        "ibv_get_pkey_index",
                        ibv_get_pkey_index(context, port.get(), *key),
                    );
                }
                Query::Counters {
                    counters,
                    count,
                    flags,
                } => {
                    if let Some(read) = harness.ops().read_counters {
                        let counters = harness.pick(*counters);
                        check_status(
                            "ibv_read_counters",
                            read(counters, place, (*count).into(), flags.get()),
                        );
                    }
                }
                Query::Time { mask } => {
                    let mut values: ibv_values_ex = std::mem::zeroed();
                    values.comp_mask = mask.get();
                    if let Some(query) = harness.ops().query_rt_values {
                        check_status("ibv_query_rt_values_ex", query(context, &raw mut values));
                    }
                }
                Query::Advise {
                    pd,
                    advice,
                    flags,
                    elements,
                } => {
                    let mut list: Vec<_> = elements
                        .iter()
                        .map(|element| element.to_verbs(harness, false))
                        .collect();
                    let first = match list.is_empty() {
                        true => ptr::null_mut(),
                        false => list.as_mut_ptr(),
                    };
                    if let Some(advise) = harness.ops().advise_mr {
                        let advice = (advice % 5).into();
                        let count = list.len() as u32;
                        check_status(
                            "ibv_advise_mr",
                            advise(harness.pick(*pd), advice, flags.get(), first, count),
                        );
                    }
                }
                Query::AddressOf { port, wc, header } => {
                    let mut completion = ibv_wc::zeroed();
                    completion.wc_flags = IBV_WC_GRH;
                    poke(&mut completion, wc);
                    let mut header = *header;
                    let grh = header.as_mut_ptr().cast();
                    let status = ibv_init_ah_from_wc(
                        context,
                        port.get(),
                        &raw mut completion,
                        grh,
                        place.cast(),
                    );
                    check_errno("ibv_init_ah_from_wc", status);
                }
            }
        }
    }
}
