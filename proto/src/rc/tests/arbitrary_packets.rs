//! A peer that sends arbitrary packets: nothing panics, and each work request completes once and in
//! order.

use super::*;
use crate::wire::Feth;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng as _, RngExt, SeedableRng};

/// Well-formed headers that are often nearly valid.
fn any_header(rng: &mut Xoshiro256PlusPlus, end: &Endpoint) -> Header {
    let opcodes: Vec<Opcode> = Opcode::all()
        .filter(|opcode| opcode.info().transport == Transport::Rc)
        .collect();
    let opcode = opcodes[rng.random_range(0..opcodes.len())];
    let attr = end.qp.attributes();
    let near = if opcode.info().operation.is_request() {
        attr.rq_psn
    } else {
        attr.sq_psn
    };
    let at = match rng.random_range(0..10) {
        0 => psn(rng.next_u32()),
        1 => near + (1 << 23),
        2..4 => near + rng.random_range(0..8),
        4..8 => near - rng.random_range(0..8),
        _ => near,
    };
    let mut header = Header::new(opcode, Qpn::new(0x11), at)
        .with_ack_req(rng.random())
        .with_solicited(rng.random());
    let key = RKey([REMOTE, REMOTE, REMOTE, LOCAL, NO_KEY][rng.random_range(0..5)]);
    let offset = [0, 0, 8, 1, REGION as u64 - 4, u64::MAX][rng.random_range(0..6)];
    let addr = base(key.0).wrapping_add(offset);
    let length = [0, 1, 256, 300, 512, 1 << 31, u32::MAX][rng.random_range(0..7)];
    let has = opcode.info().headers;
    if has.contains(Headers::RETH) {
        let rkey = key;
        header = header.with_reth(Reth { addr, rkey, length });
    }
    if has.contains(Headers::FETH) {
        header = header.with_feth(Feth::default());
    }
    if has.contains(Headers::ATOMIC_ETH) {
        header = header.with_atomic(AtomicEth {
            addr,
            rkey: key,
            swap_or_add: rng.random(),
            compare: rng.random(),
        });
    }
    if has.contains(Headers::AETH) {
        // Mostly plain acknowledgements, so that the connection survives for some packets.
        let byte = if rng.random_bool(0.8) {
            0x1f
        } else {
            rng.random()
        };
        let syndrome = Syndrome::from_byte(byte);
        let msn = rng.next_u32();
        header = header.with_aeth(Aeth { syndrome, msn });
    }
    if has.contains(Headers::ATOMIC_ACK_ETH) {
        header = header.with_atomic_ack(rng.random());
    }
    if has.contains(Headers::IMMDT) {
        header = header.with_imm(rng.random());
    }
    if has.contains(Headers::IETH) {
        header = header.with_ieth(key);
    }
    header
}

fn any_op(rng: &mut Xoshiro256PlusPlus) -> SendOp {
    let compare_swap = SendOp::CompareSwap {
        addr: base(REMOTE),
        rkey: RKey(REMOTE),
        compare: 0,
        swap: 1,
    };
    let ops = [
        SendOp::Send,
        write_to(0),
        read_from(0),
        add(1),
        compare_swap,
    ];
    ops[rng.random_range(0..ops.len())]
}

fn live(seed: u64) -> (u64, bool) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut end = Endpoint::with(|attr| {
        attr.sq_psn = psn(0xff_fff0);
        attr.rq_psn = psn(0xff_fffa);
        attr.max_dest_rd_atomic = rng.random_range(0..4);
    });
    let (mut posted, mut completed, mut received, mut receives) = (0, 0, 0, 0);
    for _ in 0..rng.random_range(5..300) {
        match rng.random_range(0..10) {
            0 => {
                let len = [0, 8, 256, 700, 70_000][rng.random_range(0..5)];
                let key = if rng.random_bool(0.02) { NO_KEY } else { LOCAL };
                let wr = SendWr {
                    wr_id: posted,
                    op: any_op(&mut rng),
                    flags: SIGNALED,
                    payload: Payload::Sges(&[sge(key, 0, len)]),
                    dest: None,
                };
                let result = end.qp.post_send(&wr, end.now, &mut end.host);
                posted += u64::from(result.is_ok());
            }
            1 => {
                let sges = [sge(LOCAL, 0, rng.random_range(0..600))];
                receives += u64::from(end.host.receives.post(receives, &sges).is_ok());
                end.qp.receive_posted(&mut end.host);
            }
            2 => {
                end.poll_room(rng.random_range(0..5));
            }
            3 => {
                end.advance(Duration::from_micros(rng.random_range(0..5000)));
                end.qp.handle_timeout(end.now, &mut end.host);
            }
            _ => {
                let header = any_header(&mut rng, &end);
                let full = [0, 1, 255, 256, 257, 8][rng.random_range(0..6)];
                let len = match header.bth.opcode.info().payload {
                    crate::wire::PayloadRule::None => 0,
                    crate::wire::PayloadRule::FullMtu if rng.random_bool(0.9) => MTU,
                    _ => full,
                };
                end.deliver(header, &[0x33; 257][..len]);
            }
        }
        for (wr_id, _) in end.done() {
            assert_eq!(wr_id, completed, "sends complete in order");
            completed += 1;
        }
        for (wr_id, _) in end.received() {
            assert_eq!(wr_id, received, "receives complete in order");
            received += 1;
        }
    }
    let failed = end.qp.state() == QpState::Err;
    if failed {
        assert_eq!((completed, received), (posted, receives), "all is flushed");
        assert_eq!(end.qp.deadline(), Time::NEVER);
    }
    (completed, failed)
}

#[test]
fn work_requests_complete_once_and_in_order_for_arbitrary_packets() {
    let outcomes: Vec<_> = (0..400).map(live).collect();
    // Both outcomes occurred: failed connections and surviving ones.
    assert!(outcomes.iter().any(|(_, failed)| *failed));
    assert!(outcomes.iter().any(|(_, failed)| !failed));
    assert!(outcomes.iter().any(|(completed, _)| *completed > 5));
}
