//! Cells that make rxe and the kernel's connection manager send every kind of packet, for a
//! capture.

use super::cm::slow;
use super::group::{Expectation, Group, Kind, RC, clean, one, programs_between};

/// Returns the cells to capture.
pub(crate) fn to_capture() -> Vec<Group> {
    let mut groups = Vec::new();
    for (name, ip) in [("capture-v4", "v4"), ("capture-v6", "v6")] {
        let mut group = clean(name, ip, "rxe to rxe, one message of each kind");
        group.expectation = Expectation::Measured;
        group.sides = ["rxe1", "rxe2"];
        // One packet, and a first, a middle and a last one.
        for size in [0, 1, 601] {
            for (transport, operations) in [("rc", &RC[..]), ("uc", &RC[..4])] {
                for op in operations {
                    let name = format!("{transport}/{op}/{size}");
                    let arguments = format!("transport={transport} op={op} mtu=256 size={size}");
                    one(&mut group.cells, &name, 'a', &arguments);
                }
            }
            let arguments = format!("op=send-inv mtu=256 size={size}");
            one(
                &mut group.cells,
                &format!("rc/send-inv/{size}"),
                'a',
                &arguments,
            );
        }
        for op in ["cas", "fadd"] {
            let arguments = format!("op={op} mtu=256 size=8");
            one(&mut group.cells, &format!("rc/{op}"), 'a', &arguments);
        }
        for (error, op) in [
            ("no-receive", "send"),
            ("short-receive", "send"),
            ("bad-rkey", "write"),
            ("qp-no-permission", "write"),
        ] {
            let arguments = format!("op={op} mtu=256 size=100 error={error}");
            one(&mut group.cells, &format!("rc/{error}"), 'a', &arguments);
        }
        groups.push(group);
    }
    let mut lossy = clean(
        "capture-loss",
        "v4",
        "rxe to rxe over a link that loses packets",
    );
    lossy.expectation = Expectation::Measured;
    lossy.sides = ["rxe1", "rxe2"];
    lossy.netem = "loss 5%";
    let arguments = "op=write mtu=256 size=20000 count=10 depth=4";
    one(&mut lossy.cells, "rc/write", 'a', arguments);
    groups.push(lossy);
    let mut datagrams = clean("capture-ud", "v4", "rxe to rxe, datagrams");
    datagrams.kind = Kind::Programs;
    datagrams.expectation = Expectation::Measured;
    datagrams.sides = ["rxe1", "rxe2"];
    let command = "ibv_ud_pingpong -d {device} -g {gid} -s 65 -n 4";
    datagrams.cells.push(programs_between(
        "ibv_ud_pingpong".into(),
        ["a", "b"],
        "1",
        command,
        &format!("{command} {{host}}"),
    ));
    groups.push(datagrams);
    for (name, ip) in [("capture-cm-v4", "v4"), ("capture-cm-v6", "v6")] {
        groups.push(messages(name, ip));
    }
    groups
}

/// Returns the cells for each message of the kernel's connection manager. The client binds its own
/// address, because otherwise the machine would find the server's address locally.
fn messages(name: &'static str, ip: &'static str) -> Group {
    let mut group = clean(name, ip, "rxe to rxe, the connection manager's messages");
    group.kind = Kind::Programs;
    group.expectation = Expectation::Measured;
    group.sides = ["rxe1", "rxe2"];
    let rping = "rping -c -I {address} -a {server} -C 1";
    for (name, server, client) in [
        ("connection", "rping -s -a {address} -C 1", rping),
        (
            "refused",
            "true",
            &format!("bash -c '{rping} 2>&1 | grep REJECTED'"),
        ),
        (
            "delayed",
            &slow("rping -s -a {address} -C 1"),
            &format!("bash -c 'sleep 5; {rping}'"),
        ),
        (
            "resolution",
            "udaddy -b {address}",
            "udaddy -b {address} -s {server}",
        ),
    ] {
        let cell = programs_between(name.into(), ["a", "b"], "1", server, client);
        group.cells.push(cell);
    }
    group
}
