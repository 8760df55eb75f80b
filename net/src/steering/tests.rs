use super::sweep::{EXTRA_PROBES, Nonce};
use super::*;
use crate::qpn::MAX_RECEIVE_SOCKETS;
use crate::socket::open_receiver;
use crate::tests::own_address;

#[test]
fn answers_from_another_address_or_to_another_sweep_are_rejected() {
    let address = own_address();
    let receiver = open_receiver(address, true).unwrap();
    let counters = Arc::new(NetCounters::default());
    let fd = receiver.as_fd();
    let steering = Steering::join(address, 3, fd, counters.clone(), Time(0)).unwrap();
    let live = vec![3, 4];
    steering.start(&mut steering.state(), live, Time(1));
    let nonce = steering.state().sweep.as_ref().unwrap().nonce;
    let before = steering.state().indices.clone();
    let answer = |nonce: Nonce| Answer {
        magic: ANSWER_MAGIC,
        slot: 4,
        sockets: 0,
        index: [0, 1],
        nonce,
    };
    let to = steering.prober.local_addr().unwrap();
    let other = open_probe_socket(address).unwrap();
    other.send_to(answer(nonce).as_bytes(), &to).unwrap();
    let wrong = nonce.map(|byte| !byte);
    receiver.send_to(answer(wrong).as_bytes(), &to).unwrap();
    receiver.send_to(b"nonsense", &to).unwrap();
    receiver.send_to(&[0; 500], &to).unwrap();
    steering.receive_answers(fd, Time(2)).unwrap();
    assert_eq!(counters.probes_rejected.get(), 4);
    assert!(steering.state().sweep.as_ref().unwrap().answers.is_empty());
    assert_eq!(steering.state().indices, before);
    // An answer from the right address with the right nonce counts.
    receiver.send_to(answer(nonce).as_bytes(), &to).unwrap();
    steering.receive_answers(fd, Time(3)).unwrap();
    // Process 3 does not answer, so it is probed for more sockets before the sweep ends.
    let probes = counters.probes_out.get();
    steering.on_time(Time(1) + SWEEP_TIMEOUT, fd);
    assert_eq!(steering.state().indices, before);
    assert!(counters.probes_out.get() - probes >= MAX_RECEIVE_SOCKETS as u64);
    steering.on_time(Time(1) + 2 * SWEEP_TIMEOUT, fd);
    assert_eq!(steering.state().indices.get(&(4, 0)), Some(&1));
}

#[test]
fn sweep_without_changes_keeps_the_attached_program() {
    let address = own_address();
    let sockets = [(); 2].map(|()| open_receiver(address, true).unwrap());
    let counters = Arc::new(NetCounters::default());
    let [first, second] = [(&sockets[0], 3), (&sockets[1], 9)].map(|(socket, slot)| {
        Steering::join(address, slot, socket.as_fd(), counters.clone(), Time(0)).unwrap()
    });
    let fd = sockets[0].as_fd();
    // The first sweep began before the second socket joined, so only the first socket has
    // answered.
    for now in [1, 2] {
        let mut state = first.state();
        first.start(&mut state, vec![3, 9], Time(now));
        state.sweep.as_mut().unwrap().answers = SocketIndices::from([((3, 0), 0)]);
        if now == 2 {
            // Meanwhile the second process has learnt all indices.
            let whole = SocketIndices::from([((3, 0), 0), ((9, 0), 1)]);
            let slots = program::distribution(&whole);
            program::attach(sockets[1].as_fd(), &slots, Some(1)).unwrap();
        }
        first.evaluate(&mut state, fd, Time(now));
    }
    assert!(!first.state().pending);
    let packet = [4, 0, 0, 0, 0, 9, 0, 7, 0, 0, 0, 0, 0x55];
    let to = address.with_port(ROCE_PORT).into();
    second.prober.send_to(&packet, &to).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
    let is_there = |len: io::Result<usize>| len.is_ok_and(|len| len == packet.len());
    let found = std::iter::from_fn(|| sockets[1].recv(&mut buffer).ok().map(Ok));
    assert!(found.into_iter().any(is_there));
    // A process that received a datagram of another one attaches its indices, changed or not.
    let mut state = first.state();
    state.is_stale = true;
    first.start(&mut state, vec![3, 9], Time(3));
    state.sweep.as_mut().unwrap().answers = SocketIndices::from([((3, 0), 0)]);
    let before = counters.steering_attached.get();
    first.evaluate(&mut state, fd, Time(3));
    assert!(state.pending && counters.steering_attached.get() > before);
}

#[test]
fn slot_that_does_not_answer_is_removed_after_the_timeout() {
    let address = own_address();
    let receiver = open_receiver(address, true).unwrap();
    let fd = receiver.as_fd();
    let counters = Arc::new(NetCounters::default());
    let steering = Steering::join(address, 3, fd, counters, Time(0)).unwrap();
    steering.state().indices = SocketIndices::from([((3, 0), 0), ((9, 0), 1)]);
    let first = Time(1);
    let before = first + SLOT_TIMEOUT / 2;
    let over = first + SLOT_TIMEOUT;
    for (now, rest) in [(first, vec![3, 9]), (before, vec![3, 9]), (over, vec![3])] {
        let mut state = steering.state();
        steering.start(&mut state, vec![3, 9], now);
        let sweep = state.sweep.as_mut().unwrap();
        sweep.answers = SocketIndices::from([((3, 0), 0)]);
        steering.evaluate(&mut state, fd, now);
        let slots: Vec<u8> = state.indices.keys().map(|socket| socket.0).collect();
        assert_eq!(slots, rest);
        assert!(state.pending);
    }
}

/// The processes in slots 3 and 9, of which the first has answered for one of two sockets.
fn sweep_of_two() -> Sweep {
    let mut sweep = Sweep {
        nonce: [0; 16],
        answers: SocketIndices::new(),
        announced: BTreeMap::new(),
        live: vec![3, 9],
        probes: 2 + EXTRA_PROBES,
        unanswered: 2 + EXTRA_PROBES,
        deadline: Time(0),
        changed: false,
    };
    sweep.answered(&answer_of(3, Answer::sockets(0, 2), 0));
    sweep
}

fn answer_of(slot: u8, sockets: u8, index: u16) -> Answer {
    Answer {
        magic: ANSWER_MAGIC,
        slot,
        sockets,
        index: index.to_be_bytes(),
        nonce: [0; 16],
    }
}

#[test]
fn answer_carries_the_number_of_the_socket_and_of_all_sockets() {
    for (number, count) in [(0, 1), (0, 2), (1, 2), (3, 16), (15, 16)] {
        let answer = answer_of(7, Answer::sockets(number, count), 0);
        assert_eq!(answer.socket(), (7, number as u8));
        assert_eq!(answer.count(), count as u8);
    }
    // What processes of earlier versions send.
    assert_eq!(Answer::sockets(0, 1), 0);
}

#[test]
fn sweep_is_complete_when_each_process_has_answered_for_all_its_sockets() {
    let mut sweep = sweep_of_two();
    // A process of an earlier version.
    sweep.answered(&answer_of(9, 0, 2));
    assert!(!sweep.is_complete());
    sweep.answered(&answer_of(3, Answer::sockets(1, 2), 1));
    assert!(sweep.is_complete());
    // A later answer of the same socket does not count.
    sweep.answered(&answer_of(3, Answer::sockets(1, 2), 5));
    assert_eq!(sweep.answers[&(3, 1)], 1);
}

#[test]
fn answers_that_announce_further_sockets_cause_further_probes() {
    let address = own_address();
    let receiver = open_receiver(address, true).unwrap();
    let fd = receiver.as_fd();
    let counters = Arc::new(NetCounters::default());
    let steering = Steering::join(address, 3, fd, counters.clone(), Time(0)).unwrap();
    steering.start(&mut steering.state(), vec![3, 4], Time(1));
    let nonce = steering.state().sweep.as_ref().unwrap().nonce;
    let before = counters.probes_out.get();
    let to = steering.prober.local_addr().unwrap();
    for number in [2, 0, 2] {
        let answer = Answer {
            nonce,
            ..answer_of(4, Answer::sockets(number, 8), number as u16)
        };
        receiver.send_to(answer.as_bytes(), &to).unwrap();
    }
    steering.receive_answers(fd, Time(2)).unwrap();
    assert_eq!(counters.probes_out.get() - before, 7);
    let state = steering.state();
    let sweep = state.sweep.as_ref().unwrap();
    assert_eq!(sweep.probes, 2 + 7 + EXTRA_PROBES);
    assert_eq!(sweep.unanswered, sweep.probes - 3);
    // The answers have no gaps only up to the first socket.
    assert!(!sweep.is_complete() && sweep.answers.len() == 2);
}

#[test]
fn sockets_that_a_process_no_longer_announces_are_removed() {
    let address = own_address();
    let receiver = open_receiver(address, true).unwrap();
    let fd = receiver.as_fd();
    let counters = Arc::new(NetCounters::default());
    let steering = Steering::join(address, 9, fd, counters, Time(0)).unwrap();
    let mut state = steering.state();
    let sockets = [((3, 0), 0), ((3, 1), 7), ((3, 2), 8), ((9, 0), 3)];
    state.indices = SocketIndices::from(sockets);
    state.sweep = Some(sweep_of_two());
    steering.evaluate(&mut state, fd, Time(1));
    // Socket 1 has not answered yet, and the process has no socket 2.
    let rest = [((3, 0), 0), ((3, 1), 7), ((9, 0), 3)];
    assert_eq!(state.indices, SocketIndices::from(rest));
}

#[test]
fn own_sockets_are_kept_and_swept_until_all_are_known() {
    let address = own_address();
    let receiver = open_receiver(address, true).unwrap();
    let fd = receiver.as_fd();
    let counters = Arc::new(NetCounters::default());
    let steering = Steering::join(address, 3, fd, counters, Time(0)).unwrap();
    steering.own_sockets.store(4, Ordering::Relaxed);
    let mut now = Time(1);
    let mut sweep = |answers: &[(SocketId, u16)]| {
        let mut state = steering.state();
        state.pending = false;
        steering.start(&mut state, vec![3], now);
        state.sweep.as_mut().unwrap().answers = answers.iter().copied().collect();
        steering.evaluate(&mut state, fd, now);
        now = now + SLOT_TIMEOUT * 2;
        (state.pending, steering.steered_sockets())
    };
    let all = [((3, 0), 0), ((3, 1), 1), ((3, 2), 2), ((3, 3), 3)];
    // Socket 3 has not been read: the program distributes to a power of two.
    for _ in 0..3 {
        assert_eq!(sweep(&all[..3]), (true, 2));
    }
    sweep(&all);
    assert_eq!(sweep(&all), (false, 4));
    for _ in 0..3 {
        assert_eq!(sweep(&all[..1]), (true, 4));
    }
}
