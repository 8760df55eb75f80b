//! `ibv_rc_pingpong` with each of its options, over the loopback interface.

use crate::common::devices::DeviceInfo;
use crate::common::pingpong::Pingpong;
use crate::common::require::{PINGPONG, require};
use crate::common::runner::Runner;

const DEVICE: &str = "urxe_lo";

fn loopback() -> Option<Pingpong> {
    require(&[PINGPONG]).then(|| Pingpong::over_loopback(&Runner::alone()))
}

#[test]
fn plain() {
    let Some(pingpong) = loopback() else { return };
    pingpong.run().success();
}

#[test]
fn both_sides_wait_for_completion_events() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-e").run().success();
}

#[test]
fn one_side_waits_for_events_while_the_other_polls() {
    let Some(pingpong) = loopback() else { return };
    // Includes large messages, so that segments and ACKs arrive at the waiting side.
    for size in [64, 1 << 20] {
        let mut server_sleeps = pingpong.clone().options("-c").size(size).iterations(100);
        let mut client_sleeps = server_sleeps.clone();
        server_sleeps.server.options.push("-e".to_owned());
        client_sleeps.client.options.push("-e".to_owned());
        server_sleeps.run().success();
        client_sleeps.run().success();
    }
}

#[test]
fn validating_received_data() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-c").size(64 << 10).run().success();
}

#[test]
fn extended_post_send() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-N -c").run().success();
}

#[test]
fn extended_post_send_with_events() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-N -e -c").run().success();
}

#[test]
fn each_path_mtu() {
    let Some(pingpong) = loopback() else { return };
    for mtu in [256, 512, 1024, 2048, 4096] {
        // Seven full packets and a partial one at the largest MTU.
        let pingpong = pingpong
            .clone()
            .options(&format!("-m {mtu} -c"))
            .size(30_001);
        pingpong.iterations(500).run().success();
    }
}

#[test]
fn each_size_from_one_byte_to_8_mib() {
    let Some(pingpong) = loopback() else { return };
    let around_the_path_mtu = [1023, 1024, 1025];
    let sizes = [1, 2, 3, 4, 5, 63, 64, 65, 511, 512, 513]
        .into_iter()
        .chain(around_the_path_mtu)
        .chain([
            4095,
            4096,
            4097,
            65_535,
            65_536,
            65_537,
            1 << 20,
            (1 << 20) + 1,
            8 << 20,
        ]);
    for size in sizes {
        // About 32 MiB each way at most.
        let iterations = ((32 << 20) / size).clamp(4, 300);
        pingpong
            .clone()
            .options("-c")
            .size(size)
            .iterations(iterations)
            .run()
            .success();
    }
}

#[test]
fn eight_mib_in_the_smallest_packets() {
    let Some(pingpong) = loopback() else { return };
    pingpong
        .options("-c -m 256")
        .size(8 << 20)
        .iterations(4)
        .run()
        .success();
}

#[test]
fn ten_thousand_exchanges() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-c").iterations(10_000).run().success();
}

#[test]
fn receiver_not_ready() {
    let Some(pingpong) = loopback() else { return };
    // With one posted receive, the next message often gets an RNR NAK.
    pingpong.options("-r 1 -c").run().success();
}

#[test]
fn receiver_not_ready_with_events() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-r 1 -e -c").run().success();
}

#[test]
fn ipv6_gids() {
    let Some(pingpong) = loopback() else { return };
    let index = DeviceInfo::query(&Runner::here(), DEVICE).gid_index("::1");
    let ended = pingpong
        .gids(index, index)
        .options("-c")
        .size(10_000)
        .run()
        .success();
    assert!(ended.server.stdout.contains("GID ::1"), "{}", ended.server);
}

#[test]
fn another_service_level() {
    let Some(pingpong) = loopback() else { return };
    pingpong.options("-l 3").run().success();
}

#[test]
fn completion_timestamps_as_the_device_promises() {
    let Some(pingpong) = loopback() else { return };
    let info = DeviceInfo::query(&Runner::here(), DEVICE);
    let pingpong = pingpong.options("-t");
    if info.value("completion timestamp_mask").is_some() {
        let ended = pingpong.run().success();
        assert!(
            ended
                .server
                .stdout
                .contains("Min receive completion clock cycles")
        );
    } else {
        let refused = pingpong.run_server_alone();
        assert_eq!(refused.status.code(), Some(1), "{refused}");
        assert!(
            refused
                .stderr
                .contains("isn't completion timestamp capable"),
            "{refused}"
        );
    }
}

#[test]
fn on_demand_paging_with_and_without_prefetch() {
    let Some(pingpong) = loopback() else { return };
    for options in ["-o -c", "-o -P -c", "-O -c", "-O -P -c"] {
        let pingpong = pingpong.clone().options(options);
        pingpong.size(100_000).iterations(100).run().success();
    }
}

#[test]
fn device_memory() {
    let Some(pingpong) = loopback() else { return };
    for size in [512, 100_000] {
        let pingpong = pingpong.clone().options("-j -c");
        pingpong.size(size).iterations(100).run().success();
    }
}
