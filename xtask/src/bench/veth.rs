//! A second network namespace, connected to this one by a veth pair or over a bridge.

use std::process::{Child, Command, Stdio};

/// The address in this namespace.
pub(super) const SERVER: &str = "192.0.2.1";
/// The address in the second namespace.
const CLIENT: &str = "192.0.2.2";

/// The properties of a link between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    /// The MTU in bytes of an IP packet.
    pub(super) mtu: u32,
    /// Whether packets pass a bridge between two veth pairs.
    pub(super) bridged: bool,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            mtu: 1500,
            bridged: false,
        }
    }
}

/// The second namespace, for as long as this value exists.
pub(super) struct Veth {
    link: Link,
    /// A process that keeps the namespace.
    first: Child,
}

impl Veth {
    /// Creates the namespace and the link.
    ///
    /// # Errors
    /// The first command that fails, as text.
    pub(super) fn new(link: Link) -> Result<Self, String> {
        let mut first = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo && exec sleep infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        // When the shell writes a line, the namespace exists.
        if let Some(mut out) = first.stdout.take() {
            let _ = std::io::Read::read(&mut out, &mut [0]);
        }
        let veth = Veth { link, first };
        let (pid, mtu) = (veth.first.id(), link.mtu);
        // The ports of the bridge have no addresses, so that they are no devices of urxe.
        let cable = match link.bridged {
            false => format!(
                "ip link add urxe0 mtu {mtu} type veth peer name urxe1 mtu {mtu} netns {pid}"
            ),
            true => format!(
                "ip link add bridge mtu {mtu} type bridge && \
                 ip link add urxe0 mtu {mtu} type veth peer name port0 mtu {mtu} && \
                 ip link add urxe1 mtu {mtu} netns {pid} type veth peer name port1 mtu {mtu} && \
                 for port in port0 port1; do \
                     ip link set $port addrgenmode none master bridge && ip link set $port up || exit; \
                 done && ip link set bridge addrgenmode none up"
            ),
        };
        Self::run(
            &format!("{cable} && ip link set urxe0 up && ip address add {SERVER}/24 dev urxe0"),
            Command::new("sh"),
        )?;
        Self::run(
            &format!(
                "ip link set lo up && ip link set urxe1 up && ip address add {CLIENT}/24 dev urxe1"
            ),
            veth.enter("sh"),
        )?;
        Ok(veth)
    }

    /// The link.
    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Returns the command of a shell in the second namespace.
    pub(super) fn client(&self) -> Command {
        self.enter("bash")
    }

    fn enter(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.first.id()));
        command.arg(program);
        command
    }

    fn run(script: &str, mut shell: Command) -> Result<(), String> {
        match shell.args(["-c", script]).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{script}: {status}")),
            Err(error) => Err(format!("{script}: {error}")),
        }
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // Fails if the process has ended by itself.
        let _ = self.first.kill();
        let _ = self.first.wait();
        // Some of them are deleted with the other namespace, sooner or later.
        let delete =
            "for device in urxe0 port1 bridge; do ip link delete $device; done 2>/dev/null";
        let _ = Self::run(delete, Command::new("sh"));
    }
}
