//! Conversion of socket addresses from and to their C structs.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use urxe::verbs::{Gid, ServiceId};

/// Address family of `sockaddr_ib`, which has a GID instead of an IP address, and a service ID instead of a
/// port.
pub(crate) const AF_IB: c_int = 27;

/// `sockaddr_ib` from `<infiniband/ib.h>`. All fields but the family are in network byte order.
#[repr(C)]
struct SockaddrIb {
    family: sa_family_t,
    pkey: u16,
    flow_info: u32,
    gid: [u8; 16],
    service: u64,
    service_mask: u64,
    scope_id: u64,
}

/// Returns the IP address encoded in the RoCE GID, with the port from the service ID. Returns `None` if the
/// service ID is neither in an IP port space nor a bare port number.
fn of_ib(ib: &SockaddrIb) -> Option<SocketAddr> {
    let service = u64::from_be(ib.service) & u64::from_be(ib.service_mask);
    let port = ServiceId(service).ip_port().map(|(_, port)| port);
    let port = port.or_else(|| u16::try_from(service).ok())?;
    Some(SocketAddr::new(Gid(ib.gid).ip(), port))
}

/// Reads the socket address at a pointer. Returns `None` for a null pointer and for a family other than IPv4,
/// IPv6 and InfiniBand. An InfiniBand address is converted to the IP address that its GID encodes; there is
/// no reverse conversion.
///
/// # Safety
/// `from` is null, or points to a complete address of the family that it names.
pub(crate) unsafe fn read(from: *const sockaddr) -> Option<SocketAddr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the pointer is not null, and every socket address begins with the family.
    match c_int::from(unsafe { (*from).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family is `AF_INET`, so the caller passes a complete `sockaddr_in`; it is copied
            // from any alignment.
            let v4 = unsafe { from.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family is `AF_INET6`, so the caller passes a complete `sockaddr_in6`; it is copied
            // from any alignment.
            let v6 = unsafe { from.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, u32::from_be(v6.sin6_flowinfo), v6.sin6_scope_id).into())
        }
        AF_IB => {
            // SAFETY: the family is `AF_IB`, so the caller passes a complete `sockaddr_ib`; it is copied from
            // any alignment.
            of_ib(&unsafe { from.cast::<SockaddrIb>().read_unaligned() })
        }
        _ => None,
    }
}

/// Converts an address to its C struct, and returns the struct with its length in bytes.
pub(crate) fn write(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: the struct consists of integers, for which zeros are valid.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: `sockaddr_storage` is large enough and aligned for every address type, consists of
            // integers, and is a local that only this reference accesses.
            let c = unsafe { &mut *to.cast::<sockaddr_in>() };
            c.sin_family = libc::AF_INET as sa_family_t;
            c.sin_port = v4.port().to_be();
            c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: `sockaddr_storage` is large enough and aligned for every address type, consists of
            // integers, and is a local that only this reference accesses.
            let c = unsafe { &mut *to.cast::<sockaddr_in6>() };
            c.sin6_family = libc::AF_INET6 as sa_family_t;
            c.sin6_port = v6.port().to_be();
            c.sin6_flowinfo = v6.flowinfo().to_be();
            c.sin6_addr.s6_addr = v6.ip().octets();
            c.sin6_scope_id = v6.scope_id();
            size_of::<sockaddr_in6>()
        }
    };
    (storage, len as socklen_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_address_is_read_back_unchanged() {
        for text in ["192.0.2.7:4791", "[2001:db8::1]:18515", "0.0.0.0:0", "[::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, len) = write(address);
            // SAFETY: `write` has filled a complete address of the family that it names.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Some(address));
            assert_eq!(len, if address.is_ipv4() { 16 } else { 28 });
        }
        let (storage, _) = write("192.0.2.7:4791".parse().unwrap());
        // SAFETY: the struct has 128 bytes without padding, which `write` has initialised.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(storage) };
        assert_eq!(bytes[2..8], [0x12, 0xb7, 192, 0, 2, 7]);
    }

    #[test]
    fn sockaddr_ib_is_read_as_the_ip_address_of_its_gid() {
        let read = |gid: [u8; 16], service: u64, service_mask: u64| {
            let [service, service_mask] = [service, service_mask].map(u64::to_be);
            let family = AF_IB as sa_family_t;
            let ib = SockaddrIb { family, pkey: 0, flow_info: 0, gid, service, service_mask, scope_id: 0 };
            assert_eq!(size_of_val(&ib), 48);
            // SAFETY: `ib` is a complete address of the family that it names.
            unsafe { read((&raw const ib).cast()) }
        };
        let at = |text: &str| Some(text.parse().unwrap());
        let v4 = Gid::from("192.0.2.7".parse::<std::net::IpAddr>().unwrap()).0;
        assert_eq!(read(v4, 0x0106_1234, u64::MAX), at("192.0.2.7:4660"));
        let v6 = "2001:db8::7".parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(read(v6, 0x0111_0007, u64::MAX), at("[2001:db8::7]:7"));
        assert_eq!(read([0; 16], 7, 0xffff), at("[::]:7"));
        assert_eq!(read(v6, u64::MAX, 0), at("[2001:db8::7]:0"), "any");
        assert_eq!(read(v6, 0x1000_0000_0106_1234, u64::MAX), None, "a service of another kind");
    }

    #[test]
    fn unknown_families_and_null_are_read_as_none() {
        let (mut storage, _) = write("192.0.2.7:4791".parse().unwrap());
        storage.ss_family = libc::AF_UNIX as sa_family_t;
        // SAFETY: `storage` is large enough for any address, and null is allowed.
        unsafe {
            assert_eq!(read((&raw const storage).cast()), None);
            assert_eq!(read(std::ptr::null()), None);
        }
    }
}
