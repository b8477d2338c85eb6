//! Ethernet addresses, and the mapping of multicast IP addresses to them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Ethernet address (MAC).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

/// Error returned if text cannot be parsed as an Ethernet address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a MAC address: write six two-digit hexadecimal bytes, such as 52:54:00:77:00:01")]
pub struct MacError(String);

impl Mac {
    /// Broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Reports whether this is a group address (multicast or broadcast).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns the group address of a multicast or broadcast IP address (RFC 1112, RFC 2464), or `None` for
    /// unicast.
    pub fn of_group(ip: IpAddr) -> Option<Mac> {
        match ip {
            IpAddr::V4(ip) if ip.is_broadcast() => Some(Mac::BROADCAST),
            IpAddr::V4(ip) if ip.is_multicast() => {
                let [_, b, c, d] = ip.octets();
                Some(Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
            }
            IpAddr::V6(ip) if ip.is_multicast() => {
                let o = ip.octets();
                Some(Mac([0x33, 0x33, o[12], o[13], o[14], o[15]]))
            }
            _ => None,
        }
    }
}

/// Returns the solicited-node group for `ip` (RFC 4291, 2.7.1), which receives neighbour solicitations for
/// that address.
pub fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(o[13]), u16::from_be_bytes([o[14], o[15]]))
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac({self})")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(s: &str) -> Result<Mac, MacError> {
        let invalid = || MacError(s.to_owned());
        let mut bytes = [0; 6];
        let mut parts = s.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2 && !p.starts_with('+')).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() {
            return Err(invalid());
        }
        Ok(Mac(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_is_parsed_and_invalid_text_is_rejected() {
        let mac: Mac = "52:54:00:AB:0c:01".parse().unwrap();
        assert_eq!(mac, Mac([0x52, 0x54, 0, 0xab, 0x0c, 1]));
        assert_eq!(mac.to_string(), "52:54:00:ab:0c:01");
        for invalid in
            ["", "52:54:00:ab:0c", "52:54:00:ab:0c:01:02", "5254:00:ab:0c:1:2", "+2:54:00:ab:0c:01"]
        {
            assert!(invalid.parse::<Mac>().unwrap_err().to_string().contains("six two-digit"), "{invalid}");
        }
    }

    #[test]
    fn multicast_ip_addresses_map_to_group_macs() {
        let of = |ip: &str| Mac::of_group(ip.parse().unwrap()).map(|m| m.to_string());
        assert_eq!(of("239.129.2.3").as_deref(), Some("01:00:5e:01:02:03"));
        assert_eq!(of("255.255.255.255").as_deref(), Some("ff:ff:ff:ff:ff:ff"));
        assert_eq!(of("ff02::1:ff01:203").as_deref(), Some("33:33:ff:01:02:03"));
        assert_eq!(of("10.0.0.1"), None);
        assert_eq!(solicited_node("fd00::a1:b2c3".parse().unwrap()).to_string(), "ff02::1:ffa1:b2c3");
    }
}
