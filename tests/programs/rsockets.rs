//! Sockets over RDMA: Debian's unmodified rsockets programs, and socket programs that preload
//! librspreload.so.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use crate::common::namespace::{Namespace, VethPair};
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, POLL_INTERVAL, Running, run};
use crate::common::runner::{Directory, Runner};
use crate::connection_manager::{LIMIT, Server, TCP, start};

pub const RSTREAM: Need = Need::Program("rstream", "rdmacm-utils");

/// Returns a private network, in which other processes cannot disturb datagrams.
pub fn alone(needs: &[Need]) -> Option<Namespace> {
    let all = [&[RSTREAM, IP, Need::NetworkNamespaces], needs].concat();
    require(&all).then(|| Namespace::new(&Runner::here()).loopback_up())
}

fn run_here(runner: &Runner, command: &str) -> Finished {
    start(runner, command).finish(LIMIT)
}

/// Runs a server and a client in one network, which must succeed.
#[track_caller]
fn both_succeed(runner: &Runner, server: &str, port: u64, client: &str) -> (Finished, Finished) {
    let server = Server::start(runner, server, TCP | port);
    let client = run_here(runner, client).success();
    (server.finish().success(), client)
}

#[test]
fn rstream_measures_bandwidth() {
    let Some(namespace) = alone(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    let client = "rstream -s 127.0.0.1 -C 20 -I 20 -S 65536";
    let server = "rstream -C 20 -I 20 -S 65536";
    let (server, client) = both_succeed(namespace.runner(), server, 7471, client);
    for side in [server, client] {
        assert!(side.stdout.contains("custom    64k"), "{side}");
    }
}

#[test]
fn rstream_modes_succeed() {
    let Some(namespace) = alone(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    // Polling, blocking, nonblocking, rdma_getaddrinfo, verifying; and small buffers.
    for options in [
        "-T a",
        "-T b",
        "-T n",
        "-T r",
        "-T v",
        "-T v -B 4096",
        "-T f",
        "-k 1",
        "-p 7999",
    ] {
        let port = if options == "-p 7999" { 7999 } else { 7471 };
        let common = format!("{options} -C 10 -I 10 -S 20000");
        let server = format!("rstream {common}");
        let client = format!("rstream -s 127.0.0.1 {common}");
        if options == "-T f" {
            // The server accepts TCP first and then an rsocket.
            let server = start(namespace.runner(), &server);
            wait_for_port(namespace.runner(), "tcp", port);
            run_here(namespace.runner(), &client).success();
            server.finish(LIMIT).success();
        } else {
            both_succeed(namespace.runner(), &server, port, &client);
        }
    }
}

#[test]
fn rstream_between_hosts_and_over_ipv6() {
    if !require(&[RSTREAM, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let _exclusive = exclusive();
    for address in [VethPair::A, VethPair::A6] {
        let common = "-C 20 -I 20 -S 100000 -T v";
        let server = format!("rstream -b {address} {common}");
        let server = Server::start(cable.a.runner(), &server, TCP | 7471);
        run_here(cable.b.runner(), &format!("rstream -s {address} {common}")).success();
        server.finish().success();
    }
}

#[test]
fn connection_without_a_listener_is_refused() {
    let Some(namespace) = alone(&[]) else {
        return;
    };
    let refused = run_here(namespace.runner(), "rstream -s 127.0.0.1 -C 1 -I 1");
    assert!(!refused.status.success() && !refused.timed_out, "{refused}");
}

#[test]
fn rcopy_copies_a_file_whole() {
    let Some(namespace) = alone(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    let directory = Directory::new();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let bytes = pattern(24 << 20);
    fs::write(&from, &bytes).expect("own directory");
    // The server does not end.
    let _server = Server::start(namespace.runner(), "rcopy", TCP | 7427);
    let (from, there) = (from.display(), to.display());
    run_here(
        namespace.runner(),
        &format!("rcopy {from} 127.0.0.1:{there}"),
    )
    .success();
    assert!(fs::read(&to).expect("it was copied") == bytes);
}

/// Returns bytes in which all blocks differ.
fn pattern(len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

#[test]
fn riostream_writes_into_the_peers_memory() {
    let Some(namespace) = alone(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    let common = "-C 3 -I 10 -S 5000 -T v";
    let server = format!("riostream {common}");
    let client = format!("riostream -s 127.0.0.1 {common}");
    both_succeed(namespace.runner(), &server, 7471, &client);
}

/// Waits until a process listens on a kernel UDP or TCP port without a peer. Former TCP connections
/// in TIME_WAIT have peers.
#[track_caller]
pub fn wait_for_port(runner: &Runner, protocol: &str, port: u64) {
    let deadline = Instant::now() + LIMIT;
    let suffix = format!(":{port:04X}");
    loop {
        let mut command = runner.command("cat");
        command.args([
            format!("/proc/net/{protocol}"),
            format!("/proc/net/{protocol}6"),
        ]);
        let table = run("cat", command, LIMIT).success().stdout;
        let mut ends = table.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            Some((words.next()?, words.next()?))
        });
        if ends.any(|(local, remote)| local.ends_with(&suffix) && remote.ends_with(":0000")) {
            return;
        }
        assert!(Instant::now() < deadline, "port {port} is not bound");
        thread::sleep(POLL_INTERVAL);
    }
}

#[test]
fn udpong_sends_datagrams_each_way() {
    let Some(namespace) = alone(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    for address in ["127.0.0.1", "::1"] {
        // The server does not end.
        let server = start(namespace.runner(), &format!("udpong -b {address}"));
        wait_for_port(namespace.runner(), "udp", 7174);
        // Its echo test retransmits after 1 ms and cannot distinguish late responses, so on a slow
        // machine it does not end.
        for way in ["-T a", "-T b", "-T n"] {
            let client = format!("udpong -s {address} -C 50 -S 1000 {way}");
            let client = run_here(namespace.runner(), &client).success();
            assert!(client.stdout.contains("custom    1000"), "{client}");
        }
        drop(server);
    }
}

#[test]
fn udpong_between_hosts() {
    if !require(&[RSTREAM, IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 4500);
    let _exclusive = exclusive();
    let _server = start(cable.a.runner(), &format!("udpong -b {}", VethPair::A));
    wait_for_port(cable.a.runner(), "udp", 7174);
    let client = format!("udpong -s {} -C 50 -S 1500 -T a", VethPair::A);
    run_here(cable.b.runner(), &client).success();
}

/// Returns a command for a program that preloads librspreload.so.
pub fn preloaded(runner: &Runner, words: &[&str]) -> Command {
    let mut command = runner.urxe();
    command.args(["run", "--rsockets", "--"]).args(words);
    command
}

/// Waits until a process listens by RDMA.
fn wait_for_listener(runner: &Runner, port: u64) {
    let deadline = Instant::now() + LIMIT;
    let name = format!("/{:x}/", TCP | port);
    loop {
        let mut command = runner.command("cat");
        command.arg("/proc/net/unix");
        let names = run("cat", command, LIMIT).success().stdout;
        if names.contains(&name) {
            return;
        }
        assert!(Instant::now() < deadline, "no listener at port {port}");
        thread::sleep(POLL_INTERVAL);
    }
}

#[test]
fn web_server_serves_files_over_rdma() {
    let needs = [
        Need::Program("python3", "python3"),
        Need::Program("curl", "curl"),
    ];
    let Some(namespace) = alone(&needs) else {
        return;
    };
    let _exclusive = exclusive();
    let directory = Directory::new();
    let bytes = pattern(3 << 20);
    fs::write(directory.path().join("file"), &bytes).expect("own directory");
    for (address, url) in [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")] {
        let at = directory.path().to_str().expect("a plain path");
        let words = [
            "python3",
            "-m",
            "http.server",
            "--bind",
            address,
            "--directory",
            at,
            "8000",
        ];
        let server = Running::start("http.server", preloaded(namespace.runner(), &words));
        wait_for_listener(namespace.runner(), 8000);
        let to = directory.path().join("got");
        let url = format!("http://{url}:8000/file");
        let words = ["curl", "-sSf", "-o", to.to_str().expect("plain"), &url];
        run("curl", preloaded(namespace.runner(), &words), LIMIT).success();
        assert!(fs::read(&to).expect("it was fetched") == bytes);
        drop(server);
    }
}

/// urxe's own threads, which get kernel sockets, have names that begin in the same way.
#[test]
fn program_with_a_name_like_urxes_threads_gets_rsockets() {
    let needs = [
        Need::Program("python3", "python3"),
        Need::Program("curl", "curl"),
    ];
    let Some(namespace) = alone(&needs) else {
        return;
    };
    let _exclusive = exclusive();
    let directory = Directory::new();
    let curl = directory.path().join("urxe-curl");
    let script = r#"cp "$(command -v curl)" "$0""#;
    let mut copy = namespace.runner().command("sh");
    copy.args(["-ec", script]).arg(&curl);
    run("cp", copy, LIMIT).success();
    let words = [
        "python3",
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "8000",
    ];
    let _server = Running::start("http.server", preloaded(namespace.runner(), &words));
    wait_for_listener(namespace.runner(), 8000);
    // No TCP socket listens at this port.
    let words = [
        curl.to_str().expect("a plain path"),
        "-sSf",
        "http://127.0.0.1:8000/",
    ];
    run("urxe-curl", preloaded(namespace.runner(), &words), LIMIT).success();
}

#[test]
fn tcp_client_reaches_a_tcp_server() {
    let Some(namespace) = alone(&[Need::Program("python3", "python3")]) else {
        return;
    };
    let _exclusive = exclusive();
    let mut server = namespace.runner().command("python3");
    server.args(["-m", "http.server", "--bind", "127.0.0.1", "8001"]);
    let _server = Running::start("http.server", server);
    wait_for_port(namespace.runner(), "tcp", 8001);
    let fetch = "import urllib.request as r; r.urlopen('http://127.0.0.1:8001/').read()";
    let words = ["python3", "-c", fetch];
    run("python3", preloaded(namespace.runner(), &words), LIMIT).success();
}

/// As in the kernel, a hang-up is no exception: `select` continues to wait for the pipe.
#[test]
fn select_for_exceptions_is_not_ended_by_a_hang_up() {
    let Some(namespace) = alone(&[Need::Program("python3", "python3")]) else {
        return;
    };
    let _exclusive = exclusive();
    let script = "
import os, select, socket, threading
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
server.close()
assert client.recv(1) == b''
poll = select.poll()
poll.register(client, 0)
assert poll.poll(20000)[0][1] & select.POLLHUP
reads, writes = os.pipe()
threading.Timer(0.3, os.write, (writes, b'x')).start()
assert select.select([reads], [], [client], 20) == ([reads], [], [])
assert select.select([], [client], [client], 20) == ([], [client], [])
os.close(reads)
try:
    select.select([reads, client], [], [], 20)
    raise AssertionError('a closed descriptor')
except OSError as error:
    assert error.errno == 9
";
    let words = ["python3", "-c", script];
    run("python3", preloaded(namespace.runner(), &words), LIMIT).success();
}

#[test]
fn iperf3_measures_rdma() {
    let Some(namespace) = alone(&[Need::Program("iperf3", "iperf3")]) else {
        return;
    };
    let _exclusive = exclusive();
    for reverse in [&[][..], &["-R"]] {
        let words = ["iperf3", "-s", "-1", "-B", "127.0.0.1"];
        let server = Running::start("iperf3 -s", preloaded(namespace.runner(), &words));
        wait_for_listener(namespace.runner(), 5201);
        let client = [&["iperf3", "-c", "127.0.0.1", "-n", "40M"], reverse].concat();
        let client = run("iperf3", preloaded(namespace.runner(), &client), LIMIT).success();
        assert!(client.stdout.contains("receiver"), "{client}");
        server.finish(LIMIT).success();
    }
}

#[test]
fn netcat_sends_a_file_to_another_host() {
    let needs = [
        RSTREAM,
        IP,
        Need::NetworkNamespaces,
        Need::Program("nc", "netcat-openbsd"),
    ];
    if !require(&needs) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let _exclusive = exclusive();
    let directory = Directory::new();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    fs::write(&from, pattern(1 << 20)).expect("own directory");
    let shell = |runner: &Runner, script: String| preloaded(runner, &["sh", "-c", &script]);
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    for address in [VethPair::A, VethPair::A6] {
        let receive = format!("exec nc -l {address} 7000 > {}", path(&to));
        let server = Running::start("nc -l", shell(cable.a.runner(), receive));
        wait_for_listener(cable.a.runner(), 7000);
        let send = format!("exec nc -N {address} 7000 < {}", path(&from));
        run("nc", shell(cable.b.runner(), send), LIMIT).success();
        server.finish(LIMIT).success();
        assert!(fs::read(&to).expect("received") == pattern(1 << 20));
    }
}
