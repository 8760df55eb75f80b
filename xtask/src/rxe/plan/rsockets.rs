//! Sockets over RDMA: librdmacm's programs for them, with urxe's rsockets on one side, and on the other
//! rdma-core's over the kernel's connection manager and rxe.

use super::{Cell, Extent, Group, Kind, clean, serve};

/// All that the programs can do, on a clean link.
pub(super) fn rsockets(name: &'static str, ip: &'static str, extent: Extent) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        ..clean(
            name,
            ip,
            "librdmacm's programs of rsockets, rdma-core's on one side",
        )
    };
    let cells = &mut group.cells;
    if extent == Extent::Quick {
        stream(cells, "rstream", "-T v -C 20 -I 5 -S 65536");
        return group;
    }
    // Verifying, with buffers of one packet, blocking, and by rdma_getaddrinfo. Not polling: who polls takes
    // it for an error when the peer has ended by the time its last bytes are looked at.
    for (name, options) in [
        ("rstream", "-T v -C 20 -I 5 -S 65536"),
        ("rstream/small-buffers", "-T v -B 4096 -C 10 -I 5 -S 20000"),
        ("rstream/blocking", "-T b -C 20 -I 5 -S 65536"),
        ("rstream/resolving", "-T r -C 20 -I 5 -S 65536"),
        ("rstream/one-byte", "-C 200 -I 1 -S 1"),
        ("riostream", "-T v -C 10 -I 5 -S 65536"),
        ("riostream/blocking", "-T b -C 10 -I 10 -S 5000"),
    ] {
        stream(cells, name, options);
    }
    if ip == "v4" {
        copy(cells, "32M");
    }
    datagrams(cells);
    group
}

/// Some of it, for a link that loses packets.
pub(super) fn on_a_bad_link(cells: &mut Vec<Cell>, ip: &str) {
    stream(cells, "rstream", "-T v -C 10 -I 5 -S 65536");
    stream(cells, "riostream", "-T v -C 10 -I 5 -S 65536");
    if ip == "v4" {
        copy(cells, "8M");
    }
}

/// rstream and riostream, which have the same options.
fn stream(cells: &mut Vec<Cell>, name: &str, options: &str) {
    let program = name.split('/').next().unwrap_or(name);
    serve(
        cells,
        name,
        "1",
        &format!("{program} -b {{address}} {options}"),
        &format!("{program} -s {{server}} {options}"),
    );
}

/// A file of so many bytes. The program knows no IPv6 addresses: a colon ends the server's.
fn copy(cells: &mut Vec<Cell>, bytes: &str) {
    let compare = "test \"$(sha256sum </tmp/from)\" = \"$(sha256sum </tmp/to)\"";
    serve(
        cells,
        "rcopy",
        "1+",
        "rcopy",
        &format!(
            "bash -c 'head -c {bytes} /dev/urandom >/tmp/from; rm -f /tmp/to; \
             rcopy /tmp/from {{server}}:/tmp/to && {compare}'"
        ),
    );
}

/// The server goes on for ever, and so does a client that it does not answer.
fn datagrams(cells: &mut Vec<Cell>) {
    serve(
        cells,
        "udpong",
        "1+",
        "udpong -b {address}",
        "timeout 10 udpong -s {server} -C 100 -S 1000",
    );
}
