//! Identifiers and encoded values of the InfiniBand transport: queue pairs, keys, GIDs, MTUs and timers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::numbers::hexadecimal;

/// Queue pair number (QPN), 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Number of the general services QP (QP1), which receives connection manager datagrams.
    pub const GSI: Qpn = Qpn(1);
    /// Destination QPN of multicast datagrams.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// Creates a QPN from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Qpn(value & 0xff_ffff)
    }

    /// Returns the value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

hexadecimal! {
    Qpn: "qp {:#x}", "{:#x}";
    LKey: "LKey({:#x})", "{:#x}";
    RKey: "RKey({:#x})", "{:#x}";
}

macro_rules! memory_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Creates the key for table slot `index` (24 bits) and the given `generation` (8 bits).
            pub const fn from_parts(index: u32, generation: u8) -> Self {
                $name(index << 8 | generation as u32)
            }
            /// Returns the index of the table slot (the upper 24 bits).
            pub const fn index(self) -> u32 {
                self.0 >> 8
            }
            /// Returns the generation (the lower 8 bits), which distinguishes stale keys from the slot's
            /// current key.
            pub const fn generation(self) -> u8 {
                self.0 as u8
            }
        }
    };
}

memory_key!(
    /// Local memory key (L_Key), with which work requests refer to memory regions.
    LKey
);
memory_key!(
    /// Remote memory key (R_Key), as carried in the RETH, AtomicETH and IETH.
    RKey
);

/// Partition key: bit 15 is set for a full member, and the other bits identify the partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PKey(pub u16);

impl PKey {
    /// Key of a full member of the default partition.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Reports whether a port whose table contains `local` accepts a packet with this key: both keys must
    /// have the same partition, and at least one must be that of a full member (IBA 10.9.3).
    pub const fn admits(self, local: PKey) -> bool {
        self.0 & 0x7fff == local.0 & 0x7fff && self.0 & 0x7fff != 0 && (self.0 | local.0) & 0x8000 != 0
    }
}

impl Default for PKey {
    fn default() -> Self {
        PKey::DEFAULT
    }
}

/// Queue key (Q_Key) of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// Queue key of QP1.
    pub const GSI: QKey = QKey(0x8001_0000);
}

/// Global identifier (GID), 128 bits; in RoCEv2 an IPv6 address or an IPv4-mapped IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID as an IP address. A GID of the form `::ffff:a.b.c.d` becomes an IPv4 address.
    pub fn ip(self) -> IpAddr {
        // For every datagram; `Ipv6Addr::to_ipv4_mapped` compares byte by byte.
        let bits = u128::from_be_bytes(self.0);
        match bits >> 32 {
            0xffff => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        }
    }

    /// Reports whether the GID identifies a multicast group: either one in `ff00::/8`, or an IPv4-mapped
    /// multicast address (annex A17).
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }

    /// Reports whether all bits are zero, as in an unused entry of the GID table.
    pub fn is_unset(self) -> bool {
        self.0 == [0; 16]
    }
}

impl<T: Into<IpAddr>> From<T> for Gid {
    fn from(ip: T) -> Self {
        Gid(match ip.into() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        })
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

/// Path MTU: the number of payload bytes in every packet of a message except the last, which may have fewer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Every path MTU, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// Returns the maximum number of payload bytes per packet.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// Returns the code used by verbs and on the wire: from 1 for 256 bytes to 5 for 4096 bytes.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the MTU with the given code, 1..=5, or `None` for any other code.
    pub fn from_code(code: u8) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.code() == code)
    }

    /// Returns the MTU of exactly `bytes` bytes, or `None` if there is none.
    pub fn from_bytes(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// Returns the largest MTU whose packets, with `overhead` bytes of headers and ICRC, fit into `link_mtu`
    /// bytes.
    pub fn largest_within(link_mtu: usize, overhead: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + overhead <= link_mtu)
    }

    /// Returns the number of packets in a message of `len` bytes. An empty message takes one packet.
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 { 1 } else { len.div_ceil(self.bytes() as u32) }
    }
}

/// Receiver-not-ready timer in an RNR NAK: a 5-bit code for a time (IBA 9.7.5.2.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Times in hundredths of a millisecond, indexed by code. Code 0 stands for the longest.
    const CENTI_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Creates a timer from its code; only the low 5 bits are significant.
    pub const fn new(code: u8) -> Self {
        RnrTimer(code & 0x1f)
    }

    /// Returns the code, 0..32.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the minimum time that the requester waits.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::CENTI_MS[self.0 as usize] as u64 * 10)
    }
}

/// Local ACK timeout: a 5-bit code that stands for 4.096 µs * 2^code, or for no timeout if it is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Creates a timeout from its code; only the low 5 bits are significant.
    pub const fn new(code: u8) -> Self {
        AckTimeout(code & 0x1f)
    }

    /// Returns the code, 0..32.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time, or `None` for code 0 (no timeout).
    pub const fn duration(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_nanos(4096 << self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_converts_from_code_and_bytes_and_counts_packets() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_code(code).unwrap();
            assert_eq!(mtu.bytes(), bytes);
            assert_eq!(Mtu::from_bytes(bytes), Some(mtu));
            assert_eq!(mtu.packets(0), 1);
            assert_eq!(mtu.packets(bytes as u32), 1);
            assert_eq!(mtu.packets(bytes as u32 + 1), 2);
            assert_eq!(mtu.packets(1 << 31), (1u32 << 31) / bytes as u32);
        }
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
        assert_eq!(Mtu::largest_within(1500, 68), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::largest_within(200, 68), None);
    }

    #[test]
    fn rnr_timer_durations_match_the_specification() {
        assert_eq!(RnrTimer::new(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer::new(12).duration(), Duration::from_micros(640));
        assert_eq!(RnrTimer::new(31).duration(), Duration::from_micros(491_520));
    }

    #[test]
    fn ack_timeout_is_4096_ns_times_a_power_of_two() {
        assert_eq!(AckTimeout::new(0).duration(), None);
        assert_eq!(AckTimeout::new(14).duration(), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(AckTimeout::new(31).duration(), Some(Duration::from_nanos(4096 << 31)));
    }

    #[test]
    fn partition_keys_match_only_if_one_is_of_a_full_member() {
        assert!(PKey(0x7fff).admits(PKey::DEFAULT));
        assert!(PKey(0xffff).admits(PKey(0x7fff)));
        assert!(!PKey(0x7fff).admits(PKey(0x7fff)));
        assert!(!PKey(0x9234).admits(PKey::DEFAULT));
        assert!(!PKey(0x8000).admits(PKey(0x8000)));
    }

    #[test]
    fn gids_convert_from_and_to_both_ip_versions() {
        let v4: IpAddr = "10.0.0.1".parse().unwrap();
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(v4).ip(), v4);
        assert_eq!(Gid::from(v6).ip(), v6);
        assert_eq!(&Gid::from(v4).0[..12], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let group = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap()).is_multicast();
        assert!(["224.0.0.1", "239.255.255.255", "ff02::1", "ff15::7"].into_iter().all(group));
        assert!(!["223.0.0.1", "240.0.0.1", "fe80::1", "::e000:1"].into_iter().any(group));
    }

    #[test]
    fn memory_keys_split_into_index_and_generation() {
        let key = RKey::from_parts(0x12_3456, 0x9a);
        assert_eq!(key.0, 0x1234_569a);
        assert_eq!((key.index(), key.generation()), (0x12_3456, 0x9a));
    }
}
