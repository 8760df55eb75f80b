//! Servers that fork for each connection, with librspreload.so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::namespace::Namespace;
use crate::common::pingpong::exclusive;
use crate::common::require::Need;
use crate::common::run::{Finished, Running, run};
use crate::common::runner::{Directory, Runner};
use crate::common::skip_test::skip_test;
use crate::connection_manager::LIMIT;
use crate::rsockets::{alone, preloaded, wait_for_port};

/// The port of `forking.c`.
const PORT: u64 = 7700;

/// The compiled test program.
struct Forking {
    directory: Directory,
    namespace: Namespace,
}

impl Forking {
    fn new(needs: &[Need]) -> Option<Self> {
        let namespace = alone(&[&[Need::Program("cc", "gcc")], needs].concat())?;
        let forking = Forking {
            directory: Directory::new(),
            namespace,
        };
        let mut command = Command::new("cc");
        let source = urxe_tests::workspace().join("tests/programs/forking.c");
        command
            .args(["-Wall", "-o", &forking.program()])
            .arg(source);
        run("cc", command, LIMIT).success();
        Some(forking)
    }

    fn program(&self) -> String {
        let program = self.directory.path().join("forking");
        program.to_str().expect("a plain path").to_owned()
    }

    /// Starts the program, with `how` as the command that runs it.
    fn start(&self, mut how: Command, words: &str) -> Running {
        how.arg(self.program()).args(words.split(' '));
        Running::start(format!("forking {words}"), how)
    }

    /// Returns a command that runs a program over RDMA with fork support.
    fn by_rdma(&self) -> Command {
        let mut command = preloaded(self.namespace.runner(), &[]);
        command.env("RDMAV_FORK_SAFE", "1");
        command
    }

    fn by_tcp(&self) -> Command {
        self.namespace.runner().command("env")
    }

    fn serve(&self, how: Command, words: &str) -> Running {
        let server = self.start(how, words);
        wait_for_port(self.namespace.runner(), "tcp", PORT);
        server
    }
}

/// Returns how many connections of this kind one end has reported.
fn count_of(finished: &Finished, line: &str) -> usize {
    finished
        .stdout
        .lines()
        .filter(|printed| *printed == line)
        .count()
}

#[test]
fn each_child_of_a_server_serves_its_client_by_rdma() {
    let Some(forking) = Forking::new(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    let server = forking.serve(forking.by_rdma(), "serve 3");
    // Concurrent clients: the children listen one after another.
    let clients = [(); 3].map(|()| forking.start(forking.by_rdma(), "ask"));
    for client in clients {
        let client = client.finish(LIMIT).success();
        assert_eq!(count_of(&client, "client: rdma"), 1, "{client}");
    }
    let server = server.finish(LIMIT).success();
    assert_eq!(count_of(&server, "server: rdma"), 3, "{server}");
}

#[test]
fn forking_server_also_accepts_tcp_clients() {
    let Some(forking) = Forking::new(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    // The client has sent data before the child reads.
    let server = forking.serve(forking.by_rdma(), "late 1");
    let client = forking.start(forking.by_tcp(), "ask");
    client.finish(LIMIT).success();
    let server = server.finish(LIMIT).success();
    assert_eq!(count_of(&server, "server: tcp"), 1, "{server}");
}

#[test]
fn client_that_leaves_without_data_does_not_block_others() {
    let Some(forking) = Forking::new(&[]) else {
        return;
    };
    let _exclusive = exclusive();
    let server = forking.serve(forking.by_rdma(), "serve 2");
    for (how, words) in [(forking.by_tcp(), "leave"), (forking.by_rdma(), "ask")] {
        forking.start(how, words).finish(LIMIT).success();
    }
    let server = server.finish(LIMIT).success();
    assert_eq!(count_of(&server, "server: rdma"), 1, "{server}");
}

/// Returns the path of rdma-core's librspreload.so.
fn rdma_cores_preload() -> Option<PathBuf> {
    let of = |directory: fs::DirEntry| directory.path().join("rsocket/librspreload.so.1");
    let mut all = fs::read_dir("/usr/lib").ok()?.flatten().map(of);
    all.find(|path| path.is_file())
}

#[test]
fn rdma_cores_own_preload_forks_in_the_same_way() {
    let Some(forking) = Forking::new(&[Need::Root]) else {
        return;
    };
    let Some(preload) = rdma_cores_preload() else {
        return skip_test("needs rdma-core's librspreload.so: apt-get install librdmacm1");
    };
    if !Path::new("/etc/rdma").is_dir() {
        return skip_test("needs the directory /etc/rdma: apt-get install rdma-core");
    }
    let _exclusive = exclusive();
    // With the object in all processes, librdmacm's own netlink sockets would become rsockets, and
    // a killed process would leave its semaphore locked.
    let script = "mount -t tmpfs none /etc/rdma && mount -t tmpfs none /dev/shm && \
                  mkdir /etc/rdma/rsocket && \
                  echo '* * STREAM TCP' > /etc/rdma/rsocket/preload_config && exec \"$@\"";
    let theirs = || {
        let words = ["unshare", "--mount", "sh", "-c", script, "sh"];
        let runner: Runner = forking.namespace.runner().through(words);
        let mut command = runner.urxe();
        command.args(["run", "--", "env"]);
        command.arg(format!("LD_PRELOAD={}", preload.display()));
        command.env("RDMAV_FORK_SAFE", "1");
        command
    };
    for (server, client) in [(forking.by_rdma(), theirs()), (theirs(), forking.by_rdma())] {
        let server = forking.serve(server, "serve 1");
        let client = forking.start(client, "ask").finish(LIMIT).success();
        assert_eq!(count_of(&client, "client: rdma"), 1, "{client}");
        let server = server.finish(LIMIT).success();
        assert_eq!(count_of(&server, "server: rdma"), 1, "{server}");
    }
}
