//! Invariants under random loss, reordering and invalid packets, for many seeds.

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Two queue pairs and a link that loses packets and swaps adjacent ones.
#[test]
fn messages_arrive_complete_and_in_order_or_not_at_all_over_a_lossy_link() {
    const MESSAGES: u64 = 400;
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut a = Endpoint::new();
        let mut b = Endpoint::with(QpAttr {
            rq_psn: Psn::new(OWN_PSN),
            ..attributes()
        });
        let (mut whole, mut arrived) = (Vec::new(), Vec::new());
        for number in 0..MESSAGES {
            if b.host.receives.is_empty() {
                b.receive(number, 5 * MTU);
            }
            let len = rng.random_range(1..5 * MTU);
            let start = rng.random_range(0..1000);
            let op = SendOp::SendImm(number as u32);
            a.try_post(number, op, &[sge(LOCAL, start, len)]).unwrap();
            let mut packets = a.poll();
            assert_eq!(a.done(), [(number, Success)]);
            let sent = packets.clone();
            if rng.random_bool(0.1) && packets.len() > 1 {
                let at = rng.random_range(1..packets.len());
                packets.swap(at - 1, at);
            }
            packets.retain(|_| !rng.random_bool(0.1));
            if packets == sent {
                whole.push(number);
            }
            for packet in &packets {
                b.deliver(packet.header, &packet.payload);
            }
            for (completion, _) in std::mem::take(&mut b.host.receptions) {
                assert_eq!(completion.status, Success);
                assert_eq!(completion.byte_len as usize, len);
                assert_eq!(completion.extra, Extra::Imm(number as u32));
                let expected: Vec<_> = (start..start + len).map(|i| pattern(LOCAL, i)).collect();
                assert_eq!(b.host.bytes(LOCAL, 0, len), expected);
                arrived.push(number);
            }
        }
        assert_eq!(arrived, whole);
        assert!(whole.len() > 100 && whole.len() < MESSAGES as usize);
    }
}

/// A well-formed packet that is often nearly valid.
fn any_packet(rng: &mut StdRng, expected: Psn) -> (Header, usize) {
    let opcodes: Vec<Opcode> = Opcode::all()
        .filter(|opcode| opcode.info().transport == Transport::Uc)
        .collect();
    let opcode = opcodes[rng.random_range(0..opcodes.len())];
    let psn = match rng.random_range(0..10) {
        0 => Psn::new(rng.random()),
        1 => expected + 1,
        _ => expected,
    };
    let mut header = Header::new(opcode, Qpn::new(0x11), psn);
    let has = opcode.info().headers;
    if has.contains(Headers::RETH) {
        let key = [REMOTE, REMOTE, LOCAL, NO_KEY][rng.random_range(0..4)];
        let offset = [0, 8, 1, u64::MAX][rng.random_range(0..4)];
        header = header.with_reth(Reth {
            addr: base(key).wrapping_add(offset),
            rkey: RKey(key),
            length: [0, 1, 256, 257, 512, 1 << 31, u32::MAX][rng.random_range(0..7)],
        });
    }
    if has.contains(Headers::IMMDT) {
        header = header.with_imm(rng.random());
    }
    let len = match opcode.info().payload {
        crate::wire::PayloadRule::FullMtu if rng.random_bool(0.9) => MTU,
        _ => [0, 1, 255, 256, 257][rng.random_range(0..5)],
    };
    (header, len)
}

#[test]
fn receives_complete_once_and_in_order_whatever_the_peer_sends() {
    let mut successes = 0;
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut end = Endpoint::new();
        let (mut posted, mut completed) = (0, 0);
        for _ in 0..200 {
            if rng.random_bool(0.1) {
                let sges = [sge(LOCAL, 0, rng.random_range(300..600))];
                posted += u64::from(end.host.receives.post(posted, &sges).is_ok());
            }
            let (header, len) = any_packet(&mut rng, end.qp.attributes().rq_psn);
            end.deliver(header, &[0x33; 257][..len]);
            for (wr_id, status) in end.received() {
                assert_eq!((wr_id, status), (completed, Success));
                completed += 1;
            }
            assert_eq!(end.poll(), []);
        }
        successes += completed;
        end.enter(QpState::Err);
        for (wr_id, status) in end.received() {
            assert_eq!((wr_id, status), (completed, WrFlushErr));
            completed += 1;
        }
        assert_eq!(completed, posted, "all is flushed");
    }
    assert!(successes > 100, "{successes}");
}
