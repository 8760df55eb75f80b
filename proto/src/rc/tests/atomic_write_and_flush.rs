//! ATOMIC WRITE and FLUSH (annex A19): requests that a response without data confirms.

use super::*;
use crate::wire::Feth;

const WORD: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn atomic_write(at: usize) -> SendOp {
    SendOp::AtomicWrite {
        addr: base(REMOTE) + at as u64,
        rkey: RKey(REMOTE),
        value: WORD,
    }
}

fn flush(at: usize, len: u32, how: Feth) -> SendOp {
    SendOp::Flush {
        addr: base(REMOTE) + at as u64,
        rkey: RKey(REMOTE),
        len,
        how,
    }
}

fn flush_request(offset: u32, key: u32, at: usize, len: usize, how: Feth) -> Header {
    rdma(Opcode::RcFlush, offset, key, at, len).with_feth(how)
}

/// A connected end whose queue pair permits FLUSH.
fn flushable() -> Endpoint {
    Endpoint::with(|attr| attr.access |= Access::FLUSH_GLOBAL)
}

fn done(psn: u32) -> Header {
    answer(Opcode::RcReadResponseOnly, psn, UNLIMITED)
}

#[test]
fn atomic_write_and_flush_take_effect_and_complete_in_order() {
    let (mut a, mut b) = pair(|attr| attr.access |= Access::FLUSH_GLOBAL);
    a.post_signaled(1, write_to(64), 2 * MTU);
    a.post(2, flush(64, 100, Feth::GLOBAL_VISIBILITY), SIGNALED, &[]);
    a.post(3, atomic_write(16), SIGNALED, &[]);
    exchange(&mut a, &mut b);
    let opcodes: Vec<_> = a.host.sends.iter().map(|c| c.opcode).collect();
    assert_eq!(
        opcodes,
        [WcOpcode::Write, WcOpcode::Flush, WcOpcode::AtomicWrite]
    );
    assert!(
        a.done()
            .iter()
            .all(|(_, status)| *status == WcStatus::Success)
    );
    assert_eq!(b.host.bytes(REMOTE, 16, 8), WORD);
    let range = Some((base(REMOTE) + 64, 100));
    assert_eq!(*b.host.flushes.borrow(), [(range, Access::FLUSH_GLOBAL)]);
}

#[test]
fn requests_are_as_linux_rxe_sends_them() {
    let mut end = Endpoint::new();
    end.post(1, atomic_write(8), SIGNALED, &[]);
    end.post(2, flush(0, 5000, Feth::GLOBAL_VISIBILITY), SIGNALED, &[]);
    let packets = end.poll();
    let [write, flush] = &packets[..] else {
        panic!("{packets:#?}");
    };
    assert_eq!(
        (write.opcode(), &write.payload[..]),
        (Opcode::RcAtomicWrite, &WORD[..])
    );
    assert_eq!(write.header.reth.unwrap().length, 8);
    assert_eq!((flush.opcode(), flush.payload.len()), (Opcode::RcFlush, 0));
    assert_eq!(flush.header.reth.unwrap().length, 5000);
    assert_eq!(flush.header.feth, Some(Feth::GLOBAL_VISIBILITY));
    assert_eq!(flush.psn(), write.psn() + 1, "one PSN each, however long");
    end.deliver(done(0), &[]);
    end.deliver(done(1), &[]);
    assert_eq!(end.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn atomic_write_and_flush_get_a_read_response_without_data() {
    let mut end = flushable();
    let write = rdma(Opcode::RcAtomicWrite, 0, REMOTE, 0, 8);
    end.deliver(write, &WORD);
    end.deliver(flush_request(1, REMOTE, 0, 8, Feth::GLOBAL_VISIBILITY), &[]);
    let answers = end.poll();
    assert_eq!(answers.len(), 2);
    for (offset, answer) in answers.iter().enumerate() {
        assert_eq!(answer.opcode(), Opcode::RcReadResponseOnly);
        assert_eq!(answer.psn(), PEER_PSN + offset as u32);
        assert!(answer.payload.is_empty());
    }
}

#[test]
fn duplicate_gets_the_response_again_and_is_not_executed() {
    let mut end = flushable();
    let write = rdma(Opcode::RcAtomicWrite, 0, REMOTE, 0, 8);
    end.deliver(write, &WORD);
    end.poll();
    end.deliver(rdma(Opcode::RcWriteOnly, 1, REMOTE, 0, 8), &[9; 8]);
    end.poll();
    end.deliver(write, &WORD);
    assert_eq!(end.poll_one().opcode(), Opcode::RcReadResponseOnly);
    assert_eq!(end.host.bytes(REMOTE, 0, 8), [9; 8]);
}

#[test]
fn acknowledgement_does_not_replace_the_response() {
    let mut end = Endpoint::new();
    end.post(1, atomic_write(0), SIGNALED, &[]);
    end.post_signaled(2, SendOp::Send, 4);
    end.poll();
    end.deliver(ack(1), &[]);
    assert!(end.done().is_empty());
    let retransmitted = end.poll();
    assert_eq!(retransmitted[0].opcode(), Opcode::RcAtomicWrite);
}

#[test]
fn atomic_write_needs_8_aligned_bytes_and_remote_write() {
    let refused = |header: Header, payload: &[u8]| {
        let mut end = Endpoint::new();
        end.deliver(header, payload);
        end.poll_one().syndrome()
    };
    let header = |key, at, len| rdma(Opcode::RcAtomicWrite, 0, key, at, len);
    let invalid = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(refused(header(REMOTE, 4, 8), &WORD), invalid);
    assert_eq!(refused(header(REMOTE, 0, 4), &WORD), invalid);
    assert_eq!(refused(header(REMOTE, 0, 8), &WORD[..4]), invalid);
    let no_access = Syndrome::Nak(NakCode::RemoteAccess);
    assert_eq!(refused(header(LOCAL, 0, 8), &WORD), no_access);
    assert_eq!(refused(header(REMOTE, REGION, 8), &WORD), no_access);

    let mut end = Endpoint::with(|attr| attr.access = Access::REMOTE_READ);
    end.deliver(header(REMOTE, 0, 8), &WORD);
    assert_eq!(end.poll_one().syndrome(), invalid);
}

#[test]
fn flush_needs_a_placement_type_and_its_access_right() {
    let refused = |how: Feth, key| {
        let mut end = flushable();
        end.deliver(flush_request(0, key, 0, 8, how), &[]);
        end.poll_one().syndrome()
    };
    let invalid = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(refused(Feth::empty(), REMOTE), invalid);
    assert_eq!(refused(Feth::WHOLE_REGION, REMOTE), invalid);
    let reserved = Feth::from_bits_retain(1 << 5);
    assert_eq!(refused(Feth::GLOBAL_VISIBILITY | reserved, REMOTE), invalid);
    assert_eq!(
        refused(Feth::PERSISTENCE, REMOTE),
        invalid,
        "the queue pair does not permit it"
    );
    let no_access = Syndrome::Nak(NakCode::RemoteAccess);
    assert_eq!(refused(Feth::GLOBAL_VISIBILITY, LOCAL), no_access);

    let mut end = flushable();
    let outside = flush_request(0, REMOTE, REGION, 8, Feth::GLOBAL_VISIBILITY);
    end.deliver(outside, &[]);
    assert_eq!(end.poll_one().syndrome(), no_access);
}

#[test]
fn flush_of_a_whole_region_ignores_the_range() {
    let mut end = flushable();
    let how = Feth::GLOBAL_VISIBILITY | Feth::WHOLE_REGION;
    end.deliver(flush_request(0, REMOTE, REGION, 8, how), &[]);
    assert_eq!(end.poll_one().opcode(), Opcode::RcReadResponseOnly);
    assert_eq!(*end.host.flushes.borrow(), [(None, Access::FLUSH_GLOBAL)]);
}

#[test]
fn other_services_have_no_atomic_write_and_flush() {
    let mut end = Endpoint::of(QpType::XrcIni);
    end.modify(QpState::Init, INIT, &attributes());
    end.modify(
        QpState::Rtr,
        RTR - AttrMask::MAX_DEST_RD_ATOMIC - AttrMask::MIN_RNR_TIMER,
        &attributes(),
    );
    end.modify(QpState::Rts, RTS, &attributes());
    let wr = SendWr {
        wr_id: 1,
        op: atomic_write(0),
        flags: SIGNALED,
        payload: Payload::Sges(&[]),
        dest: None,
    };
    let posted = end.qp.post_send(&wr, end.now, &mut end.host);
    assert_eq!(posted, Err(PostError::Operation));
}
