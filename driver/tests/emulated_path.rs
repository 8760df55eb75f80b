//! Connections over the path that `URXE_FAULTS` emulates.

mod common;

use common::{ALL, Buffer, pair};
use std::env;
use urxe_driver::path;
use urxe_proto::ids::RKey;
use urxe_proto::work::{SendOp, WcStatus};

/// More connections than the in-flight limit of a same-host peer admits at once.
const CONNECTIONS: usize = 80;

/// Bytes of a message.
const LENGTH: usize = 256 << 10;

#[test]
fn packets_on_an_emulated_path_do_not_count_as_in_a_receive_buffer() {
    // SAFETY: this is the only test of its process, and no other thread reads the environment:
    // urxe reads it when the first device is opened, below.
    unsafe { env::set_var("URXE_FAULTS", "delay=1ms,seed=1") };
    let ends: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (a, b) = pair(|_| ());
            let from = Buffer::new(&a.pd, LENGTH, ALL);
            let to = Buffer::new(&b.pd, LENGTH, ALL);
            (a, b, from, to)
        })
        .collect();
    for (a, _, from, to) in &ends {
        let (addr, rkey) = (to.mr.addr(), RKey(to.mr.rkey().0));
        a.post(
            1,
            SendOp::Write { addr, rkey },
            &[from.sge(0, LENGTH as u32)],
        );
    }
    for (a, ..) in &ends {
        assert_eq!(a.completion().status, WcStatus::Success);
    }
    assert_eq!(path::get().quantum_waits(), 0);
}
