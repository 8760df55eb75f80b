//! ATOMIC WRITE and FLUSH over the loopback interface (annex A19).

mod common;

use common::{ALL, Buffer, pair};
use urxe_proto::host::Access;
use urxe_proto::qp::QpState;
use urxe_proto::wire::Feth;
use urxe_proto::work::{SendOp, WcOpcode, WcStatus};

const FLUSHABLE: Access = ALL.union(Access::FLUSH_GLOBAL);

fn flush(buffer: &Buffer, how: Feth) -> SendOp {
    SendOp::Flush {
        addr: buffer.mr.addr(),
        rkey: buffer.mr.rkey(),
        len: 64,
        how,
    }
}

#[test]
fn atomic_write_is_visible_at_completion() {
    let (a, b) = pair(|_| {});
    let there = Buffer::new(&b.pd, 64, ALL);
    for round in 1..100_u64 {
        let op = SendOp::AtomicWrite {
            addr: there.mr.addr() + 8,
            rkey: there.mr.rkey(),
            value: round.to_ne_bytes(),
        };
        a.post(round, op, &[]);
        let done = a.completion();
        assert_eq!((done.opcode, done.byte_len), (WcOpcode::AtomicWrite, 8));
        assert_eq!(done.status, WcStatus::Success);
        assert_eq!(there.now()[..3], [0, round, 0]);
    }
}

#[test]
fn on_demand_regions_take_both() {
    let (a, b) = pair(|_| {});
    let there = Buffer::new(&b.pd, 64, FLUSHABLE | Access::ON_DEMAND);
    let write = SendOp::AtomicWrite {
        addr: there.mr.addr(),
        rkey: there.mr.rkey(),
        value: 7_u64.to_ne_bytes(),
    };
    for op in [write, flush(&there, Feth::GLOBAL_VISIBILITY)] {
        a.post(1, op, &[]);
        assert_eq!(a.completion().status, WcStatus::Success);
    }
    assert_eq!(there.now()[0], 7);
}

#[test]
fn flush_needs_a_region_that_permits_it() {
    let (a, b) = pair(|_| {});
    let there = Buffer::new(&b.pd, 64, FLUSHABLE);
    for how in [
        Feth::GLOBAL_VISIBILITY,
        Feth::GLOBAL_VISIBILITY | Feth::WHOLE_REGION,
    ] {
        a.post(1, flush(&there, how), &[]);
        let done = a.completion();
        assert_eq!(
            (done.opcode, done.status),
            (WcOpcode::Flush, WcStatus::Success)
        );
    }
    let ordinary = Buffer::new(&b.pd, 64, ALL);
    a.post(2, flush(&ordinary, Feth::GLOBAL_VISIBILITY), &[]);
    assert_eq!(a.completion().status, WcStatus::RemAccessErr);
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn persistent_flush_is_refused() {
    let (a, b) = pair(|_| {});
    let there = Buffer::new(&b.pd, 64, FLUSHABLE);
    a.post(1, flush(&there, Feth::PERSISTENCE), &[]);
    assert_eq!(a.completion().status, WcStatus::RemInvReqErr);
}
