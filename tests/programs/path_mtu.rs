//! A link with a smaller MTU in the middle of the path: programs end with an error and a message
//! that names the cause, or work with the path MTU that the message suggests.

use crate::common::namespace::RoutedPath;
use crate::common::perftest::Perftest;
use crate::common::pingpong::Side;
use crate::common::require::{IP, Need, PERFTEST, require};
use crate::common::runner::Runner;

/// The MTU of the link from the router to the server. That of the client's interface is 9000.
const LINK_MTU: u32 = 1400;

fn routed() -> Option<RoutedPath> {
    require(&[PERFTEST, IP, Need::NetworkNamespaces])
        .then(|| RoutedPath::new(&Runner::here(), LINK_MTU))
}

fn messages_of_4096_bytes(program: &'static str, path: &RoutedPath, mtu: u32) -> Perftest {
    let server = Side::new(path.b.runner(), "urxe_vb");
    let client = Side::new(path.a.runner(), "urxe_va");
    let run = Perftest::new(program, server, client, RoutedPath::B);
    // The peer has an ACK timeout, here 2^16 x 4.096 us, to answer a short packet.
    run.options(&format!("-s 4096 -n 10 -m {mtu} -u 16"))
}

/// Returns the messages of the client, whose packets of 4096 bytes do not arrive.
#[track_caller]
fn refused(program: &'static str, path: &RoutedPath) -> String {
    let client = messages_of_4096_bytes(program, path, 4096).run().client;
    assert!(!client.timed_out && !client.status.success(), "{client}");
    // Retry exceeded.
    let output = format!("{}{}", client.stdout, client.stderr);
    assert!(output.contains("Failed status 12"), "{client}");
    client.stderr
}

#[test]
fn link_with_a_known_smaller_mtu_is_named_and_a_smaller_path_mtu_works() {
    let Some(path) = routed() else { return };
    path.report_mtu(LINK_MTU);
    let messages = refused("ib_send_lat", &path);
    assert!(messages.contains("carries only 1400 bytes"), "{messages}");
    assert!(messages.contains("path MTU of 1024"), "{messages}");
    let about = messages.matches(RoutedPath::B).count();
    assert_eq!(about, 1, "one message for a peer: {messages}");
    let smaller = messages_of_4096_bytes("ib_send_lat", &path, 1024);
    smaller.run().success(&[4096], 10);
}

#[test]
fn link_whose_report_does_not_arrive_is_suspected() {
    let Some(path) = routed() else { return };
    path.drop_mtu_reports();
    for program in ["ib_send_lat", "ib_read_lat"] {
        let messages = refused(program, &path);
        assert!(messages.contains("answers short packets"), "{messages}");
        assert!(messages.contains("4140 bytes"), "{messages}");
    }
}
