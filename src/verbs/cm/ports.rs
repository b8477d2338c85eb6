//! Port allocation within the port spaces: which id is bound to which address and port.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::{IdError, PortSpace};

/// Range from which ports are allocated when binding to port 0 (dynamic ports of RFC 6335).
const EPHEMERAL: RangeInclusive<u16> = 49152..=65535;

/// A request to bind a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// Number of the id.
    pub id: u64,
    /// Whether the port may be shared with other ids that also permit it.
    pub reuse: bool,
    /// Whether a bind to :: excludes 0.0.0.0.
    pub af_only: bool,
}

#[derive(Debug)]
struct Binding {
    claim: Claim,
    ip: IpAddr,
}

impl Binding {
    /// Reports whether the binding's address and `ip` overlap, so that they conflict on the same port.
    fn overlaps(&self, claim: &Claim, ip: IpAddr) -> bool {
        if self.claim.af_only && claim.af_only && self.ip.is_ipv4() != ip.is_ipv4() {
            return false;
        }
        self.ip.is_unspecified() || ip.is_unspecified() || self.ip == ip
    }

    /// Returns the error for a conflict with this binding. As in the kernel's `rdma_cm`, a conflict with the
    /// wildcard address has its own error.
    fn conflict(&self, addr: SocketAddr) -> IdError {
        match self.ip.is_unspecified() || addr.ip().to_canonical().is_unspecified() {
            true => IdError::PortInUseByWildcard(addr),
            false => IdError::PortInUse(addr),
        }
    }
}

/// The bound ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    bindings: HashMap<(PortSpace, u16), Vec<Binding>>,
    /// Position of the next port to allocate. It advances with every allocation, so that ports are not
    /// reused soon. Processes should start at different ports, because they may use the same address.
    pub next: u16,
}

impl Ports {
    /// Binds an id, and returns its port, which is allocated from the ephemeral range if `addr` has port 0.
    pub fn bind(&mut self, space: PortSpace, addr: SocketAddr, claim: Claim) -> Result<u16, IdError> {
        if addr.port() == 0 {
            return self.bind_any(space, addr.ip(), claim);
        }
        let ip = addr.ip().to_canonical();
        let bindings = self.bindings.entry((space, addr.port())).or_default();
        let shares = |binding: &Binding| binding.claim.reuse && claim.reuse;
        if let Some(binding) =
            bindings.iter().find(|binding| !shares(binding) && binding.overlaps(&claim, ip))
        {
            return Err(binding.conflict(addr));
        }
        bindings.push(Binding { claim, ip });
        Ok(addr.port())
    }

    fn bind_any(&mut self, space: PortSpace, ip: IpAddr, claim: Claim) -> Result<u16, IdError> {
        for _ in EPHEMERAL {
            let port = EPHEMERAL.start() + self.next % EPHEMERAL.len() as u16;
            self.next = self.next.wrapping_add(1);
            // An allocated port is never shared.
            if self.bindings.get(&(space, port)).is_none_or(Vec::is_empty) {
                return self.bind(space, SocketAddr::new(ip, port), claim);
            }
        }
        Err(IdError::NoPort(ip))
    }

    /// Fails if a bound id must not listen: no other id may be bound to a listener's address, even if the
    /// port is shared.
    pub fn check_listen(&self, space: PortSpace, addr: SocketAddr, claim: &Claim) -> Result<(), IdError> {
        let bindings = self.bindings.get(&(space, addr.port())).map_or(&[][..], Vec::as_slice);
        let mut others = bindings.iter().filter(|binding| binding.claim.id != claim.id);
        match others.find(|binding| binding.overlaps(claim, addr.ip().to_canonical())) {
            Some(binding) => Err(binding.conflict(addr)),
            None => Ok(()),
        }
    }

    /// Releases an id's port.
    pub fn release(&mut self, space: PortSpace, port: u16, id: u64) {
        if let Some(bindings) = self.bindings.get_mut(&(space, port)) {
            bindings.retain(|binding| binding.claim.id != id);
            if bindings.is_empty() {
                self.bindings.remove(&(space, port));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: u64) -> Claim {
        Claim { id, reuse: false, af_only: false }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn port_accepts_only_one_id_per_address() {
        let mut ports = Ports::default();
        let bind = |ports: &mut Ports, addr, c| ports.bind(PortSpace::Tcp, at(addr), c).map_err(drop);
        assert_eq!(bind(&mut ports, "10.0.0.1:7", claim(1)), Ok(7));
        assert_eq!(bind(&mut ports, "10.0.0.1:7", claim(2)), Err(()));
        assert_eq!(bind(&mut ports, "[::ffff:10.0.0.1]:7", claim(2)), Err(()));
        assert_eq!(bind(&mut ports, "0.0.0.0:7", claim(2)), Err(()), "the wildcard address overlaps");
        assert_eq!(bind(&mut ports, "10.0.0.2:7", claim(2)), Ok(7));
        assert_eq!(ports.bind(PortSpace::Udp, at("10.0.0.1:7"), claim(3)).unwrap(), 7);
        ports.release(PortSpace::Tcp, 7, 1);
        assert_eq!(bind(&mut ports, "10.0.0.1:7", claim(4)), Ok(7));
    }

    #[test]
    fn ip_versions_do_not_conflict_if_both_ids_are_af_only() {
        let mut ports = Ports::default();
        let only = |id| Claim { af_only: true, ..claim(id) };
        ports.bind(PortSpace::Tcp, at("0.0.0.0:7"), only(1)).unwrap();
        assert!(ports.bind(PortSpace::Tcp, at("[::]:7"), claim(2)).is_err());
        ports.bind(PortSpace::Tcp, at("[::]:7"), only(2)).unwrap();
    }

    #[test]
    fn id_on_shared_port_cannot_listen_if_another_id_has_its_address() {
        let mut ports = Ports::default();
        let shares = |id| Claim { reuse: true, ..claim(id) };
        ports.bind(PortSpace::Tcp, at("10.0.0.1:7"), shares(1)).unwrap();
        assert!(ports.check_listen(PortSpace::Tcp, at("10.0.0.1:7"), &shares(1)).is_ok());
        ports.bind(PortSpace::Tcp, at("10.0.0.1:7"), shares(2)).unwrap();
        assert!(ports.bind(PortSpace::Tcp, at("10.0.0.1:7"), claim(3)).is_err());
        assert!(ports.check_listen(PortSpace::Tcp, at("10.0.0.1:7"), &shares(1)).is_err());
        ports.release(PortSpace::Tcp, 7, 2);
        assert!(ports.check_listen(PortSpace::Tcp, at("10.0.0.1:7"), &shares(1)).is_ok());
    }

    #[test]
    fn bind_to_port_0_uses_a_free_ephemeral_port_until_none_is_left() {
        let mut ports = Ports::default();
        let (mut seen, any) = (std::collections::HashSet::new(), at("10.0.0.1:0"));
        for id in 0..EPHEMERAL.len() as u64 {
            let port = ports.bind(PortSpace::Tcp, any, claim(id)).unwrap();
            assert!(EPHEMERAL.contains(&port) && seen.insert(port));
        }
        assert!(matches!(ports.bind(PortSpace::Tcp, any, claim(99)), Err(IdError::NoPort(_))));
        ports.release(PortSpace::Tcp, 50_000, 50_000 - 49_152);
        assert_eq!(ports.bind(PortSpace::Tcp, any, claim(100)).unwrap(), 50_000);
    }
}
