//! Network namespaces of the processes of a measurement: the current one, or namespaces created for them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::Result;

/// A network namespace to run in.
pub enum Namespace {
    /// The namespace of this process.
    Current,
    /// The namespace of the process with this PID.
    OfProcess(u32),
}

impl Namespace {
    /// Returns a command that runs a program in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Namespace::Current => Command::new(program),
            Namespace::OfProcess(pid) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{pid}/ns/net")).arg("--").arg(program);
                command
            }
        }
    }

    /// Runs `ip` in the namespace.
    fn ip(&self, args: &str) -> Result<()> {
        let out = self.command("ip").args(args.split_whitespace()).output();
        let out =
            out.map_err(|e| format!("cannot run ip (Debian: iproute2) or nsenter (util-linux): {e}"))?;
        if !out.status.success() {
            return Err(format!("ip {args}: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
        }
        Ok(())
    }
}

/// A `cat` that keeps a namespace alive. It ends with this process, and the namespace ends with it.
struct NamespaceProcess(Child);

impl NamespaceProcess {
    fn start() -> Result<NamespaceProcess> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|e| format!("cannot run unshare (Debian: util-linux): {e}"))?;
        let mut process = NamespaceProcess(child);
        let (stdin, stdout) = (process.0.stdin.as_mut(), process.0.stdout.as_mut());
        let (stdin, stdout) = stdin.zip(stdout).ok_or("the process has no pipe")?;
        // The echoed line confirms that `cat` runs in the namespace.
        writeln!(stdin, "ready")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() { Err("unshare --net failed".into()) } else { Ok(process) }
    }
}

impl Drop for NamespaceProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Two namespaces joined by a veth pair, `v0` in the first and `v1` in the second. The loopback interface of
/// the first has two additional IPv6 addresses, because it has only one by itself.
pub struct Net {
    _processes: [NamespaceProcess; 2],
    pub namespaces: [Namespace; 2],
}

impl Net {
    pub const LOOPBACK_V6: [&str; 2] = ["fd66::1", "fd66::2"];
    pub const INTERFACES: [&str; 2] = ["v0", "v1"];
    pub const MTU: usize = 9000;

    /// # Errors
    /// Without root, iproute2, util-linux or kernel support for veth. The message is meant for the user.
    pub fn new() -> Result<Net> {
        if !nix::unistd::geteuid().is_root() {
            return Err("network namespaces require root".into());
        }
        let processes = [NamespaceProcess::start()?, NamespaceProcess::start()?];
        let namespaces = [0, 1].map(|i: usize| Namespace::OfProcess(processes[i].0.id()));
        let ([a, b], [v0, v1], mtu) = ([0, 1].map(|i: usize| processes[i].0.id()), Net::INTERFACES, Net::MTU);
        Namespace::Current
            .ip(&format!("link add {v0} mtu {mtu} netns {a} type veth peer name {v1} mtu {mtu} netns {b}"))?;
        for (i, namespace) in namespaces.iter().enumerate() {
            let (dev, n) = (Net::INTERFACES[i], i + 1);
            namespace.ip("link set lo up")?;
            namespace.ip(&format!("addr add 10.66.0.{n}/24 dev {dev}"))?;
            namespace.ip(&format!("link set {dev} up"))?;
        }
        for ip in Net::LOOPBACK_V6 {
            namespaces[0].ip(&format!("addr add {ip}/128 dev lo nodad"))?;
        }
        Ok(Net { _processes: processes, namespaces })
    }
}
