//! Interface addresses: IP addresses with the prefix length of their network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An IP address with the prefix length of its network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IfAddr {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length: the number of leading bits that all addresses in the network share.
    pub prefix: u8,
}

/// Error when parsing an interface address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IfAddrError {
    /// The text is not an IP address.
    #[error("{0:?} is not an IP address: write 10.77.0.1/24 or fd00::1/64")]
    Ip(String),
    /// The prefix length is not a number, or is too large.
    #[error("{text:?}: the prefix length must be a number from 0 to {max}")]
    Prefix {
        /// The text as given.
        text: String,
        /// Maximum prefix length: 32 for IPv4, 128 for IPv6.
        max: u8,
    },
    /// The address is a multicast, broadcast or unspecified address.
    #[error("{0} is not a unicast address")]
    NotUnicast(IpAddr),
}

impl IfAddr {
    /// Reports whether `ip` is in this address's network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (difference, width) = match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => (u128::from(own.to_bits() ^ ip.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(ip)) => (own.to_bits() ^ ip.to_bits(), 128),
            _ => return false,
        };
        difference.unbounded_shr(width - u32::from(self.prefix)) == 0
    }

    /// Reports whether `ip` is the broadcast address of this address's IPv4 network. Networks with a prefix
    /// length of 31 or 32 have none.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        let IpAddr::V4(v4) = ip else { return false };
        let host = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
        self.prefix < 31 && self.contains(ip) && v4.to_bits() & host == host
    }
}

impl fmt::Display for IfAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for IfAddr {
    type Err = IfAddrError;

    /// Parses `10.77.0.1/24` or `fd00::1/64`; the default prefix length is 24 for IPv4 and 64 for IPv6.
    fn from_str(s: &str) -> Result<IfAddr, IfAddrError> {
        let (ip, prefix) = match s.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (s, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| IfAddrError::Ip(s.to_owned()))?;
        let (max, default) = if ip.is_ipv4() { (32, 24) } else { (128, 64) };
        let invalid = || IfAddrError::Prefix { text: s.to_owned(), max };
        let prefix = match prefix {
            Some(text) => text.parse().ok().filter(|p| *p <= max).ok_or_else(invalid)?,
            None => default,
        };
        if ip.is_multicast() || ip.is_unspecified() || matches!(ip, IpAddr::V4(v4) if v4.is_broadcast()) {
            return Err(IfAddrError::NotUnicast(ip));
        }
        Ok(IfAddr { ip, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_exactly_the_addresses_with_its_prefix() {
        let a: IfAddr = "10.77.1.1/23".parse().unwrap();
        assert!(a.contains("10.77.0.9".parse().unwrap()) && !a.contains("10.77.2.1".parse().unwrap()));
        assert!(a.is_broadcast("10.77.1.255".parse().unwrap()));
        assert!(!a.is_broadcast("10.77.0.255".parse().unwrap()));
        let b: IfAddr = "fd00::1".parse().unwrap();
        assert_eq!(b.to_string(), "fd00::1/64");
        assert!(b.contains("fd00::ffff:1".parse().unwrap()) && !b.contains("fd00:0:0:1::1".parse().unwrap()));
        assert!(!b.contains("10.0.0.1".parse().unwrap()));
        assert!("10.0.0.1/0".parse::<IfAddr>().unwrap().contains("1.1.1.1".parse().unwrap()));
        assert!("::1/0".parse::<IfAddr>().unwrap().contains("fe80::1".parse().unwrap()));
        assert!(!"10.0.0.1/32".parse::<IfAddr>().unwrap().is_broadcast("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn error_for_an_invalid_address_names_the_correct_form() {
        let err = |s: &str| s.parse::<IfAddr>().unwrap_err().to_string();
        assert!(err("10.0.0/8").contains("write 10.77.0.1/24"));
        assert!(err("10.0.0.1/33").contains("from 0 to 32"));
        assert!(err("fd00::1/x").contains("from 0 to 128"));
        assert!(err("224.0.0.1/4").contains("unicast"));
    }
}
