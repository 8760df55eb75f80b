//! Sockets over RDMA: librdmacm's programs, with urxe's rsockets on one side and rdma-core's over
//! rxe on the other.

use super::group::{Cell, Extent, Group, Kind, clean, serve};

/// All programs and modes on a clean link.
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
    // With verification, small buffers, blocking calls and rdma_getaddrinfo. Polling is left out: a
    // polling program reports an error if the peer closes before the last bytes are read.
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

/// A selection for a link that loses packets.
pub(super) fn on_a_bad_link(cells: &mut Vec<Cell>, ip: &str) {
    stream(cells, "rstream", "-T v -C 10 -I 5 -S 65536");
    stream(cells, "riostream", "-T v -C 10 -I 5 -S 65536");
    if ip == "v4" {
        copy(cells, "8M");
    }
}

/// Adds a cell of rstream or riostream, which have the same options.
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

/// Adds a cell that copies a file. The program does not support IPv6 addresses.
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

/// Adds a cell of udpong. The server does not end, nor does a client without responses.
fn datagrams(cells: &mut Vec<Cell>) {
    serve(
        cells,
        "udpong",
        "1+",
        "udpong -b {address}",
        "timeout 10 udpong -s {server} -C 100 -S 1000",
    );
}
