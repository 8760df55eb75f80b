//! A second network namespace, connected to this one by a veth pair.

use std::process::{Child, Command, Stdio};

/// The address in this namespace.
pub(super) const SERVER: &str = "192.0.2.1";
/// The address in the second namespace.
const CLIENT: &str = "192.0.2.2";

/// The second namespace, for as long as this value exists.
pub(super) struct Veth {
    /// A process that keeps the namespace.
    first: Child,
}

impl Veth {
    /// Creates the namespace, with a path MTU of 1500 bytes.
    ///
    /// # Errors
    /// The first command that fails, as text.
    pub(super) fn new() -> Result<Self, String> {
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
        let veth = Veth { first };
        let pid = veth.first.id();
        Self::run(
            &format!(
                "ip link add urxe0 type veth peer name urxe1 netns {pid} && ip link set urxe0 up && \
             ip address add {SERVER}/24 dev urxe0"
            ),
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
    }
}
