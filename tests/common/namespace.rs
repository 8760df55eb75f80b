//! Network namespaces that the kernel removes when their test ends.
//!
//! An unnamed namespace exists as long as a process in it. That process is a `cat` that reads from
//! a pipe of the test. However the test ends, the pipe closes, `cat` exits, and the kernel removes
//! the namespace with its interfaces. No clean-up is needed, and no names can collide.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::require::{can_unshare, is_root};
use super::run::{POLL_INTERVAL, run};
use super::runner::Runner;

/// The time limit of a program that configures interfaces.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace.
pub struct Namespace {
    process: Child,
    runner: Runner,
}

impl Namespace {
    /// Creates a namespace for the user of `base`, inside a new user namespace unless the user is
    /// root.
    pub fn new(base: &Runner) -> Self {
        if is_root() && can_unshare("-n") {
            Self::hold(base, "-n", &["--net"])
        } else {
            Self::new_with_user(base)
        }
    }

    /// Creates a user namespace with a network namespace in it, as `unshare -rn` does.
    pub fn new_with_user(base: &Runner) -> Self {
        Self::hold(base, "-rn", &["--user", "--preserve-credentials", "--net"])
    }

    /// Creates another network namespace in the same user namespace.
    pub fn sibling(&self) -> Self {
        // Created from inside this namespace, so that both belong to the same user namespace.
        Self::hold(&self.runner, "-n", &["--net"])
    }

    fn hold(base: &Runner, unshare: &str, enter: &[&str]) -> Self {
        let mut process = base
            .command("unshare")
            .args([unshare, "sh", "-c", "echo && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start unshare: {error}"));
        let mut ready = String::new();
        let stdout = process.stdout.take().expect("it is a pipe");
        BufReader::new(stdout)
            .read_line(&mut ready)
            .expect("a pipe can be read");
        assert_eq!(ready, "\n", "unshare {unshare} created no namespace");

        let target = process.id().to_string();
        let words = [&["nsenter", "--target", &target], enter, &["--"]].concat();
        Self {
            runner: base.inside(words),
            process,
        }
    }

    /// Returns the runner of programs in this namespace.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Runs `ip` with these space-separated arguments.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ip(&self, words: &str) {
        let mut command = self.runner.command("ip");
        command.args(words.split(' '));
        run(&format!("ip {words}"), command, SETUP_TIMEOUT).success();
    }

    /// Writes to a file of the namespace below `/proc/sys/net`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    fn write(&self, path: &str, value: &str) {
        let mut command = self.runner.command("sh");
        command.args(["-c", &format!("echo {value} > {path}")]);
        run(&format!("writing {path}"), command, SETUP_TIMEOUT).success();
    }

    /// Waits for the interface's link-local address, which the kernel assigns when it detects the
    /// carrier.
    #[track_caller]
    fn wait_for_link_local(&self, interface: &str) {
        let deadline = Instant::now() + SETUP_TIMEOUT;
        loop {
            let mut command = self.runner.command("ip");
            command.args(["-6", "addr", "show", "dev", interface, "scope", "link"]);
            let shown = run("ip addr show", command, SETUP_TIMEOUT).success().stdout;
            if shown.contains("inet6") && !shown.contains("tentative") {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{interface} has no link-local address: {shown}"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the number of packets that an interface has received.
    #[track_caller]
    pub fn received_packets(&self, interface: &str) -> u64 {
        let mut command = self.runner.command("cat");
        command.arg("/proc/net/dev");
        let text = run("cat /proc/net/dev", command, SETUP_TIMEOUT)
            .success()
            .stdout;
        let name = format!("{interface}:");
        let line = text.lines().find_map(|it| it.trim().strip_prefix(&name));
        let column = line.and_then(|it| it.split_whitespace().nth(1));
        column
            .and_then(|it| it.parse().ok())
            .unwrap_or_else(|| panic!("no counters of {interface}: {text}"))
    }

    /// Returns a counter of the kernel for a protocol, such as `InTimeExcds` of `Icmp`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn kernel_counter(&self, protocol: &str, name: &str) -> u64 {
        let mut command = self.runner.command("cat");
        command.arg("/proc/net/snmp");
        let text = run("cat /proc/net/snmp", command, SETUP_TIMEOUT)
            .success()
            .stdout;
        // Two lines for each protocol: names, and values.
        let prefix = format!("{protocol}:");
        let mut lines = text.lines().filter(|line| line.starts_with(&prefix));
        let [names, values] = [(); 2].map(|()| lines.next().unwrap_or_default());
        let position = names.split_whitespace().position(|it| it == name);
        let value = position.and_then(|at| values.split_whitespace().nth(at));
        value
            .and_then(|it| it.parse().ok())
            .unwrap_or_else(|| panic!("no {protocol} {name}: {text}"))
    }

    /// Brings the loopback interface up.
    pub fn loopback_up(self) -> Self {
        self.ip("link set lo up");
        self
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Closing the pipe would also end `cat`; killing it takes less time.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Namespaces that a bridge connects, each with the interface `eth0`.
pub struct Cluster {
    /// The hosts.
    pub hosts: Vec<Namespace>,
    /// The namespace of the bridge.
    _switch: Namespace,
}

impl Cluster {
    /// Creates a cluster of `count` hosts.
    pub fn new(base: &Runner, count: usize) -> Self {
        let switch = Namespace::new(base);
        switch.ip("link add name bridge0 type bridge");
        switch.ip("link set bridge0 up");
        let hosts = (0..count).map(|index| {
            let host = switch.sibling();
            let peer = host.process.id();
            switch.ip(&format!(
                "link add name port{index} type veth peer name eth0 netns {peer}"
            ));
            switch.ip(&format!("link set port{index} master bridge0 up"));
            host.ip(&format!("addr add {}/24 dev eth0", Self::address(index)));
            host.ip("link set eth0 up");
            host.ip("link set lo up");
            host
        });
        Self {
            hosts: hosts.collect(),
            _switch: switch,
        }
    }

    /// Returns the address of a host.
    pub fn address(index: usize) -> String {
        format!("192.0.2.{}", index + 1)
    }
}

/// Two namespaces that a veth pair connects: `va` in the first, `vb` in the second.
pub struct VethPair {
    /// The namespace of `va`.
    pub a: Namespace,
    /// The namespace of `vb`.
    pub b: Namespace,
}

impl VethPair {
    /// The IPv4 address of `va`.
    pub const A: &str = "192.0.2.1";
    /// The IPv4 address of `vb`.
    pub const B: &str = "192.0.2.2";
    /// The global IPv6 address of `va`.
    pub const A6: &str = "2001:db8::1";
    /// The global IPv6 address of `vb`.
    pub const B6: &str = "2001:db8::2";

    /// Creates a cable with this MTU and configures both ends.
    pub fn new(base: &Runner, mtu: u32) -> Self {
        Self::join(Namespace::new(base), mtu)
    }

    /// Connects `a` to a new sibling namespace.
    pub fn join(a: Namespace, mtu: u32) -> Self {
        let b = a.sibling();
        let peer = b.process.id();
        a.ip(&format!(
            "link add va mtu {mtu} type veth peer name vb mtu {mtu} netns {peer}"
        ));
        for (end, interface, address, address6) in
            [(&a, "va", Self::A, Self::A6), (&b, "vb", Self::B, Self::B6)]
        {
            end.ip(&format!("addr add {address}/24 dev {interface}"));
            // Disables duplicate address detection, which delays the link-local address.
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

    /// Makes the kernel segment each GSO batch before the cable, as a NIC does before the wire, so
    /// that a capture shows the real packets.
    pub fn disable_gso(&self) {
        self.a.ip("link set va gso_max_segs 1");
        self.b.ip("link set vb gso_max_segs 1");
    }
}

/// Two hosts with a router between them: `va` in the first, `vb` in the second. The interfaces of
/// the hosts have an MTU of 9000.
pub struct RoutedPath {
    /// The namespace of `va`.
    pub a: Namespace,
    /// The namespace of `vb`.
    pub b: Namespace,
    /// The namespace of the router, with `ra` to `va` and `rb` to `vb`.
    pub router: Namespace,
}

impl RoutedPath {
    /// The address of `va`.
    pub const A: &str = "192.0.2.1";
    /// The address of `vb`.
    pub const B: &str = "198.51.100.1";
    /// The router's address for `va`.
    const GATEWAY_A: &str = "192.0.2.254";
    /// The addresses of `wa` and `wb`, and those of the second router for them.
    const SECOND_A: &str = "192.0.3.1";
    const SECOND_B: &str = "198.51.101.1";
    const SECOND_GATEWAY_A: &str = "192.0.3.254";
    const SECOND_GATEWAY_B: &str = "198.51.101.254";

    /// Creates a path on which the router's interface to `vb` has this MTU.
    pub fn new(base: &Runner, mtu: u32) -> Self {
        let router = Namespace::new(base);
        let (a, b) = (router.sibling(), router.sibling());
        for (host, name, address, gateway, mtu) in [
            (&a, "a", Self::A, Self::GATEWAY_A, 9000),
            (&b, "b", Self::B, "198.51.100.254", mtu),
        ] {
            let peer = host.process.id();
            router.ip(&format!(
                "link add r{name} mtu {mtu} type veth peer name v{name} mtu 9000 netns {peer}"
            ));
            router.ip(&format!("addr add {gateway}/24 dev r{name}"));
            router.ip(&format!("link set r{name} up"));
            host.ip(&format!("addr add {address}/24 dev v{name}"));
            host.ip(&format!("link set v{name} up"));
            host.ip(&format!("route add default via {gateway}"));
        }
        router.write("/proc/sys/net/ipv4/ip_forward", "1");
        Self { a, b, router }
    }

    /// Makes the router change packets that it forwards: statements of nftables for RoCE packets.
    /// They replace those of the last call.
    ///
    /// # Panics
    /// If nftables refuses them.
    #[track_caller]
    pub fn change_packets(&self, statements: &[&str]) {
        let mut script = "add table ip path; delete table ip path; add table ip path; \
             add chain ip path forward { type filter hook forward priority 0; }"
            .to_owned();
        for statement in statements {
            script += &format!("; add rule ip path forward udp dport 4791 {statement}");
        }
        let mut command = self.router.runner().command("nft");
        command.arg(&script);
        run(&format!("nft {script}"), command, SETUP_TIMEOUT).success();
    }

    /// Sets the hop limit of packets from the first host.
    pub fn set_hop_limit(&self, limit: u32) {
        let gateway = Self::GATEWAY_A;
        self.a.ip(&format!(
            "route replace default via {gateway} hoplimit {limit}"
        ));
    }

    /// Makes the first host send RoCE packets with a hop limit that ends at the router.
    pub fn limit_hops_of_roce(&self) {
        let gateway = Self::GATEWAY_A;
        self.a.ip("rule add ipproto udp dport 4791 table 100");
        self.a.ip(&format!(
            "route add default via {gateway} hoplimit 1 table 100"
        ));
    }

    /// Adds a second router, with the interfaces `sa` and `sb` to the interfaces `wa` and `wb` of
    /// the hosts. It forwards to the addresses `A` and `B`; no host has a route through it.
    pub fn add_router(&self) -> Namespace {
        let router = self.a.sibling();
        for (host, name, own, gateway, address) in [
            (
                &self.a,
                "a",
                Self::SECOND_A,
                Self::SECOND_GATEWAY_A,
                Self::A,
            ),
            (
                &self.b,
                "b",
                Self::SECOND_B,
                Self::SECOND_GATEWAY_B,
                Self::B,
            ),
        ] {
            let peer = host.process.id();
            router.ip(&format!(
                "link add s{name} mtu 9000 type veth peer name w{name} mtu 9000 netns {peer}"
            ));
            router.ip(&format!("addr add {gateway}/24 dev s{name}"));
            router.ip(&format!("link set s{name} up"));
            host.ip(&format!("addr add {own}/24 dev w{name}"));
            host.ip(&format!("link set w{name} up"));
            router.ip(&format!("route add {address}/32 via {own}"));
            // Packets arrive on another interface than that of the route to their source.
            for interface in ["all", &format!("v{name}"), &format!("w{name}")] {
                let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
                host.write(&path, "2");
            }
        }
        router.write("/proc/sys/net/ipv4/ip_forward", "1");
        router
    }

    /// Makes the second host send to the first one through the second router.
    pub fn return_through_second_router(&self) {
        let (to, gateway) = (Self::A, Self::SECOND_GATEWAY_B);
        self.b.ip(&format!("route add {to}/32 via {gateway}"));
    }

    /// Removes the address `A` from `va`, adds it to `wa`, and changes the routes.
    pub fn move_address(&self) {
        let address = Self::A;
        self.a.ip(&format!("addr del {address}/24 dev va"));
        self.a.ip(&format!("addr add {address}/32 dev wa"));
        let (to, gateway) = (Self::B, Self::SECOND_GATEWAY_A);
        self.a.ip(&format!(
            "route replace {to}/32 via {gateway} src {address}"
        ));
        self.return_through_second_router();
    }

    /// Makes the first host know that the path has this MTU, as after a router's report. Not every
    /// kernel sends such reports: some sandboxes disable ICMP.
    pub fn report_mtu(&self, mtu: u32) {
        self.a.ip(&format!(
            "route change default via {} mtu {mtu}",
            Self::GATEWAY_A
        ));
    }

    /// Makes the first host discard the router's reports of a smaller MTU, as a firewall would.
    pub fn drop_mtu_reports(&self) {
        self.a.write("/proc/sys/net/ipv4/ip_no_pmtu_disc", "2");
    }
}
