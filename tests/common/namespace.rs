//! Network namespaces that vanish with their test.
//!
//! A namespace without a name lives as long as a process in it. That process is a `cat` that
//! reads from this one: however the test ends, the pipe closes, `cat` leaves, and the kernel
//! removes the namespace with its interfaces. There is nothing to clean up, and no name to clash.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::place::Place;
use super::require::{can_unshare, is_root};
use super::run::{LOOK, run};

/// What a program that sets up interfaces may take.
const SETUP: Duration = Duration::from_secs(20);

/// A network namespace.
pub struct Namespace {
    holder: Child,
    place: Place,
}

impl Namespace {
    /// A new one for the user of `base`; in a user namespace of its own, too, unless root can do
    /// without.
    pub fn new(base: &Place) -> Self {
        if is_root() && can_unshare("-n") {
            Self::hold(base, "-n", &["--net"])
        } else {
            Self::new_with_user(base)
        }
    }

    /// A new user namespace with a network namespace in it, as by `unshare -rn`.
    pub fn new_with_user(base: &Place) -> Self {
        Self::hold(base, "-rn", &["--user", "--preserve-credentials", "--net"])
    }

    /// Another network namespace beside this one.
    pub fn sibling(&self) -> Self {
        // Entered from this one, so that both belong to one user namespace, if there is one.
        Self::hold(&self.place, "-n", &["--net"])
    }

    fn hold(base: &Place, unshare: &str, enter: &[&str]) -> Self {
        let mut holder = base
            .command("unshare")
            .args([unshare, "sh", "-c", "echo && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("unshare could not be started: {error}"));
        let mut ready = String::new();
        let stdout = holder.stdout.take().expect("it is a pipe");
        BufReader::new(stdout)
            .read_line(&mut ready)
            .expect("a pipe can be read");
        assert_eq!(ready, "\n", "unshare {unshare} made no namespace");

        let target = holder.id().to_string();
        let words = [&["nsenter", "--target", &target], enter, &["--"]].concat();
        Self {
            place: base.through(words),
            holder,
        }
    }

    /// Where programs run in this namespace.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Runs `ip` with these words, separated by spaces.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ip(&self, words: &str) {
        let mut command = self.place.command("ip");
        command.args(words.split(' '));
        run(&format!("ip {words}"), command, SETUP).success();
    }

    /// Writes to a file of the namespace's own, below `/proc/sys/net`.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    fn write(&self, path: &str, value: &str) {
        let mut command = self.place.command("sh");
        command.args(["-c", &format!("echo {value} > {path}")]);
        run(&format!("writing {path}"), command, SETUP).success();
    }

    /// Waits until the interface has its link-local address, which the kernel gives it when it has
    /// noticed that the cable is plugged in.
    #[track_caller]
    fn wait_for_link_local(&self, interface: &str) {
        let deadline = Instant::now() + SETUP;
        loop {
            let mut command = self.place.command("ip");
            command.args(["-6", "addr", "show", "dev", interface, "scope", "link"]);
            let shown = run("ip addr show", command, SETUP).success().stdout;
            if shown.contains("inet6") && !shown.contains("tentative") {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{interface} gets no address: {shown}"
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Brings the loopback interface up.
    pub fn loopback_up(self) -> Self {
        self.ip("link set lo up");
        self
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Closing its input ends it; killing as well spares the wait.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Two namespaces, `va` in the first and `vb` in the second being the ends of one cable.
pub struct Cable {
    /// With the interface `va`.
    pub a: Namespace,
    /// With the interface `vb`.
    pub b: Namespace,
}

impl Cable {
    /// The IPv4 address of `va`.
    pub const A: &str = "192.0.2.1";
    /// The IPv4 address of `vb`.
    pub const B: &str = "192.0.2.2";
    /// The IPv6 address of `va`, beside its link-local one.
    pub const A6: &str = "2001:db8::1";
    /// The IPv6 address of `vb`, beside its link-local one.
    pub const B6: &str = "2001:db8::2";

    /// A cable for packets of up to `mtu` bytes, both ends up with all their addresses.
    pub fn new(base: &Place, mtu: u32) -> Self {
        Self::join(Namespace::new(base), mtu)
    }

    /// A cable from `a` to a new namespace beside it.
    pub fn join(a: Namespace, mtu: u32) -> Self {
        let b = a.sibling();
        let peer = b.holder.id();
        a.ip(&format!(
            "link add va mtu {mtu} type veth peer name vb mtu {mtu} netns {peer}"
        ));
        for (end, interface, address, address6) in
            [(&a, "va", Self::A, Self::A6), (&b, "vb", Self::B, Self::B6)]
        {
            end.ip(&format!("addr add {address}/24 dev {interface}"));
            // Without waiting for duplicate address detection.
            end.write(
                &format!("/proc/sys/net/ipv6/conf/{interface}/accept_dad"),
                "0",
            );
            end.ip(&format!("addr add {address6}/64 dev {interface} nodad"));
            end.ip(&format!("link set {interface} up"));
        }
        a.wait_for_link_local("va");
        b.wait_for_link_local("vb");
        Self { a, b }
    }

    /// Has the kernel cut each batch into packets before it enters the cable, as a NIC would
    /// before the wire, so that a capture shows the true packets.
    pub fn cut_batches(&self) {
        self.a.ip("link set va gso_max_segs 1");
        self.b.ip("link set vb gso_max_segs 1");
    }
}
