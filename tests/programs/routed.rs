//! Paths through routers: the hop limit, another way back, and an address that moves to another
//! interface.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace::RoutedPath;
use crate::common::perftest::Perftest;
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{IP, Need, PERFTEST, PINGPONG, require};
use crate::common::run::POLL_INTERVAL;
use crate::common::runner::Runner;

const LIMIT: Duration = Duration::from_secs(60);

fn routed(program: Need) -> Option<RoutedPath> {
    require(&[program, IP, Need::NetworkNamespaces]).then(|| RoutedPath::new(&Runner::here(), 9000))
}

fn sides(path: &RoutedPath) -> (Side, Side) {
    let server = Side::new(path.b.runner(), "urxe_vb");
    let client = Side::new(path.a.runner(), "urxe_va");
    (server, client)
}

#[test]
fn packets_have_the_hop_limit_of_the_route() {
    let Some(path) = routed(PINGPONG) else { return };
    // These programs set a hop limit of 1, which the kernel replaces.
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"] {
        let (server, client) = sides(&path);
        let run = Pingpong::new(server, client, RoutedPath::B).program(program);
        run.size(1024).iterations(10).run().success();
    }
}

#[test]
fn answers_may_return_through_another_router() {
    let Some(path) = routed(PERFTEST) else { return };
    let second = path.add_router();
    path.return_through_second_router();
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        let (server, client) = sides(&path);
        let before = second.received_packets("sb");
        let run = Perftest::new(program, server, client, RoutedPath::B);
        // The ACK timeout is 1 s.
        let run = run.options("-s 65536 -n 400 -u 18");
        run.run().success(&[65536], 400);
        // An acknowledgement for each 256 KiB at least.
        let returned = second.received_packets("sb") - before;
        assert!(returned >= 100, "{returned} packets");
    }
}

#[test]
fn transfer_continues_when_an_address_moves_to_another_interface() {
    let Some(path) = routed(PERFTEST) else { return };
    let second = path.add_router();
    let before = path.b.received_packets("vb");
    let (server, client) = sides(&path);
    // The transfer takes two seconds or more, so that the address moves meanwhile.
    let client = client.env("URXE_FAULTS", "rate=80Mbit");
    let run = Perftest::new("ib_write_bw", server, client, RoutedPath::B);
    // The ACK timeout is 4 s.
    let pair = run.options("-s 4096 -n 5000 -u 20").start();
    let deadline = Instant::now() + LIMIT;
    while path.b.received_packets("vb") < before + 50 {
        assert!(Instant::now() < deadline, "the transfer does not begin");
        thread::sleep(POLL_INTERVAL);
    }
    path.move_address();
    let sent = second.received_packets("sa");
    pair.finish().success(&[4096], 5000);
    assert!(
        second.received_packets("sa") > sent,
        "the transfer ended before the address moved"
    );
}
