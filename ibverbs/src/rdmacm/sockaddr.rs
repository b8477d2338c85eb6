//! Conversion of socket addresses from and to their C structs.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sa_family_t, sockaddr, sockaddr_storage, socklen_t};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike};
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
    // SAFETY: the pointer is not null, every socket address begins with the family, and the caller passes a
    // complete address of that family. It is copied from any alignment.
    unsafe {
        match c_int::from((*from).sa_family) {
            libc::AF_INET => SockaddrIn::from_raw(from, None).map(|v4| SocketAddrV4::from(v4).into()),
            libc::AF_INET6 => SockaddrIn6::from_raw(from, None).map(|v6| SocketAddrV6::from(v6).into()),
            AF_IB => of_ib(&from.cast::<SockaddrIb>().read_unaligned()),
            _ => None,
        }
    }
}

/// Converts an address to its C struct, and returns the struct with its length in bytes.
pub(crate) fn write(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    match address {
        SocketAddr::V4(v4) => in_storage(SockaddrIn::from(v4)),
        SocketAddr::V6(v6) => in_storage(SockaddrIn6::from(v6)),
    }
}

fn in_storage(from: impl SockaddrLike) -> (sockaddr_storage, socklen_t) {
    // SAFETY: the struct consists of integers, for which zeros are valid.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = (&raw mut storage).cast::<u8>();
    // SAFETY: `from` has that length, and `sockaddr_storage` is large enough for every address type.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to, from.len() as usize) };
    (storage, from.len())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

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
