//! Receives whose memory the program has unmapped before it deregisters it.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT};
use memmap2::MmapMut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use urxe_driver::ah::Destination;
use urxe_driver::mr::Mr;
use urxe_driver::{AddressHandle, Qp};
use urxe_proto::ids::{Gid, QKey};
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};

const QKEY: QKey = QKey(0x1111_1111);

fn to_state(qp: &Arc<Qp>, state: QpState) {
    let attr = QpAttr {
        state,
        ..QpAttr::default()
    };
    qp.modify(&attr, AttrMask::STATE).unwrap();
}

/// Returns a UD queue pair in RTS.
fn datagrams() -> End {
    let end = End::of(QpType::Ud, None, 256);
    make_ready(&end.qp);
    end
}

fn make_ready(qp: &Arc<Qp>) {
    let attr = QpAttr {
        state: QpState::Init,
        qkey: QKEY,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    qp.modify(&attr, mask).unwrap();
    to_state(qp, QpState::Rtr);
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(0xff_fff0),
        ..QpAttr::default()
    };
    qp.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN)
        .unwrap();
}

fn address(dgid: Gid, sgid_index: u8) -> AddressVector {
    AddressVector {
        dgid,
        sgid_index,
        is_global: true,
        port: 1,
        traffic_class: 0x20,
        ..AddressVector::default()
    }
}

fn handle(from: &End, to: &End) -> Arc<AddressHandle> {
    let av = address(to.gid(), 0);
    from.context.create_ah(&from.pd, av).unwrap()
}

/// UCX's registration cache deregisters the memory of receives after it is unmapped.
#[test]
fn datagram_for_unmapped_memory_is_discarded() {
    const LEN: usize = 8192;
    let (a, b) = (datagrams(), datagrams());
    let from = Buffer::new(&a.pd, 64, ALL);
    let map = MmapMut::map_anon(LEN).unwrap();
    let addr = map.as_ptr().expose_provenance() as u64;
    // SAFETY: the program's error that is tested: the memory is unmapped while it is registered. No
    // mapping takes its place: this is the only test of its process, and maps nothing more.
    let mr = unsafe { Mr::register(&b.pd, addr, LEN as u64, addr, ALL) }.unwrap();
    let receive = Sge {
        addr,
        length: LEN as u32,
        lkey: mr.lkey(),
    };
    b.qp.post_receive(1, &[receive]).unwrap();
    drop(map);
    let handle = handle(&a, &b);
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&[from.sge(0, 64)]),
        dest: None,
    };
    a.qp.start_posting().post_to(&wr, &dest).unwrap();
    // No call of the program receives: the progress thread does.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while b.qp.counters().receives_done == 0 {
        assert!(Instant::now() < deadline, "no datagram was received");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(b.completion().status, WcStatus::Success);
    drop(mr);
}
