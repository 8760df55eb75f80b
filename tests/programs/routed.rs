//! Paths through routers: the hop limit, another way back, an address that moves to another
//! interface, and routers that change headers.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::namespace::{Namespace, RoutedPath};
use crate::common::perftest::{Pair, Perftest};
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{IP, NFT, Need, PERFTEST, PINGPONG, require};
use crate::common::run::POLL_INTERVAL;
use crate::common::runner::Runner;
use crate::common::stat::{processes, stat};

const LIMIT: Duration = Duration::from_secs(60);

fn routed(program: Need) -> Option<RoutedPath> {
    require(&[program, IP, Need::NetworkNamespaces]).then(|| RoutedPath::new(&Runner::here(), 9000))
}

fn sides(path: &RoutedPath) -> (Side, Side) {
    let server = Side::new(path.b.runner(), "urxe_vb");
    let client = Side::new(path.a.runner(), "urxe_va");
    (server, client)
}

/// Starts a transfer of eight seconds or more, waits until it has begun, and returns it with its
/// number of messages of 4096 bytes.
fn long_transfer(path: &RoutedPath) -> (Pair, u64) {
    const ITERATIONS: u64 = 5000;
    let before = path.b.received_packets("vb");
    let (server, client) = sides(path);
    let client = client.env("URXE_FAULTS", "rate=20Mbit");
    let run = Perftest::new("ib_write_bw", server, client, RoutedPath::B);
    // The ACK timeout is 4 s.
    let pair = run
        .options(&format!("-s 4096 -n {ITERATIONS} -u 20"))
        .start();
    wait_until("the transfer does not begin", || {
        path.b.received_packets("vb") >= before + 50
    });
    (pair, ITERATIONS)
}

#[track_caller]
fn wait_until(failure: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{failure}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns a counter of the only process of a host, from this group of its device or from the
/// process itself.
fn counter(host: &Namespace, group: &str, name: &str) -> u64 {
    let survey = stat(host.runner(), &[]);
    let [process] = processes(&survey) else {
        panic!("not one process: {survey}")
    };
    let devices = process["devices"].as_object().expect("an object");
    let counts: &Value = match group {
        "process" => &process["process"],
        _ => devices
            .values()
            .next()
            .map_or(&Value::Null, |it| &it[group]),
    };
    counts[name].as_u64().unwrap_or(0)
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
    let (pair, iterations) = long_transfer(&path);
    path.move_address();
    let sent = second.received_packets("sa");
    pair.finish().success(&[4096], iterations);
    assert!(
        second.received_packets("sa") > sent,
        "the transfer ended before the address moved"
    );
}

#[test]
fn transfer_continues_after_the_hop_limit_was_exhausted() {
    let Some(path) = routed(PERFTEST) else { return };
    let (pair, iterations) = long_transfer(&path);
    let exhausted = || path.router.kernel_counter("Ip", "InHdrErrors");
    let before = exhausted();
    path.set_hop_limit(1);
    wait_until("no packet is dropped", || exhausted() > before);
    // The sender's socket also gets errors: ICMP, time exceeded.
    wait_until("the router does not report it", || {
        path.a.kernel_counter("Icmp", "InTimeExcds") > 0
    });
    path.set_hop_limit(64);
    pair.finish().success(&[4096], iterations);
}

#[test]
fn exhausted_hop_limit_ends_the_connection_within_its_retries() {
    let Some(path) = routed(PERFTEST) else { return };
    let (server, client) = sides(&path);
    let run = Perftest::new("ib_write_lat", server, client, RoutedPath::B);
    // Eight ACK timeouts of four times 4.096 us * 2^14, which is 67 ms: 2.1 s.
    let run = run.options("-s 4096 -n 5 -u 14");
    // The TCP connection of perftest has the same route, so only RoCE packets get the limit.
    path.limit_hops_of_roce();
    let started = Instant::now();
    let client = run.run().client;
    assert!(!client.timed_out && !client.status.success(), "{client}");
    let output = format!("{}{}", client.stdout, client.stderr);
    assert!(output.contains("Failed status 12"), "{client}");
    let took = started.elapsed();
    assert!(took > Duration::from_millis(2000), "{took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn path_that_clears_ecn_marks_carries_transfers_without_congestion_notifications() {
    let needs = [PERFTEST, IP, NFT, Need::NetworkNamespaces];
    if !require(&needs) {
        return;
    }
    let path = RoutedPath::new(&Runner::here(), 9000);
    let marked = || counter(&path.b, "diagnostic", "np_ecn_marked_roce_packets");
    let notified = || counter(&path.a, "diagnostic", "rp_cnp_handled");
    // A hop that marks every packet; and behind it a hop that clears the marks.
    path.change_packets(&["ip ecn set ce"]);
    let (pair, iterations) = long_transfer(&path);
    wait_until("no mark arrives", || marked() > 0);
    wait_until("no notification arrives", || notified() > 0);
    path.change_packets(&["ip ecn set ce", "ip ecn set not-ect"]);
    pair.finish().success(&[4096], iterations);

    let (pair, iterations) = long_transfer(&path);
    assert_eq!((marked(), notified()), (0, 0));
    pair.finish().success(&[4096], iterations);
}

/// The ICRC covers addresses and ports (A17.3.3). So no connection crosses a NAT, and a path may
/// not change the port in the middle of one.
#[test]
fn packets_whose_source_port_was_rewritten_are_dropped_and_the_transfer_continues_after_them() {
    let needs = [PERFTEST, IP, NFT, Need::NetworkNamespaces];
    if !require(&needs) {
        return;
    }
    let path = RoutedPath::new(&Runner::here(), 9000);
    let (pair, iterations) = long_transfer(&path);
    assert_eq!(counter(&path.b, "process", "icrc_errors"), 0);
    path.change_packets(&["udp sport set 50000"]);
    wait_until("no packet has a wrong ICRC", || {
        counter(&path.b, "process", "icrc_errors") > 0
    });
    path.change_packets(&[]);
    pair.finish().success(&[4096], iterations);
}
