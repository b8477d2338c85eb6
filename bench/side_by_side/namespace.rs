//! Network namespaces for a measurement's processes: the current one, or two joined by a veth pair.

use std::ffi::OsStr;
use std::process::Command;

use crate::Result;
use urxe_test_support::netns::{Netns, Veth};

/// A network namespace to run in.
pub enum Namespace {
    /// The namespace of this process.
    Current,
    /// A namespace created for the measurement.
    Created(Netns),
}

impl Namespace {
    /// Returns a command that runs a program in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Namespace::Current => Command::new(program),
            Namespace::Created(netns) => netns.command(program),
        }
    }
}

/// Two namespaces joined by a veth pair, `v0` in the first and `v1` in the second. The loopback interface of
/// the first has two additional IPv6 addresses, because by default it has only `::1`.
pub struct Net {
    pub namespaces: [Namespace; 2],
}

impl Net {
    pub const LOOPBACK_V6: [&str; 2] = ["fd66::1", "fd66::2"];
    pub const INTERFACES: [&str; 2] = Veth::DEVICES;
    pub const MTU: usize = 9000;

    /// # Errors
    /// Without root, iproute2 or kernel support for veth. The message is meant for the user.
    pub fn new() -> Result<Net> {
        let veth = Veth { sides: [Netns::try_new()?, Netns::try_new()?] };
        veth.join(Net::INTERFACES, Net::MTU)?;
        for (n, (side, device)) in (1..).zip(veth.sides.iter().zip(Net::INTERFACES)) {
            side.try_ip(&format!("addr add 10.66.0.{n}/24 dev {device}"))?;
        }
        for ip in Net::LOOPBACK_V6 {
            veth.sides[0].try_ip(&format!("addr add {ip}/128 dev lo nodad"))?;
        }
        Ok(Net { namespaces: veth.sides.map(Namespace::Created) })
    }
}
