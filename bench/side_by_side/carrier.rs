//! Carriers of the data of unmodified programs: urxe, and transports of their own.

use std::process::Command;

use crate::urxe_command;

/// Address of both ends of programs that run on urxe.
pub const IP: &str = "127.66.0.3";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// urxe, by UDP sockets.
    Sockets,
    /// urxe, by rings in shared memory.
    SharedMemory,
    /// The program's own TCP.
    Tcp,
    /// The program's own shared memory.
    OwnMemory,
}

impl Carrier {
    pub const fn name(self) -> &'static str {
        match self {
            Carrier::Sockets => "urxe udp/IPv4",
            Carrier::SharedMemory => "urxe shared memory",
            Carrier::Tcp => "tcp",
            Carrier::OwnMemory => "own shared memory",
        }
    }

    pub const fn is_urxe(self) -> bool {
        matches!(self, Carrier::Sockets | Carrier::SharedMemory)
    }

    /// Returns the command that runs a program, with `urxe run` if urxe carries its data.
    pub fn command(self, program: &str) -> Command {
        if !self.is_urxe() {
            return Command::new(program);
        }
        let mut command = Command::new(urxe_command::program());
        command.args(["run", "--ip", IP, "--no-warnings"]);
        command.args(["--shared-memory", if self == Carrier::SharedMemory { "require" } else { "off" }]);
        command.args(["--", program]);
        command
    }

    /// Returns the command for a program that communicates by UCX.
    pub fn ucx_command(self, program: &str) -> Command {
        let mut command = self.command(program);
        let (transports, device) = match self {
            Carrier::Sockets | Carrier::SharedMemory => ("rc,self", Some("urxe0:1")),
            Carrier::Tcp => ("tcp", Some("lo")),
            Carrier::OwnMemory => ("posix", None),
        };
        command.envs([
            ("UCX_TLS", transports),
            ("UCX_WARN_UNUSED_ENV_VARS", "n"),
            ("UCX_LOG_LEVEL", "error"),
        ]);
        command.envs(device.map(|device| ("UCX_NET_DEVICES", device)));
        command
    }
}
