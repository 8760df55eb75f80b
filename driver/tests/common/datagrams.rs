//! Queue pairs for datagrams.

use super::End;
use std::sync::Arc;
use urxe_driver::{AddressHandle, Qp};
use urxe_proto::ids::{Gid, QKey};
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};

pub const QKEY: QKey = QKey(0x1111_1111);

pub fn to_state(qp: &Arc<Qp>, state: QpState) {
    let attr = QpAttr {
        state,
        ..QpAttr::default()
    };
    qp.modify(&attr, AttrMask::STATE).unwrap();
}

/// Returns a UD queue pair in RTS.
pub fn datagrams() -> End {
    let end = End::of(QpType::Ud, None, 256);
    make_ready(&end.qp);
    end
}

pub fn make_ready(qp: &Arc<Qp>) {
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

pub fn address(dgid: Gid, sgid_index: u8) -> AddressVector {
    AddressVector {
        dgid,
        sgid_index,
        is_global: true,
        port: 1,
        traffic_class: 0x20,
        ..AddressVector::default()
    }
}

pub fn handle(from: &End, to: &End) -> Arc<AddressHandle> {
    let av = address(to.gid(), 0);
    from.context.create_ah(&from.pd, av).unwrap()
}
