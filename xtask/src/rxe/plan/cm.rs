//! Connections: librdmacm's programs, with urxe on one side and rdma-core over the kernel's
//! connection manager and rxe on the other.

use super::group::{Cell, Expectation, Extent, Group, Kind, clean, programs_between, serve};
use super::rsockets::on_a_bad_link;

/// Programs that connect on a clean link.
pub(super) fn connections(name: &'static str, ip: &'static str, extent: Extent) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        ..clean(
            name,
            ip,
            "librdmacm's programs, the kernel's connection manager on one side",
        )
    };
    let cells = &mut group.cells;
    main_programs(cells);
    // Each test uses a multicast group of its own, because the kernel leaves a group with a delay.
    multicast(cells, ip, 1, "mckey", "-C 20", "");
    if extent == Extent::Quick {
        const LONG: [&str; 3] = ["many", "rdma_", "cmtime"];
        cells.retain(|cell| !LONG.iter().any(|word| cell.name.contains(word)));
        return group;
    }
    multicast(cells, ip, 2, "mckey-many", "-c 3 -C 50 -S 1000", "");
    multicast(cells, ip, 3, "mckey-send-only", "-C 20", "-o");
    serve(
        cells,
        "rping/long",
        "1",
        "rping -s -a {address} -v -C 100 -S 65535",
        "rping -c -a {server} -v -C 100 -S 65535",
    );
    serve(
        cells,
        "rping/own-transitions",
        "1",
        "rping -s -a {address} -q -V -C 20",
        "rping -c -a {server} -q -V -C 20",
    );
    serve(
        cells,
        "rdma_server-stopped",
        "1",
        &slow("rdma_server"),
        "bash -c 'sleep 5; rdma_client -s {server}'",
    );
    for (name, client, answer) in [
        ("rping", "rping -c -a {server} -C 1", "REJECTED, error 8"),
        ("udaddy", "udaddy -s {server}", "UNREACHABLE, error: 1"),
    ] {
        // urxe rejects only while one of its processes runs, so a server listens at another port.
        let server = "rping -s -P -a {address} -p 9999";
        let client = format!("bash -c '{client} 2>&1 | grep \"{answer}\"'");
        let name = format!("no-listener/{name}");
        serve(cells, &name, "1+", server, &client);
    }
    for case in CASES {
        connection(cells, case);
    }
    if ip == "v6" {
        // perftest 4.5 does not connect by IPv6 either.
        retain_v6(cells);
        return group;
    }
    for (program, more) in PERFTEST {
        let command = format!("{program} -R -F {more}");
        let name = match more.split_once("-c ") {
            Some((_, service)) => format!("{program}-{}", &service[..2].to_lowercase()),
            None => (*program).to_owned(),
        };
        serve(
            cells,
            &name,
            "1",
            &command,
            &format!("{command} {{server}}"),
        );
    }
    group
}

/// The programs over a link that loses packets. Programs that wait for their datagrams are left
/// out.
pub(super) fn lossy_connections(name: &'static str, ip: &'static str) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        expectation: Expectation::Lossy,
        netem: "loss 1%",
        ..clean(name, ip, "librdmacm's programs, 1% of packets lost")
    };
    let cells = &mut group.cells;
    main_programs(cells);
    cells.retain(|cell| !cell.name.contains("udaddy"));
    on_a_bad_link(cells, ip);
    // In the other cases the client disconnects at once. If its RTU is lost, the server receives
    // only the DREQ.
    connection(cells, "server-ends");
    if ip == "v6" {
        retain_v6(cells);
        return group;
    }
    for (program, more) in PERFTEST.iter().filter(|(_, more)| !more.contains("-c ")) {
        let command = format!("{program} -R -F {more}");
        serve(
            cells,
            program,
            "1",
            &command,
            &format!("{command} {{server}}"),
        );
    }
    group
}

/// Removes programs that listen on IPv4 only or use it beside RDMA.
fn retain_v6(cells: &mut Vec<Cell>) {
    cells.retain(|cell| !cell.name.contains("rdma_") && !cell.name.contains("cmtime"));
}

/// Returns a server command that handles its first request after the REQ's timeout, so that the REQ
/// is retransmitted and the kernel responds with an MRA. The client must start 5 seconds later.
pub(super) fn slow(server: &str) -> String {
    format!("bash -c '{server} & sleep 4; kill -STOP $!; sleep 12; kill -CONT $!; wait $!'")
}

/// The cases of `tests/rxe/connection`.
const CASES: [&str; 10] = [
    "private-data",
    "parameters",
    "rejected",
    "reply-rejected",
    "given-up",
    "server-ends",
    "both-end",
    "exited",
    "resolution",
    "resolution-rejected",
];

/// perftest's programs with their options.
const PERFTEST: &[(&str, &str)] = &[
    ("ib_write_bw", "-n 200"),
    ("ib_write_lat", "-n 200"),
    ("ib_read_bw", "-n 200"),
    ("ib_read_lat", "-n 200"),
    ("ib_send_bw", "-n 200"),
    ("ib_send_lat", "-n 200"),
    ("ib_atomic_bw", "-n 200"),
    ("ib_atomic_lat", "-n 200"),
    // UD does not retransmit packets dropped by a full queue, and the programs would wait for them.
    ("ib_send_bw", "-n 200 -t 16 -c UD -s 1024"),
    ("ib_send_lat", "-n 200 -c UD -s 1024"),
];

/// Adds a case of `tests/rxe/connection`, with either side as server.
fn connection(cells: &mut Vec<Cell>, case: &str) {
    serve(
        cells,
        &format!("connection/{case}"),
        "1",
        &format!("/tmp/connection {case} serve {{address}}"),
        &format!("/tmp/connection {case} ask {{address}} {{server}}"),
    );
}

/// Returns cells in which a process is killed or a connection is idle. rxe's counters detect peers
/// that do not respond.
pub(super) fn ends(name: &'static str, ip: &'static str) -> Group {
    let mut group = Group {
        kind: Kind::Programs,
        expectation: Expectation::Lossy,
        ..clean(
            name,
            ip,
            "killed processes, a peer that vanishes, idle connections",
        )
    };
    let serve = |case| format!("env {KEEPALIVE} /tmp/connection {case} serve {{address}}");
    let ask = |case| format!("env {KEEPALIVE} /tmp/connection {case} ask {{address}} {{server}}");
    let killed = |command: String| format!("bash -c '{command}; test $? -eq 137'");
    // The case itself adds the impairment of this link.
    let and_comes_back = |command: String| {
        format!("bash -c '{command}; status=$?; tc qdisc del dev va root; exit $status'")
    };
    let and_was_asked = |command: String| {
        format!("bash -c 'was=$(cat {DUPLICATES}); {command} && test $(cat {DUPLICATES}) -gt $was'")
    };
    let mut cell = |case: &str, sides, server: String, client: String| {
        let provider = if sides == RXE_SERVES { "rxe" } else { "urxe" };
        let name = format!("{case}/{provider}-serves");
        group
            .cells
            .push(programs_between(name, sides, "1", &server, &client));
    };
    // The kernel sends a DREQ for a killed process; urxe cannot.
    let case = "killed";
    cell(case, URXE_SERVES, serve(case), killed(ask(case)));
    let case = "server-killed";
    cell(case, RXE_SERVES, killed(serve(case)), ask(case));
    let case = "killed-silently";
    cell(case, RXE_SERVES, serve(case), killed(ask(case)));
    let case = "server-killed-silently";
    cell(case, URXE_SERVES, killed(serve(case)), ask(case));
    let case = "idle";
    cell(case, RXE_SERVES, and_was_asked(serve(case)), ask(case));
    cell(case, URXE_SERVES, serve(case), and_was_asked(ask(case)));
    let case = "vanished";
    cell(case, URXE_SERVES, serve(case), and_comes_back(ask(case)));
    let case = "server-vanished";
    cell(case, RXE_SERVES, and_comes_back(serve(case)), ask(case));
    group
}

/// The sides as server and client.
const RXE_SERVES: [&str; 2] = ["a", "b"];
const URXE_SERVES: [&str; 2] = ["b", "a"];

/// urxe's keep-alive time in these cases, in seconds.
const KEEPALIVE: &str = "URXE_KEEPALIVE=4";

/// rxe's counter of duplicate requests, which include keep-alive probes.
const DUPLICATES: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters/duplicate_request";

/// Adds the main programs of librdmacm.
fn main_programs(cells: &mut Vec<Cell>) {
    serve(
        cells,
        "rping",
        "1",
        "rping -s -a {address} -V -C 50",
        "rping -c -a {server} -V -C 50",
    );
    // One client after another: rping loses a request if the next arrives before it reads its
    // events.
    serve(
        cells,
        "rping/many",
        "5+",
        "rping -s -P -a {address} -S 1000",
        "bash -c 'sleep {lane}; rping -c -a {server} -V -C 50 -S 1000'",
    );
    serve(
        cells,
        "ucmatose",
        "1",
        "ucmatose -b {address} -c 10",
        "ucmatose -b {address} -s {server} -c 10",
    );
    serve(
        cells,
        "udaddy",
        "1",
        "udaddy -b {address} -c 5",
        "udaddy -b {address} -s {server} -c 5",
    );
    // In some versions the server ends, in others it does not.
    serve(
        cells,
        "cmtime",
        "1+",
        "cmtime -b {address} -c 50",
        "cmtime -b {address} -s {server} -c 50",
    );
    for (server, client) in [
        ("rdma_server", "rdma_client"),
        ("rdma_xserver", "rdma_xclient"),
    ] {
        serve(
            cells,
            server,
            "1",
            server,
            &format!("{client} -s {{server}}"),
        );
    }
}

/// Adds a cell with a sender and members of a multicast group; the receiver is the server.
fn multicast(cells: &mut Vec<Cell>, ip: &str, number: u8, name: &str, both: &str, sender: &str) {
    let group = match ip {
        "v4" => format!("239.9.0.{number}"),
        _ => format!("ff0e::9:{number}"),
    };
    let member = format!("mckey -m {group} -b {{address}} {both}");
    serve(cells, name, "1", &member, &format!("{member} -s {sender}"));
}
