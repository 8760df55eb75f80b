//! Processes that share an address: each receives its datagrams while others join and leave.

use super::*;
use crate::sys::set_option;

#[test]
fn processes_with_different_slots_share_an_address() {
    let address = own_address();
    let mut nodes: Vec<Node> = (0..4)
        .map(|_| Node::new(address, Options::default()))
        .collect();
    let mut other = Node::new(own_address(), Options::default());
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    for round in 0..50 {
        for node in &mut all {
            other.send((address, node.qpn()), round * 10, &[256; 10]);
        }
        pump_until(&mut all, |n| {
            n.iter().all(|n| n.got.len() == (round as usize + 1) * 10)
        });
    }
    // All processes have learnt the indices, and nothing is forwarded any more.
    let forwarded = |all: &[&mut Node]| -> u64 {
        let out = |n: &&mut Node| n.shared.counters().forwarded_out.get();
        all.iter().map(out).sum()
    };
    settle(&mut all);
    let before = forwarded(&all);
    for node in &mut all {
        other.send((address, node.qpn()), 900, &[256; 10]);
    }
    pump_until(&mut all, |n| n.iter().all(|n| n.got.len() == 510));
    assert_eq!(forwarded(&all), before);
}

/// Waits until all sweeps have ended.
fn settle(all: &mut [&mut Node]) {
    pump_until(all, |n| {
        n.iter().all(|n| n.endpoint.next_deadline() == Time::NEVER)
    });
}

#[test]
fn new_order_is_learnt_after_a_socket_closes() {
    let address = own_address();
    let mut nodes: Vec<Node> = (0..5)
        .map(|_| Node::new(address, Options::default()))
        .collect();
    let mut other = Node::new(own_address(), Options::default());
    settle(&mut nodes.iter_mut().collect::<Vec<_>>());
    // The last socket takes the index of the first. The new socket takes that of the last.
    drop(nodes.remove(0));
    nodes.push(Node::new(address, Options::default()));
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    for node in &mut all {
        other.send((address, node.qpn()), 0, &[256; 10]);
    }
    pump_until(&mut all, |n| n.iter().all(|n| n.got.len() == 10));
    settle(&mut all);
    let forwarded = |all: &[&mut Node]| -> u64 {
        let out = |n: &&mut Node| n.shared.counters().forwarded_out.get();
        all.iter().map(out).sum()
    };
    let before = forwarded(&all);
    assert!(
        before > 0,
        "no datagram was forwarded, so the test shows nothing"
    );
    for node in &mut all {
        other.send((address, node.qpn()), 10, &[256; 10]);
    }
    pump_until(&mut all, |n| n.iter().all(|n| n.got.len() == 20));
    assert_eq!(forwarded(&all), before);
}

#[test]
fn leaving_process_loses_no_datagrams_of_the_others() {
    let address = own_address();
    let mut nodes: Vec<Node> = (0..4)
        .map(|_| Node::new(address, Options::default()))
        .collect();
    let mut other = Node::new(own_address(), Options::default());
    settle(&mut nodes.iter_mut().collect::<Vec<_>>());
    // The first and the last socket. Their processes stay idle before they end.
    let leaving = [nodes.remove(0), nodes.remove(2)];
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    for (first, end) in [0, 10].into_iter().zip(&leaving) {
        for node in &mut all {
            other.send((address, node.qpn()), first, &[256; 10]);
        }
        end.endpoint.leave();
    }
    for node in &mut all {
        other.send((address, node.qpn()), 20, &[256; 10]);
    }
    pump_until(&mut all, |n| n.iter().all(|n| n.got.len() == 30));
}

#[test]
fn processes_that_join_together_forward_nothing() {
    let address = own_address();
    let mut other = Node::new(own_address(), Options::default());
    for _ in 0..5 {
        let (together, ready) = (Barrier::new(2), AtomicU32::new(0));
        let join = || {
            let shared = Shared::new(Options::default()).unwrap();
            together.wait();
            let start = now();
            let endpoint = shared.open(address).unwrap();
            let took = now().since(start);
            let mut node = Node::of(shared, endpoint);
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 {
                node.pump();
            }
            (node, took)
        };
        let mut joined = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(join));
            threads.map(|thread| thread.join().unwrap())
        });
        for (node, _) in &joined {
            other.send((address, node.qpn()), 0, &[256; 10]);
        }
        // On a busy machine `open` times out, and the sweep continues while the process receives.
        let timed_out = joined
            .iter()
            .any(|(_, took)| *took >= steering::SWEEP_TIMEOUT);
        let mut all: Vec<&mut Node> = joined.iter_mut().map(|(node, _)| node).collect();
        pump_until(&mut all, |n| n.iter().all(|n| n.got.len() == 10));
        let forwarded_out = |n: &&mut Node| n.shared.counters().forwarded_out.get();
        let forwarded: u64 = all.iter().map(forwarded_out).sum();
        assert!(timed_out || forwarded == 0, "{forwarded} forwarded");
    }
}

#[test]
fn datagrams_that_arrive_while_the_port_opens_are_kept() {
    let address = own_address();
    // The old node answers no probes, so `open` takes its full timeout.
    let mut old = Node::new(address, Options::default());
    let mut other = Node::new(own_address(), Options::default());
    let shared = Shared::new(Options::default()).unwrap();
    let qpn = Qpn::new(shared.qpns().start() + 7);
    let mut sent = 0;
    let endpoint = std::thread::scope(|scope| {
        let opening = scope.spawn(|| shared.open(address).unwrap());
        while !opening.is_finished() && sent < 40 {
            // No steering program includes the new socket yet, so the kernel distributes flows over
            // both sockets.
            other.send_flow((address, qpn), sent, sent, &[64]);
            sent += 1;
            std::thread::sleep(Duration::from_micros(500));
        }
        opening.join().unwrap()
    });
    let mut new = Node::of(shared, endpoint);
    pump_until(&mut [&mut old, &mut new], |n| {
        n[1].got.len() == sent as usize
    });
    let mut numbers: Vec<u32> = new.got.iter().map(|got| got.0).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..sent));
}

#[test]
fn qp_1_belongs_to_the_lowest_slot_and_moves_when_its_process_ends() {
    let address = own_address();
    let mut processes = [(); 3].map(|()| Shared::new(Options::default()).unwrap());
    // Existing processes are not notified of a joining one, so they open in the order of the slots.
    processes.sort_by_key(|shared| shared.slot());
    let mut nodes: Vec<Node> = processes
        .into_iter()
        .map(|shared| {
            let endpoint = shared.open(address).unwrap();
            Node::of(shared, endpoint)
        })
        .collect();
    let mut other = Node::new(own_address(), Options::default());
    settle(&mut nodes.iter_mut().collect::<Vec<_>>());
    other.send((address, Qpn::GSI), 1, &[256]);
    pump_until(&mut nodes.iter_mut().collect::<Vec<_>>(), |n| {
        n[0].got.len() == 1
    });
    drop(nodes.remove(0));
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    // Each process may forward one datagram to the ended one before it detects the end. That
    // datagram is lost; the transport would retransmit it.
    for _ in 0..2 {
        let before = all[0].got.len();
        let mut number = 2;
        pump_until(&mut all, |n| {
            number += 1;
            other.send((address, Qpn::GSI), number, &[256]);
            n[0].got.len() > before
        });
        settle(&mut all);
    }
    assert!(all[1].got.is_empty());
}

#[test]
fn datagrams_for_an_empty_slot_are_counted() {
    let address = own_address();
    let mut node = Node::new(address, Options::default());
    let mut other = Node::new(own_address(), Options::default());
    other.send((address, Qpn::new(0xfe_0000)), 1, &[256; 3]);
    pump_until(&mut [&mut node], |n| {
        n[0].shared.counters().no_such_slot.get() == 3
    });
    assert!(node.got.is_empty());
}

#[test]
fn probes_from_another_address_are_not_answered() {
    let address = own_address();
    let mut node = Node::new(address, Options::default());
    let mut other = Node::new(own_address(), Options::default());
    // It is alone at its address, so its probes return to it.
    pump_until(&mut [&mut node], |n| {
        let counters = n[0].shared.counters();
        let settled = n[0].endpoint.next_deadline() == Time::NEVER;
        settled && counters.probes_in.get() == counters.probes_out.get()
    });
    let before = node.shared.counters().probes_in.get();
    other.send((address, Qpn::new(0xff_0000)), 1, &[256]);
    pump_until(&mut [&mut node], |n| {
        n[0].shared.counters().probes_rejected.get() == 1
    });
    assert_eq!(node.shared.counters().probes_in.get(), before);
}

#[test]
fn first_datagram_of_a_new_connection_is_received_by_the_call_that_accepts_it() {
    let [sender, receiver] = [(); 2].map(|()| Shared::new(Options::default()).unwrap());
    let (src, dst) = ((Ipv4Addr::LOCALHOST, 50_000).into(), own_address());
    assert!(sender.forward(receiver.slot(), &Datagram::new(src, dst, &[7; 20])));
    let messages = receiver.recv_forwarded(&mut RecvBatch::new(), |_| {});
    assert_eq!(messages.unwrap(), 1);
    assert_eq!(receiver.counters().forwarded_in.get(), 1);
}

impl Node {
    /// Returns a node with `count` receive sockets.
    fn with_sockets(address: LocalAddress, count: usize) -> Node {
        let node = Node::new(address, Options::default());
        node.endpoint.add_receive_sockets(count).unwrap();
        assert_eq!(node.endpoint.receive_sockets(), count);
        node
    }

    /// The queue pair with a number in this process.
    fn qpn_of(&self, low: u32) -> Qpn {
        Qpn::new(self.shared.qpns().start() + low)
    }

    /// The index of each receive socket, where they follow `first` in their order.
    fn indices_from(&self, first: u16) -> steering::program::SocketIndices {
        let numbers = 0..self.endpoint.receive_sockets() as u8;
        let ids = numbers.map(|number| (self.shared.slot(), number));
        ids.zip(first..).collect()
    }

    /// Attaches a steering program for these indices.
    fn attach(&self, indices: &steering::program::SocketIndices) {
        let slots = steering::program::distribution(indices);
        steering::program::attach(self.endpoint.fd(), &slots, None).unwrap();
    }
}

/// Sends one packet to each of 32 queue pairs of each node. Returns whether each has reached the
/// socket that its number selects.
fn reach_their_sockets(all: &mut [&mut Node], sender: &mut Node) -> bool {
    let mut all_right = true;
    for at in 0..all.len() {
        for low in 16..48 {
            let qpn = all[at].qpn_of(low);
            let before = all[at].got.len();
            all[at].sockets.clear();
            sender.send_flow((all[at].endpoint.address(), qpn), low, low, &[64]);
            pump_until(all, |n| n[at].got.len() > before);
            assert_eq!(all[at].got.len(), before + 1);
            let number = receive_socket_of(qpn, all[at].endpoint.steered_sockets());
            all_right &= all[at].sockets == [number];
        }
    }
    all_right
}

#[test]
fn sockets_of_a_process_are_selected_by_the_low_bits_of_the_qpn() {
    let mut other = Node::new(own_address(), Options::default());
    for count in [1, 2, 4, MAX_RECEIVE_SOCKETS] {
        let mut node = Node::with_sockets(own_address(), count);
        assert!((0..count).all(|number| node.endpoint.fd_of(number).is_some()));
        assert!(node.endpoint.fd_of(count).is_none());
        assert_eq!(node.endpoint.fill(count, &mut node.receive).unwrap(), 0);
        assert_eq!(node.endpoint.steered_sockets(), 1);
        settle(&mut [&mut node]);
        assert_eq!(node.endpoint.steered_sockets(), count);
        assert!(reach_their_sockets(&mut [&mut node], &mut other));
        // No datagram was at the wrong socket.
        assert_eq!(node.endpoint.next_deadline(), Time::NEVER);
    }
}

#[test]
fn packets_of_a_queue_pair_stay_in_order_when_it_moves_to_another_socket() {
    let mut other = Node::new(own_address(), Options::default());
    loop {
        let mut node = Node::with_sockets(own_address(), 2);
        let to = (node.endpoint.address(), node.qpn_of(17));
        let read = |node: &mut Node, number| {
            let Node {
                endpoint, receive, ..
            } = node;
            let mut read = Vec::new();
            while endpoint.fill(number, receive).unwrap() > 0 {
                endpoint.deliver(number, receive, |d| read.push(number_of(d.bytes)));
            }
            read
        };
        // Until the program is attached, packets arrive at socket 0.
        let (mut sent, mut before) = (0, now());
        let mut got = Vec::new();
        while node.endpoint.steered_sockets() == 1 {
            for number in [0, 1] {
                got.extend(read(&mut node, number));
            }
            sent += 1;
            other.send(to, sent, &[64]);
            before = now();
            let Node {
                endpoint, receive, ..
            } = &mut node;
            endpoint.service(receive, |_| ()).unwrap();
        }
        sent += 1;
        other.send(to, sent, &[64]);
        let early = read(&mut node, 1);
        if now().since(before) >= steering::DRAIN_TIMEOUT {
            // The drain may have ended.
            continue;
        }
        assert_eq!(early, []);
        got.extend(read(&mut node, 0));
        got.extend(read(&mut node, 1));
        assert!(got.into_iter().eq(1..=sent));
        return;
    }
}

#[test]
fn sweep_of_another_process_learns_all_sockets_of_this_one() {
    let address = own_address();
    let mut other = Node::new(own_address(), Options::default());
    let mut first = Node::with_sockets(address, 8);
    settle(&mut [&mut first]);
    let before = first.shared.counters().steering_attached.get();
    // It attaches its program after this, and expects one socket of each process.
    let mut second = Node::new(address, Options::default());
    pump_until(&mut [&mut first, &mut second], |n| {
        n[1].shared.counters().steering_attached.get() > 0
    });
    settle(&mut [&mut first, &mut second]);
    assert!(reach_their_sockets(
        &mut [&mut first, &mut second],
        &mut other
    ));
    let counters = first.shared.counters();
    assert_eq!(counters.steering_attached.get(), before);
    // The indices of the sockets that join later are not contiguous.
    second.endpoint.add_receive_sockets(2).unwrap();
    settle(&mut [&mut first, &mut second]);
    first.endpoint.add_receive_sockets(16).unwrap();
    settle(&mut [&mut first, &mut second]);
    assert_eq!(first.endpoint.steered_sockets(), 16);
    assert_eq!(second.endpoint.steered_sockets(), 2);
    assert!(reach_their_sockets(
        &mut [&mut first, &mut second],
        &mut other
    ));
}

/// Without a program the kernel distributes the packets of a connection to any of the sockets.
#[test]
fn no_sockets_are_added_where_the_kernel_refuses_the_steering_program() {
    let mut node = Node::new(own_address(), Options::default());
    set_option(
        node.endpoint.fd(),
        libc::SOL_SOCKET,
        libc::SO_LOCK_FILTER,
        1,
    )
    .unwrap();
    node.endpoint.add_receive_sockets(2).unwrap();
    settle(&mut [&mut node]);
    assert_eq!(node.endpoint.steered_sockets(), 1);
    node.endpoint.add_receive_sockets(4).unwrap();
    assert_eq!(node.endpoint.receive_sockets(), 2);
}

#[test]
fn datagram_at_another_socket_of_its_process_is_delivered_and_starts_a_sweep() {
    let address = own_address();
    let mut other = Node::new(own_address(), Options::default());
    let mut node = Node::with_sockets(address, 4);
    settle(&mut [&mut node]);
    // Single datagrams, and a GRO batch.
    for lengths in [&[64][..], &[256; 10]] {
        let wrong = node
            .indices_from(0)
            .into_iter()
            .map(|(id, at)| (id, at ^ 1));
        node.attach(&wrong.collect());
        let sweeps = node.shared.counters().sweeps.get();
        let before = node.got.len();
        node.sockets.clear();
        other.send((address, node.qpn_of(16)), 0, lengths);
        pump_until(&mut [&mut node], |n| {
            n[0].got.len() == before + lengths.len()
        });
        assert!(node.sockets.iter().all(|number| *number == 1));
        settle(&mut [&mut node]);
        assert!(node.shared.counters().sweeps.get() > sweeps);
        assert!(reach_their_sockets(&mut [&mut node], &mut other));
    }
    // QP 1 has no socket of its own.
    let sweeps = node.shared.counters().sweeps.get();
    let moved = node
        .indices_from(0)
        .into_iter()
        .map(|(id, at)| (id, at ^ 1));
    node.attach(&moved.collect());
    let before = node.got.len();
    other.send((address, Qpn::GSI), 0, &[256]);
    pump_until(&mut [&mut node], |n| n[0].got.len() > before);
    assert_eq!(node.endpoint.next_deadline(), Time::NEVER);
    assert_eq!(node.shared.counters().sweeps.get(), sweeps);
}

#[test]
fn leaving_process_drains_all_its_sockets() {
    let address = own_address();
    let mut other = Node::new(own_address(), Options::default());
    let mut leaving = Node::with_sockets(address, 4);
    let mut rest = Node::with_sockets(address, 2);
    settle(&mut [&mut leaving, &mut rest]);
    // The datagrams of each queue pair of the other process go to a socket of its own.
    let slot = rest.shared.slot();
    leaving.attach(
        &leaving
            .indices_from(0)
            .values()
            .map(|at| ((slot, *at as u8), *at))
            .collect(),
    );
    let forwarded = leaving.shared.counters().forwarded_out.get();
    for low in 16..20 {
        other.send((address, rest.qpn_of(low)), low * 10, &[256; 10]);
    }
    leaving.endpoint.leave();
    // After this no sockets join the group.
    leaving.endpoint.add_receive_sockets(8).unwrap();
    assert_eq!(leaving.endpoint.receive_sockets(), 4);
    pump_until(&mut [&mut rest], |n| n[0].got.len() == 40);
    assert_eq!(
        leaving.shared.counters().forwarded_out.get() - forwarded,
        40
    );
    settle(&mut [&mut rest]);
    // The indices have changed; the process that is left learns them.
    reach_their_sockets(&mut [&mut rest], &mut other);
    settle(&mut [&mut rest]);
    assert!(reach_their_sockets(&mut [&mut rest], &mut other));
}

#[test]
fn requests_reach_the_lowest_slot_where_processes_have_several_sockets() {
    let address = own_address();
    let mut other = Node::new(own_address(), Options::default());
    let mut processes = [(); 3].map(|()| Shared::new(Options::default()).unwrap());
    processes.sort_by_key(|shared| shared.slot());
    let mut nodes = processes.map(|shared| {
        let endpoint = shared.open(address).unwrap();
        Node::of(shared, endpoint)
    });
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    settle(&mut all);
    for at in [2, 0, 1] {
        all[at].endpoint.add_receive_sockets(4).unwrap();
        settle(&mut all);
        all[0].sockets.clear();
        let before = all[0].got.len();
        for flow in 0..8 {
            other.send_flow((address, Qpn::GSI), flow, flow, &[256]);
        }
        pump_until(&mut all, |n| n[0].got.len() == before + 8);
        assert_eq!(all[0].sockets, [0; 8]);
    }
}
