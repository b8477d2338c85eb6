//! Bind address: an IP address and, if known, its interface.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::{UdpOptions, needs_scope};

/// IP address to bind, with its interface if known. Two bind addresses are equal if they identify the same
/// address on this machine.
#[derive(Clone, Debug)]
pub struct BindAddr {
    ip: IpAddr,
    interface: Option<String>,
}

impl BindAddr {
    pub fn new(ip: IpAddr, options: &UdpOptions) -> BindAddr {
        // IPv4 addresses are bound without the interface.
        BindAddr { ip, interface: options.interface.clone().filter(|_| ip.is_ipv6()) }
    }

    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Reports whether the address is bound on the interface with this name.
    pub fn is_on(&self, interface: &str) -> bool {
        self.interface.as_deref() == Some(interface)
    }

    /// Returns the options for a UDP link on this address.
    pub fn options(&self) -> UdpOptions {
        UdpOptions { interface: self.interface.clone(), ..UdpOptions::default() }
    }

    /// Returns the part of a socket name that identifies the address. It includes the interface only if the
    /// address would be ambiguous without it.
    pub fn key(&self) -> String {
        match &self.interface {
            Some(interface) if needs_scope(self.ip) => format!("{}%{interface}", self.ip),
            _ => self.ip.to_string(),
        }
    }
}

impl PartialEq for BindAddr {
    fn eq(&self, other: &BindAddr) -> bool {
        self.key() == other.key()
    }
}

impl Eq for BindAddr {}

impl fmt::Display for BindAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            None => write!(f, "{}", self.ip),
            Some(interface) => write!(f, "{}%{interface}", self.ip),
        }
    }
}

impl FromStr for BindAddr {
    type Err = ();

    fn from_str(text: &str) -> Result<BindAddr, ()> {
        let (ip, interface) =
            text.split_once('%').map_or((text, None), |(ip, name)| (ip, Some(name.to_owned())));
        Ok(BindAddr { ip: ip.parse().map_err(drop)?, interface })
    }
}
