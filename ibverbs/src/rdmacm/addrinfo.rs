//! `rdma_getaddrinfo`: resolves host and service names to addresses, and chooses the queue pair type and port
//! space.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

use libc::{addrinfo, sockaddr, sockaddr_storage, socklen_t};

use crate::abi::rdma_addrinfo;

entry_points! {
    "RDMACM_1.0" minus_one rdma_getaddrinfo(node: *const c_char, service: *const c_char,
        hints: *const rdma_addrinfo, result: *mut *mut rdma_addrinfo) -> c_int = getaddrinfo;
}

export! {
    "RDMACM_1.0": rdma_freeaddrinfo = freeaddrinfo;
}

/// Flags of `ai_flags`.
pub(super) const PASSIVE: c_int = 1;
const NUMERIC_HOST: c_int = 2;
const FAMILY: c_int = 8;
/// Resolution by the InfiniBand subnet administrator.
pub(super) const SA: c_int = 16;
/// Resolution by the system's `getaddrinfo`, the default.
pub(super) const DNS: c_int = 32;

pub(super) const PS_IPOIB: c_int = 0x0002;
pub(super) const PS_TCP: c_int = 0x0106;
pub(super) const PS_UDP: c_int = 0x0111;

/// `enum ibv_qp_type`.
const RC: c_int = 2;
const UD: c_int = 4;

/// A list element: the C struct, followed by the addresses that it points to.
#[repr(C)]
struct Entry {
    c: rdma_addrinfo,
    src: sockaddr_storage,
    dst: sockaddr_storage,
}

// Programs hold a pointer to the C struct, which `freeaddrinfo` converts back to one to the element.
const _: () = assert!(offset_of!(Entry, c) == 0);

/// Returns the queue pair type and the port space; if `hints` give only one of them, the other is derived
/// from it.
fn qp_type_and_ps(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let (qp_type, space) = hints.map_or((0, 0), |h| (h.ai_qp_type, h.ai_port_space));
    let datagrams = match qp_type {
        0 => matches!(space, PS_UDP | PS_IPOIB),
        given => given == UD,
    };
    let or = |given: c_int, other: c_int| if given == 0 { other } else { given };
    match datagrams {
        true => (or(qp_type, UD), or(space, PS_UDP)),
        false => (or(qp_type, RC), or(space, PS_TCP)),
    }
}

/// Copies an address. Returns `None` if the pointer is null or the address is too long.
///
/// # Safety
/// `from` has `len` readable bytes, or is null.
unsafe fn copy_address(from: *const sockaddr, len: socklen_t) -> Option<(sockaddr_storage, socklen_t)> {
    let count = len as usize;
    if from.is_null() || count == 0 || count > size_of::<sockaddr_storage>() {
        return None;
    }
    // SAFETY: the struct consists of integers, for which zeros are valid.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: `from` is not null, so the caller guarantees `count` readable bytes, and the local `storage`
    // is at least as long.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut storage).cast(), count) };
    Some((storage, len))
}

type Address = Option<(sockaddr_storage, socklen_t)>;

/// A list returned by the system's `getaddrinfo`, freed on drop.
struct SystemList(*mut addrinfo);

impl Drop for SystemList {
    fn drop(&mut self) {
        // SAFETY: the list comes from a successful `getaddrinfo`, and is freed here only.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// A name to resolve, with copies of what the hints point to.
pub(super) struct Query {
    node: Option<CString>,
    service: Option<CString>,
    /// Flags of the hints.
    pub flags: c_int,
    /// Queue pair type and port space.
    kind: (c_int, c_int),
    /// The address family of the hints, or `AF_UNSPEC` if they do not select one.
    family: c_int,
    src: Address,
    dst: Address,
}

/// Addresses found for a [`Query`].
#[derive(Clone, Copy)]
pub(super) struct Found {
    flags: c_int,
    kind: (c_int, c_int),
    src: Address,
    dst: Address,
}

impl Query {
    /// Copies the arguments of `rdma_getaddrinfo`.
    ///
    /// # Safety
    /// `node` and `service` are zero-terminated strings or null; `hints` points to a readable struct or is
    /// null, and each address in it has the length given next to it, or is null.
    ///
    /// # Errors
    /// `EINVAL` if there is nothing to resolve and the hints have no address.
    pub(super) unsafe fn new(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> Result<Query, c_int> {
        // SAFETY: the caller passes zero-terminated strings or null.
        let copy =
            |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned());
        // SAFETY: the caller passes a readable struct or null.
        let hints = unsafe { hints.as_ref() };
        let flags = hints.map_or(0, |h| h.ai_flags);
        // SAFETY: each address in the hints has the length given next to it, or is null.
        let [src, dst] = unsafe {
            [
                hints.and_then(|h| copy_address(h.ai_src_addr, h.ai_src_len)),
                hints.and_then(|h| copy_address(h.ai_dst_addr, h.ai_dst_len)),
            ]
        };
        let (node, service) = (copy(node), copy(service));
        if node.is_none() && service.is_none() && src.is_none() && dst.is_none() {
            return Err(libc::EINVAL);
        }
        let family = hints.filter(|_| flags & FAMILY != 0).map_or(libc::AF_UNSPEC, |h| h.ai_family);
        Ok(Query { node, service, flags, kind: qp_type_and_ps(hints), family, src, dst })
    }

    /// Resolves the name. May wait for name servers.
    ///
    /// # Errors
    /// The code of the system's `getaddrinfo`.
    pub(super) fn resolve(&self) -> Result<Found, c_int> {
        let Query { flags, kind, src, dst, .. } = *self;
        if self.node.is_none() && self.service.is_none() {
            return Ok(Found { flags, kind, src, dst });
        }
        let passive = flags & PASSIVE != 0;
        // SAFETY: the struct consists of integers and raw pointers, for which zeros are valid.
        let mut system_hints: addrinfo = unsafe { std::mem::zeroed() };
        system_hints.ai_flags = if passive { libc::AI_PASSIVE } else { 0 };
        system_hints.ai_flags |= if flags & NUMERIC_HOST != 0 { libc::AI_NUMERICHOST } else { 0 };
        system_hints.ai_family = self.family;
        // Chooses between the TCP and the UDP port of a service name, and makes the system list each address
        // once.
        system_hints.ai_socktype = if kind.0 == UD { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        let mut list = null_mut();
        let text = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        // SAFETY: `node` and `service` are zero-terminated strings or null; `system_hints` and `list` are
        // locals.
        let code =
            unsafe { libc::getaddrinfo(text(&self.node), text(&self.service), &system_hints, &mut list) };
        if code != 0 {
            return Err(code);
        }
        let list = SystemList(list);
        // Only the first address, like librdmacm: programs could follow `ai_next`, but few expect a second
        // element.
        // SAFETY: a successful call returns at least one element, with a complete address of `ai_addrlen`
        // bytes.
        let address = unsafe { copy_address((*list.0).ai_addr, (*list.0).ai_addrlen) };
        let (src, dst) = if passive { (address, dst) } else { (src, address) };
        Ok(Found { flags, kind, src, dst })
    }
}

impl Found {
    /// Allocates a list element for the program, which `rdma_freeaddrinfo` frees.
    pub(super) fn to_c(self) -> *mut rdma_addrinfo {
        // SAFETY: `Entry` consists of integers and raw pointers, for which zeros are valid.
        let mut entry: Box<Entry> = Box::new(unsafe { std::mem::zeroed() });
        if let Some((address, len)) = self.src {
            (entry.src, entry.c.ai_src_len) = (address, len);
            entry.c.ai_src_addr = (&raw mut entry.src).cast();
        }
        if let Some((address, len)) = self.dst {
            (entry.dst, entry.c.ai_dst_len) = (address, len);
            entry.c.ai_dst_addr = (&raw mut entry.dst).cast();
        }
        entry.c.ai_family = self.dst.or(self.src).map_or(0, |(address, _)| address.ss_family.into());
        (entry.c.ai_flags, (entry.c.ai_qp_type, entry.c.ai_port_space)) = (self.flags, self.kind);
        Box::into_raw(entry).cast()
    }
}

/// Resolves a name (`rdma_getaddrinfo`). Returns 0, or the code with which the system's `getaddrinfo` fails.
unsafe fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> Result<c_int, c_int> {
    if result.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `rdma_getaddrinfo` requires strings and readable hints, or null.
    match unsafe { Query::new(node, service, hints) }?.resolve() {
        Ok(found) => {
            // SAFETY: `result` was checked for null, and points to a writable pointer.
            unsafe { *result = found.to_c() };
            Ok(0)
        }
        Err(code) => Ok(code),
    }
}

unsafe extern "C" fn freeaddrinfo(list: *mut rdma_addrinfo) {
    let _uncancelled = crate::cancel::disable();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `rdma_freeaddrinfo` requires a list from `rdma_getaddrinfo`, each element of which
        // `to_c` made from a box; the program does not use it any more.
        let entry = unsafe { Box::from_raw(next.cast::<Entry>()) };
        next = entry.c.ai_next;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::sockaddr;
    use super::*;

    /// Return code, queue pair type, port space, source and destination.
    type Resolved = (c_int, c_int, c_int, Option<SocketAddr>, Option<SocketAddr>);

    fn resolve(node: Option<&CStr>, service: Option<&CStr>, hints: Option<rdma_addrinfo>) -> Resolved {
        let text = |t: Option<&CStr>| t.map_or(std::ptr::null(), CStr::as_ptr);
        let hints = hints.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut list = null_mut();
        // SAFETY: strings and hints are valid or null, `list` is a local, and the returned list is read
        // before it is freed.
        unsafe {
            let code = rdma_getaddrinfo(text(node), text(service), hints, &mut list);
            if code != 0 {
                return (code, 0, 0, None, None);
            }
            let entry = *list;
            let resolved = (
                0,
                entry.ai_qp_type,
                entry.ai_port_space,
                sockaddr::read(entry.ai_src_addr),
                sockaddr::read(entry.ai_dst_addr),
            );
            freeaddrinfo(list);
            resolved
        }
    }

    fn hints(flags: c_int, qp_type: c_int, space: c_int) -> Option<rdma_addrinfo> {
        // SAFETY: the struct consists of integers and raw pointers, for which zeros are valid.
        let zeros: rdma_addrinfo = unsafe { std::mem::zeroed() };
        Some(rdma_addrinfo { ai_flags: flags, ai_qp_type: qp_type, ai_port_space: space, ..zeros })
    }

    fn at(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn active_hints_yield_a_destination_and_passive_ones_a_source() {
        let client = resolve(Some(c"192.0.2.9"), Some(c"7471"), None);
        assert_eq!(client, (0, 2, PS_TCP, None, at("192.0.2.9:7471")));
        let server = resolve(Some(c"192.0.2.9"), Some(c"7471"), hints(PASSIVE, 0, PS_UDP));
        assert_eq!(server, (0, 4, PS_UDP, at("192.0.2.9:7471"), None));
        let any = resolve(None, Some(c"7471"), hints(PASSIVE, 0, PS_TCP));
        assert!(any.3.is_some_and(|a| a.port() == 7471 && a.ip().is_unspecified()), "{any:?}");
    }

    #[test]
    fn source_address_in_hints_is_returned_unchanged() {
        let (mut local, len) = sockaddr::write("192.0.2.1:0".parse().unwrap());
        let mut system_hints = hints(0, UD as c_int, 0).unwrap();
        (system_hints.ai_src_addr, system_hints.ai_src_len) = ((&raw mut local).cast(), len);
        let resolved = resolve(Some(c"192.0.2.9"), Some(c"1"), Some(system_hints));
        assert_eq!(resolved, (0, 4, PS_UDP, at("192.0.2.1:0"), at("192.0.2.9:1")));
        assert_eq!(resolve(None, None, Some(system_hints)), (0, 4, PS_UDP, at("192.0.2.1:0"), None));
    }

    #[test]
    fn unresolvable_names_return_an_error_code() {
        assert_eq!(resolve(None, None, None).0, -1);
        assert_eq!(resolve(None, None, hints(0, 0, 0)).0, -1);
        assert_eq!(resolve(Some(c"host.invalid"), None, hints(NUMERIC_HOST, 0, 0)).0, libc::EAI_NONAME);
    }
}
