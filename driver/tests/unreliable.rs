//! Unreliable connections and datagrams over the loopback interface, over real sockets.

mod common;

use common::datagrams::{QKEY, address, datagrams, handle, make_ready, to_state};
use common::{ALL, Buffer, End};
use std::sync::Arc;
use urxe_driver::Pd;
use urxe_driver::ah::Destination;
use urxe_driver::qp::{MAX_QP_WR, MulticastError, QpCap, QpInit, ReceivesFrom};
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AttrMask, QpAttr, QpState, QpType};
use urxe_proto::queue::PostError;
use urxe_proto::wire::Grh;
use urxe_proto::work::{
    Extra, IpVersion, Payload, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};

fn post_to(
    from: &End,
    wr_id: u64,
    op: SendOp,
    sges: &[Sge],
    to: &Destination<'_>,
) -> Result<(), PostError> {
    let wr = SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(sges),
        dest: None,
    };
    from.qp.start_posting().post_to(&wr, to)
}

/// Returns the current contents of the memory.
fn bytes(buffer: &Buffer) -> Vec<u8> {
    let words = buffer.now();
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn connected() -> (End, End) {
    let ends = (
        End::of(QpType::Uc, None, 256),
        End::of(QpType::Uc, None, 256),
    );
    for (end, peer) in [(&ends.0, &ends.1), (&ends.1, &ends.0)] {
        end.init();
        let attr = QpAttr {
            state: QpState::Rtr,
            av: address(peer.gid(), 0),
            path_mtu: Mtu::B1024,
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(5),
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN;
        end.qp.modify(&attr, mask).unwrap();
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: Psn::new(5),
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::SQ_PSN;
        end.qp.modify(&attr, mask).unwrap();
    }
    ends
}

#[test]
fn connection_carries_sends_and_writes_of_many_packets() {
    const LEN: u32 = 50_000;
    let (a, b) = connected();
    let mut from = Buffer::new(&a.pd, LEN as usize, ALL);
    let to = Buffer::new(&b.pd, LEN as usize, ALL);
    let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
    let write = SendOp::WriteImm { addr, rkey, imm: 8 };
    for (seed, op) in [(3, SendOp::Send), (4, SendOp::SendImm(77)), (5, write)] {
        from.fill(seed);
        b.qp.post_receive(1, &[to.sge(0, LEN)]).unwrap();
        a.post(2, op, &[from.sge(0, LEN)]);
        assert_eq!(a.completion().status, WcStatus::Success);
        let received = b.completion();
        assert_eq!(
            (received.status, received.byte_len),
            (WcStatus::Success, LEN)
        );
        assert_eq!(to.now(), from.data);
    }
}

#[test]
fn a_post_list_is_not_limited_by_deferred_sends() {
    for _ in 0..5 {
        let (a, b) = connected();
        let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 8, ALL));
        let (addr, rkey) = (to.mr.addr(), to.mr.rkey());
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write { addr, rkey },
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[from.sge(0, 8)]),
            dest: None,
        };
        // So few that no flow-control probe is sent.
        for _ in 0..3 {
            for _ in 0..20 {
                a.qp.start_posting().post(&wr).unwrap();
            }
            let mut posting = a.qp.start_posting();
            for _ in 0..a.qp.cap().max_send_wr {
                posting.post(&wr).unwrap();
            }
        }
    }
}

#[test]
fn datagram_completion_has_grh_source_and_immediate() {
    let (a, b) = (datagrams(), datagrams());
    let mut from = Buffer::new(&a.pd, 4096, ALL);
    let to = Buffer::new(&b.pd, 4096 + Grh::LEN, ALL);
    from.fill(9);
    let handle = handle(&a, &b);
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    for len in [0, 1, 5, 4096] {
        b.qp.post_receive(6, &[to.sge(0, 4096 + Grh::LEN as u32)])
            .unwrap();
        post_to(&a, 5, SendOp::SendImm(0xabcd), &[from.sge(0, len)], &dest).unwrap();
        let received = b.completion();
        assert_eq!(
            (received.status, received.wr_id, received.opcode),
            (WcStatus::Success, 6, WcOpcode::Recv)
        );
        assert_eq!(received.byte_len, len + Grh::LEN as u32);
        assert_eq!(received.src_qp, a.qp.qpn());
        assert_eq!(received.extra, Extra::Imm(0xabcd));
        assert_eq!(received.grh, Some(IpVersion::V4));
        let data = bytes(&to);
        // An IPv4 header of UDP between loopback addresses, with the handle's traffic class.
        assert_eq!(data[20..22], [0x45, 0x20]);
        assert_eq!(data[29], 17);
        assert_eq!(data[32..40], [127, 0, 0, 1, 127, 0, 0, 1]);
        let len = len as usize;
        assert_eq!(data[Grh::LEN..][..len], bytes(&from)[..len]);
        assert_eq!(a.completion().wr_id, 5);
    }
}

#[test]
fn datagrams_to_different_addresses_leave_in_their_order() {
    let (a, b) = (datagrams(), datagrams());
    let gids = a.context.device().gids();
    let handles: Vec<_> = gids
        .iter()
        .map(|(index, ip)| {
            let av = address(Gid::from_ip(*ip), *index as u8);
            a.context.create_ah(&a.pd, av).unwrap()
        })
        .collect();
    let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 128, ALL));
    for round in 0..50 {
        let count = handles.len() as u32 * 2;
        for _ in 0..count {
            b.qp.post_receive(0, &[to.sge(0, 128)]).unwrap();
        }
        let mut posting = a.qp.start_posting();
        for i in 0..count {
            // Two datagrams to each address, all in one batch of posts.
            let dest = Destination {
                handle: &handles[i as usize / 2],
                qpn: b.qp.qpn(),
                qkey: QKEY,
            };
            let wr = SendWr {
                wr_id: u64::from(i),
                op: SendOp::SendImm(round << 8 | i),
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&[from.sge(0, 8)]),
                dest: None,
            };
            posting.post_to(&wr, &dest).unwrap();
        }
        drop(posting);
        let mut extras: Vec<_> = (0..count).map(|_| b.completion().extra).collect();
        extras.sort_by_key(|extra| match extra {
            Extra::Imm(data) => *data,
            _ => 0,
        });
        let expected: Vec<_> = (0..count).map(|i| Extra::Imm(round << 8 | i)).collect();
        assert_eq!(extras, expected);
        let completed: Vec<_> = (0..count).map(|_| a.completion().wr_id).collect();
        assert_eq!(completed, (0..u64::from(count)).collect::<Vec<_>>());
    }
}

#[test]
fn queued_datagrams_go_to_a_handle_that_was_destroyed() {
    let (a, b) = (datagrams(), datagrams());
    let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 64, ALL));
    b.qp.post_receive(1, &[to.sge(0, 64)]).unwrap();
    to_state(&a.qp, QpState::Sqd);
    let handle = handle(&a, &b);
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    post_to(&a, 2, SendOp::Send, &[from.sge(0, 8)], &dest).unwrap();
    let weak = Arc::downgrade(&handle);
    drop(handle);
    to_state(&a.qp, QpState::Rts);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.completion().wr_id, 1);
    // The queue pair releases the handle when the send queue is processed again.
    to_state(&a.qp, QpState::Err);
    assert!(weak.upgrade().is_none());
}

#[test]
fn wrong_queue_key_is_dropped_and_counted() {
    let (a, b) = (datagrams(), datagrams());
    let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 64, ALL));
    let handle = handle(&a, &b);
    let (_, before) = b.context.device().key_violations();
    b.qp.post_receive(1, &[to.sge(0, 64)]).unwrap();
    for qkey in [QKey(QKEY.0 ^ 1), QKEY] {
        let dest = Destination {
            handle: &handle,
            qpn: b.qp.qpn(),
            qkey,
        };
        post_to(&a, 2, SendOp::SendImm(qkey.0), &[from.sge(0, 8)], &dest).unwrap();
    }
    assert_eq!(b.completion().extra, Extra::Imm(QKEY.0));
    assert_eq!(b.qp.counters().bad_qkey, 1);
    let (_, after) = b.context.device().key_violations();
    assert!(after > before);
}

#[test]
fn qkey_with_bit_31_selects_the_queue_pairs_qkey() {
    let (a, b) = (datagrams(), datagrams());
    let (from, to) = (Buffer::new(&a.pd, 8, ALL), Buffer::new(&b.pd, 64, ALL));
    let handle = handle(&a, &b);
    b.qp.post_receive(1, &[to.sge(0, 64)]).unwrap();
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKey(0x8000_0000),
    };
    post_to(&a, 2, SendOp::Send, &[from.sge(0, 8)], &dest).unwrap();
    assert_eq!(b.completion().status, WcStatus::Success);
}

/// C10-93.1.1: the datagram is not sent, and completes without an error.
#[test]
fn datagram_beyond_the_mtu_is_not_sent() {
    let (a, b) = (datagrams(), datagrams());
    let from = Buffer::new(&a.pd, 8192, ALL);
    let to = Buffer::new(&b.pd, 8192, ALL);
    let handle = handle(&a, &b);
    b.qp.post_receive(1, &[to.sge(0, 8192)]).unwrap();
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    for len in [4097, 8192, 4096] {
        post_to(&a, 3, SendOp::Send, &[from.sge(0, len)], &dest).unwrap();
        assert_eq!(a.completion().status, WcStatus::Success);
    }
    assert_eq!(b.completion().byte_len, 4096 + Grh::LEN as u32);
    assert_eq!(a.qp.counters().oversized_datagrams, 2);
}

#[test]
fn destination_is_checked_when_posted() {
    let (a, b) = (datagrams(), datagrams());
    let from = Buffer::new(&a.pd, 8, ALL);
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[from.sge(0, 8)]),
        dest: None,
    };
    let without = a.qp.start_posting().post(&wr);
    assert_eq!(without, Err(PostError::Destination));
    let other = Pd::new();
    let handle = a.context.create_ah(&other, address(b.gid(), 0)).unwrap();
    let dest = Destination {
        handle: &handle,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    let foreign = a.qp.start_posting().post_to(&wr, &dest);
    assert_eq!(foreign, Err(PostError::Destination));
    assert!(
        a.context
            .create_ah(&a.pd, address(Gid::default(), 0))
            .is_err()
    );
    assert!(a.context.create_ah(&a.pd, address(b.gid(), 200)).is_err());
}

fn multicast(group: &str) -> Gid {
    Gid::from_ip(group.parse().unwrap())
}

fn send_to_group(from: &End, group: Gid, imm: u32) {
    let data = Buffer::new(&from.pd, 8, ALL);
    let handle = from.context.create_ah(&from.pd, address(group, 0)).unwrap();
    let dest = Destination {
        handle: &handle,
        qpn: Qpn::MULTICAST,
        qkey: QKEY,
    };
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::SendImm(imm),
        // Unsignaled: the sender's own copy arrives in the same completion queue.
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[data.sge(0, 8)]),
        dest: None,
    };
    from.qp.start_posting().post_to(&wr, &dest).unwrap();
}

/// 10.5.2.2: each attached queue pair gets a copy, also of its own datagrams.
#[test]
fn each_attached_queue_pair_gets_each_datagram_of_its_groups() {
    let ends = [datagrams(), datagrams(), datagrams()];
    let (group, other) = (multicast("239.47.91.1"), multicast("239.47.91.2"));
    let buffers: Vec<_> = ends.iter().map(|e| Buffer::new(&e.pd, 64, ALL)).collect();
    for (end, buffer) in ends.iter().zip(&buffers) {
        for _ in 0..3 {
            end.qp.post_receive(0, &[buffer.sge(0, 64)]).unwrap();
        }
    }
    for end in &ends[..2] {
        end.qp.attach(group).unwrap();
        // A second attachment has no effect.
        end.qp.attach(group).unwrap();
    }
    ends[2].qp.attach(other).unwrap();
    send_to_group(&ends[0], group, 1);
    send_to_group(&ends[0], other, 2);
    for (end, imm) in ends.iter().zip([1, 1, 2]) {
        let received = end.completion();
        assert_eq!(received.extra, Extra::Imm(imm));
        assert_eq!(received.src_qp, ends[0].qp.qpn());
    }
    // The GRH area contains the group's address.
    assert_eq!(bytes(&buffers[2])[36..40], [239, 47, 91, 2]);

    ends[1].qp.detach(group).unwrap();
    ends[2].qp.attach(group).unwrap();
    send_to_group(&ends[0], group, 3);
    send_to_group(&ends[0], other, 4);
    let next_extra = |end: &End| end.completion().extra;
    assert_eq!(next_extra(&ends[0]), Extra::Imm(3));
    assert_eq!(
        [next_extra(&ends[2]), next_extra(&ends[2])].map(|e| matches!(e, Extra::Imm(3 | 4))),
        [true, true]
    );
    assert_eq!(ends[1].cq.poll(&mut [None]), 0);
}

#[test]
fn datagram_to_a_group_needs_the_queue_key_of_each_member() {
    let (a, b) = (datagrams(), datagrams());
    let group = multicast("239.47.91.3");
    let to = Buffer::new(&b.pd, 64, ALL);
    b.qp.post_receive(0, &[to.sge(0, 64)]).unwrap();
    let attr = QpAttr {
        qkey: QKey(5),
        ..QpAttr::default()
    };
    b.qp.modify(&attr, AttrMask::QKEY).unwrap();
    // The datagram is delivered in the order of attachment.
    b.qp.attach(group).unwrap();
    a.qp.attach(group).unwrap();
    let here = Buffer::new(&a.pd, 64, ALL);
    a.qp.post_receive(0, &[here.sge(0, 64)]).unwrap();
    send_to_group(&a, group, 9);
    assert_eq!(a.completion().extra, Extra::Imm(9));
    assert_eq!(b.qp.counters().bad_qkey, 1);
}

#[test]
fn attach_refuses_invalid_groups_and_services() {
    let (uc, ud) = (End::of(QpType::Uc, None, 1), datagrams());
    let group = multicast("239.47.91.4");
    let refused = |result: Result<(), MulticastError>| result.unwrap_err().errno();
    assert_eq!(refused(uc.qp.attach(group)), libc::EINVAL);
    assert_eq!(refused(ud.qp.attach(ud.gid())), libc::EINVAL);
    assert_eq!(refused(ud.qp.detach(group)), libc::EINVAL);
    ud.qp.attach(group).unwrap();
    ud.qp.detach(group).unwrap();
    assert_eq!(refused(ud.qp.detach(group)), libc::EINVAL);
}

/// More datagrams than one send quantum: each goes to another destination than the one before.
#[test]
fn a_queue_pair_of_datagrams_that_is_destroyed_sends_nothing_more() {
    let peer = datagrams();
    let cq = peer.context.create_cq(MAX_QP_WR, None).unwrap();
    let init = QpInit {
        service: QpType::Ud,
        send_cq: Some(Arc::clone(&cq)),
        receives: ReceivesFrom::Own(Arc::clone(&cq)),
        cap: QpCap {
            max_send_wr: MAX_QP_WR,
            ..QpCap::default()
        },
        signal_all: true,
        block_own_multicast: false,
    };
    let qp = peer.context.create_qp(&peer.pd, init).unwrap();
    make_ready(&qp);
    let handles = [handle(&peer, &peer), handle(&peer, &peer)];
    let mut posting = qp.start_posting();
    for number in 0..MAX_QP_WR {
        let to = Destination {
            handle: &handles[number as usize % 2],
            qpn: peer.qp.qpn(),
            qkey: QKEY,
        };
        let wr = SendWr {
            wr_id: number.into(),
            op: SendOp::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
            dest: None,
        };
        posting.post_to(&wr, &to).unwrap();
    }
    drop(posting);
    qp.destroy();
    let mut late = [None];
    for _ in 0..1_000 {
        assert_eq!(cq.poll(&mut late), 0, "{late:?}");
    }
    cq.retire();
}
