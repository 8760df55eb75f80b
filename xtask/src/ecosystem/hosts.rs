//! Emulated hosts: namespaces that a bridge connects.
//!
//! Each has its own network, host name, processes and shared memory, so that programs which prefer
//! shared memory to the network do not take two hosts for one. A host ends with its first process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::release::succeed;

/// The options of `unshare` that make a host.
const HOST: [&str; 7] = [
    "--net",
    "--uts",
    "--ipc",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// The address of this process's own network namespace, from which programs on hosts are launched.
const LOGIN: &str = "192.0.2.100";

/// The time that killed programs have to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A host.
pub(super) struct Host {
    /// `unshare`, whose child is the first process of the host.
    unshare: Child,
    /// The process ID of the first process.
    pub(super) first: u32,
    /// The address on the bridge.
    pub(super) address: String,
}

/// Hosts `host1` to `hostN`, each with the interface `eth0`.
pub(super) struct Hosts {
    hosts: Vec<Host>,
    /// The host of the bridge.
    _switch: Host,
}

impl Hosts {
    pub(super) fn new(count: usize) -> Result<Self, String> {
        let switch = Host::new("switch", String::new())?;
        switch.ip("link add name bridge0 type bridge")?;
        switch.ip("link set bridge0 up")?;
        let mut hosts = Vec::new();
        for number in 1..=count {
            let host = Host::new(&format!("host{number}"), format!("192.0.2.{number}"))?;
            let (peer, address) = (host.first, &host.address);
            // From this namespace, in which the process IDs of all hosts are valid.
            ip(&format!(
                "link add name port{number} netns {} type veth peer name eth0 netns {peer}",
                switch.first
            ))?;
            switch.ip(&format!("link set port{number} master bridge0 up"))?;
            host.ip(&format!("addr add {address}/24 dev eth0"))?;
            // Duplicate address detection takes a second, in which programs find an address that
            // they cannot use.
            host.run(&[
                "sh",
                "-c",
                "echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad",
            ])?;
            host.ip("link set eth0 up")?;
            host.ip("link set lo up")?;
            hosts.push(host);
        }
        ip(&format!(
            "link add name port0 netns {} type veth peer name eth0",
            switch.first
        ))?;
        switch.ip("link set port0 master bridge0 up")?;
        ip(&format!("addr add {LOGIN}/24 dev eth0"))?;
        ip("link set eth0 up")?;
        Ok(Self {
            hosts,
            _switch: switch,
        })
    }

    pub(super) fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Kills the programs on all hosts.
    pub(super) fn clear(&self) {
        self.hosts.iter().for_each(Host::clear);
    }

    /// Writes, to the directory `hosts`, a file for each address with the process ID that `nsenter`
    /// needs. `tests/ecosystem/agent.sh` reads them.
    pub(super) fn record(&self, directory: &Path) -> Result<(), String> {
        let directory = directory.join("hosts");
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        for host in &self.hosts {
            let path = directory.join(&host.address);
            fs::write(path, host.first.to_string()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Host {
    fn new(name: &str, address: String) -> Result<Self, String> {
        let script = "hostname \"$0\" && echo && exec cat";
        let mut unshare = Command::new("unshare")
            .args(HOST)
            .args(["sh", "-c", script, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut ready = String::new();
        let stdout = unshare.stdout.take().ok_or("unshare has no output")?;
        let read = BufReader::new(stdout).read_line(&mut ready);
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let first = fs::read_to_string(children).unwrap_or_default();
        match (read, first.trim().parse()) {
            (Ok(1), Ok(first)) => Ok(Self {
                unshare,
                first,
                address,
            }),
            _ => Err("unshare created no namespaces".to_owned()),
        }
    }

    /// Returns the words that run a command on this host.
    pub(super) fn words(&self) -> [String; 4] {
        ["nsenter", "--target", &self.first.to_string(), "--all"].map(str::to_owned)
    }

    /// Returns whether a program of this host listens at a TCP port.
    pub(super) fn listens(&self, port: u16) -> bool {
        ["tcp", "tcp6"].iter().any(|table| {
            let path = format!("/proc/{}/net/{table}", self.first);
            let rows = fs::read_to_string(path).unwrap_or_default();
            rows.lines().any(|row| {
                let words: Vec<&str> = row.split_whitespace().collect();
                // The local address, and the state `TCP_LISTEN`.
                let local = words.get(1).and_then(|local| local.rsplit(':').next());
                local == Some(&format!("{port:04X}")) && words.get(3) == Some(&"0A")
            })
        })
    }

    /// Returns whether a program of this host listens at a port of the connection manager, in any
    /// port space. A listener has the name of a Unix socket with its service ID, whose low 16 bits
    /// are the port (`driver/src/queues/gsi/directory.rs`).
    pub(super) fn has_listener(&self, port: u16) -> bool {
        let sockets = fs::read_to_string(format!("/proc/{}/net/unix", self.first));
        sockets
            .unwrap_or_default()
            .lines()
            .any(|socket| is_listener(socket, port))
    }

    /// Kills all processes of the host but the first, and waits until they hold no port any more.
    fn clear(&self) {
        let [nsenter, arguments @ ..] = self.words();
        let _ = Command::new(nsenter)
            .args(arguments)
            .args(["sh", "-c", "kill -9 -1"])
            .stderr(Stdio::null())
            .status();
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while self.has_others() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns whether a process of the host other than the first has not exited.
    fn has_others(&self) -> bool {
        let namespace = |process: &Path| fs::read_link(process.join("ns/pid")).ok();
        let here = namespace(&Path::new("/proc").join(self.first.to_string()));
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        here.is_some()
            && processes
                .filter(|process| process.file_name() != *self.first.to_string())
                .any(|process| {
                    // The first process does not reap orphans; a zombie has closed its files.
                    let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
                    let state = stat
                        .rsplit(") ")
                        .next()
                        .and_then(|rest| rest.chars().next());
                    namespace(&process.path()) == here && !matches!(state, None | Some('Z' | 'X'))
                })
    }

    fn ip(&self, words: &str) -> Result<(), String> {
        let words: Vec<&str> = ["ip"].into_iter().chain(words.split(' ')).collect();
        self.run(&words)
    }

    fn run(&self, command: &[&str]) -> Result<(), String> {
        let [nsenter, arguments @ ..] = self.words();
        succeed(Command::new(nsenter).args(arguments).args(command))
    }
}

/// Returns whether a line of `/proc/net/unix` has the name of a listener at a port.
fn is_listener(socket: &str, port: u16) -> bool {
    let name = socket.split_whitespace().last().unwrap_or_default();
    let service = name.strip_prefix("@urxe/cm/listen/");
    let service = service.and_then(|rest| rest.split('/').next());
    let id = service.and_then(|service| u64::from_str_radix(service, 16).ok());
    id.is_some_and(|id| id & 0xffff == u64::from(port))
}

fn ip(words: &str) -> Result<(), String> {
    succeed(Command::new("ip").args(words.split(' ')))
}

impl Drop for Host {
    fn drop(&mut self) {
        // The kernel ends the host's other processes with its first one.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_found_by_its_port() {
        let line = |name: &str| format!("0000: 00000002 00000000 00000000 0002 01 62834 {name}");
        let listener = line("@urxe/cm/listen/1061c24/127.0.0.1/0");
        assert!(is_listener(&listener, 7204));
        assert!(!is_listener(&listener, 7471));
        assert!(!is_listener(&line("@urxe/cm/106/7204/127.0.0.1"), 7204));
        assert!(!is_listener(&line(""), 7204));
    }
}
