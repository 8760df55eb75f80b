//! fio's engine `rdma` between two hosts.

use std::fs;

use crate::common::namespace::VethPair;
use crate::common::pingpong::exclusive;
use crate::common::require::{IP, Need, require};
use crate::common::run::Finished;
use crate::common::runner::{Directory, Runner};
use crate::connection_manager::{LIMIT, Server, TCP, start};

const PORT: u64 = 9_901;

/// Writes a job and returns the command that runs it.
fn job(directory: &Directory, name: &str, options: &str) -> String {
    let path = directory.path().join(name);
    let text = format!("[{name}]\nioengine=rdma\nport={PORT}\nbs=64k\nsize=16m\n{options}");
    fs::write(&path, text).expect("own directory");
    format!("fio {}", path.display())
}

/// Returns whether all 16 MiB were transferred without a message. fio exits with 0 after some
/// errors.
fn is_complete(side: &Finished) -> bool {
    let good = side.status.success() && !side.timed_out && side.stderr.is_empty();
    good && side.stdout.contains("err= 0")
}

#[test]
fn fio_writes_and_reads() {
    if !require(&[Need::Program("fio", "fio"), IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let directory = Directory::new();
    let _exclusive = exclusive();
    let server = job(
        &directory,
        "server",
        "filename=unused\nrw=read\niodepth=16\n",
    );
    for verb in ["write", "read"] {
        let options = format!(
            "hostname={}\nverb={verb}\nrw=write\niodepth=4\niodepth_batch_complete=1\n",
            VethPair::A
        );
        let client = job(&directory, "client", &options);
        let server = Server::start(cable.a.runner(), &server, TCP | PORT);
        let client = start(cable.b.runner(), &client).finish(LIMIT);
        assert!(
            is_complete(&client) && client.stdout.contains("(16.0MiB/"),
            "{verb}: {client}"
        );
        let server = server.finish();
        assert!(is_complete(&server), "{verb}: {server}");
    }
}

/// fio sets no RNR retries. A receiver that drains its completion queue until it is empty has to see
/// an empty queue before its receives are used up.
#[test]
fn fio_sends() {
    if !require(&[Need::Program("fio", "fio"), IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let directory = Directory::new();
    let _exclusive = exclusive();
    let server = job(
        &directory,
        "server",
        "filename=unused\nrw=read\niodepth=16\n",
    );
    for depth in [1, 4, 16] {
        let options = format!(
            "hostname={}\nverb=send\nrw=write\niodepth={depth}\n",
            VethPair::A
        );
        let client = job(&directory, "client", &options);
        let server = Server::start(cable.a.runner(), &server, TCP | PORT);
        let client = start(cable.b.runner(), &client).finish(LIMIT);
        assert!(is_complete(&client), "{depth}: {client}");
        let server = server.finish();
        assert!(is_complete(&server), "{depth}: {server}");
        for side in [&client, &server] {
            assert!(side.stdout.contains("(16.0MiB/"), "{depth}: {side}");
        }
    }
}
