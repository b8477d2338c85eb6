//! Addresses as C writes them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// The address that a program points to; `None` if it is null or of another family than IP.
///
/// # Safety
/// Null, or a whole address of the family that it says.
pub unsafe fn read(from: *const sockaddr) -> Option<SocketAddr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: every address begins with its family.
    match c_int::from(unsafe { (*from).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let v4 = unsafe { from.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let v6 = unsafe { from.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, u32::from_be(v6.sin6_flowinfo), v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// An address as C has it, and how many bytes of it count.
pub fn write(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all of it may be zeros.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: any address fits, and is aligned.
            let c = unsafe { &mut *to.cast::<sockaddr_in>() };
            c.sin_family = libc::AF_INET as sa_family_t;
            c.sin_port = v4.port().to_be();
            c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: any address fits, and is aligned.
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
    fn what_is_written_is_read() {
        for text in ["192.0.2.7:4791", "[2001:db8::1]:18515", "0.0.0.0:0", "[::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, len) = write(address);
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Some(address));
            assert_eq!(len, if address.is_ipv4() { 16 } else { 28 });
        }
        let (storage, _) = write("192.0.2.7:4791".parse().unwrap());
        // SAFETY: a whole address; as bytes.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(storage) };
        assert_eq!(bytes[2..8], [0x12, 0xb7, 192, 0, 2, 7]);
    }

    #[test]
    fn other_families_are_none() {
        let (mut storage, _) = write("192.0.2.7:4791".parse().unwrap());
        storage.ss_family = libc::AF_UNIX as sa_family_t;
        // SAFETY: as large as any address; null is allowed.
        unsafe {
            assert_eq!(read((&raw const storage).cast()), None);
            assert_eq!(read(std::ptr::null()), None);
        }
    }
}
