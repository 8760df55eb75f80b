//! `ibv_rc_pingpong` over a network that loses, duplicates and reorders packets.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::capture::dissect;
use crate::common::pingpong::{Pingpong, Side};
use crate::common::require::{PINGPONG, TSHARK, require};
use crate::common::runner::{Directory, Runner};

fn faulty(faults: &str) -> Pingpong {
    let runner = Runner::alone();
    let side = |seed: u32| {
        Side::new(&runner, "urxe_lo").env("URXE_FAULTS", &format!("{faults},seed={seed}"))
    };
    Pingpong::new(side(1), side(2), "127.0.0.1").limit(Duration::from_secs(120))
}

#[test]
fn loss_duplication_and_reordering() {
    if !require(&[PINGPONG]) {
        return;
    }
    let pingpong = faulty("drop=2%,dup=2%,reorder=2%").options("-c");
    pingpong.clone().run().success();
    pingpong.clone().options("-e").run().success();
    pingpong
        .clone()
        .options("-r 1")
        .iterations(300)
        .run()
        .success();
    pingpong.size(1 << 20).iterations(20).run().success();
}

#[test]
fn corruption() {
    if !require(&[PINGPONG]) {
        return;
    }
    faulty("corrupt=2%")
        .options("-c")
        .size(10_000)
        .run()
        .success();
}

#[test]
fn delay() {
    if !require(&[PINGPONG]) {
        return;
    }
    faulty("delay=2ms")
        .options("-c")
        .size(10_000)
        .iterations(200)
        .run()
        .success();
}

#[test]
fn lost_packets_are_retransmitted() {
    if !require(&[PINGPONG, TSHARK]) {
        return;
    }
    let directory = Directory::new();
    let file = directory.path().join("client.pcapng");
    let mut pingpong = faulty("drop=5%").options("-c").size(10_000).iterations(200);
    pingpong.client = pingpong
        .client
        .env("URXE_PCAP", &file.display().to_string());
    pingpong.run().success();

    let mut times_sent = HashMap::new();
    for packet in dissect(&file).iter().filter(|packet| packet.is_send()) {
        *times_sent
            .entry((packet.destination_qp, packet.psn))
            .or_insert(0) += 1;
    }
    assert!(
        times_sent.values().any(|times| *times > 1),
        "no packet was retransmitted"
    );
}
