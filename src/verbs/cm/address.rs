//! Address resolution: finds the device that has a local address, and the device from which a remote address
//! is reached.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::ports::Claim;
use super::state::{Device, Id, IdState, State};
use super::{CmEventKind, EventParam, IdError, PathRecord};
use crate::cm;
use crate::host::route::{NeighbourResolution, source_towards};
use crate::link::ClaimError;
use crate::transport::AddressVector;
use crate::wire::{AckTimeout, Gid, PKey};

/// Maximum packet lifetime on a path: 4.096 µs * 2^13 = 34 ms. The queue pairs on both sides wait slightly
/// more than twice this time for an acknowledgement, and time-wait lasts equally long, to catch late packets.
const PACKET_LIFE: AckTimeout = AckTimeout::new(13);

/// Maximum number of ports tried when binding to port 0. Each is free in this process, but another process
/// may use it on the same address.
const MAX_PORT_ATTEMPTS: usize = 1000;

/// A route to a destination: device, source GID index and destination GID.
struct Route {
    device: usize,
    sgid_index: u8,
    dgid: Gid,
}

impl State {
    pub fn bind_addr(&mut self, number: u64, addr: SocketAddr) -> Result<(), IdError> {
        self.id(number)?.require("bind_addr", &[IdState::Idle])?;
        let ip = addr.ip();
        let device = match ip.is_unspecified() {
            true => None,
            false => Some(self.device_of(ip).ok_or(IdError::NoDevice(ip))?.0),
        };
        for _ in 1..MAX_PORT_ATTEMPTS {
            match self.bind_and_claim(number, addr, device) {
                // Another process has the port, but any other one will do.
                Err(IdError::Claim { source: ClaimError::InUse { .. }, .. }) if addr.port() == 0 => {}
                other => return other,
            }
        }
        self.bind_and_claim(number, addr, device)
    }

    fn bind_and_claim(
        &mut self,
        number: u64,
        addr: SocketAddr,
        device: Option<usize>,
    ) -> Result<(), IdError> {
        self.bind(number, addr, device)?;
        self.claim(number).inspect_err(|_| self.unbind(number))
    }

    fn bind(&mut self, number: u64, addr: SocketAddr, device: Option<usize>) -> Result<(), IdError> {
        let id = self.id_mut(number)?;
        // A bind to an IPv4 address never includes IPv6.
        let claim = Claim { id: number, reuse: id.reuse_addr, af_only: id.af_only || addr.is_ipv4() };
        let space = id.space;
        let port = self.ports.bind(space, addr, claim)?;
        let id = self.id_mut(number)?;
        let mut local = addr;
        local.set_port(port);
        (id.local, id.owns_port, id.device, id.state) = (Some(local), true, device, IdState::Bound);
        Ok(())
    }

    fn unbind(&mut self, number: u64) {
        let Ok(id) = self.id_mut(number) else { return };
        let (space, local) = (id.space, id.local.take());
        (id.owns_port, id.device, id.state) = (false, None, IdState::Idle);
        id.claims.clear();
        if let Some(local) = local {
            self.ports.release(space, local.port(), number);
        }
    }

    /// Returns the device that has the address `ip`, and the index of its GID. If no device has a loopback
    /// address, the first device stands in for the loopback device, because packets to its own address stay
    /// within the machine.
    fn device_of(&self, ip: IpAddr) -> Option<(usize, u8)> {
        self.device_with(ip).or_else(|| self.loopback_device(ip))
    }

    /// Returns the device whose GID table has the address `ip`, and the index of the GID.
    fn device_with(&self, ip: IpAddr) -> Option<(usize, u8)> {
        self.devices.iter().enumerate().find_map(|(i, device)| Some((i, device.gid_index(ip)?)))
    }

    fn loopback_device(&self, ip: IpAddr) -> Option<(usize, u8)> {
        let mut addresses = self.devices.iter().flat_map(Device::addresses);
        if !ip.is_loopback() || addresses.any(|own| own.is_loopback()) {
            return None;
        }
        let index = |device: &Device| device.context.gid_towards(ip.into()).or(device.context.main_gid());
        self.present_devices().find_map(|(i, device)| Some((i, index(device)?)))
    }

    /// Iterates over the devices that have not failed, with their indices.
    fn present_devices(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.devices.iter().enumerate().filter(|(_, device)| !device.is_lost)
    }

    /// Finds the device and the path to `dst`. With `resolves_neighbour`, also starts the neighbour
    /// resolution of the next hop on the system's network, and returns it if it is not complete; the
    /// caller passes its result to [`end_resolution`](Self::end_resolution).
    pub fn resolve_addr(
        &mut self,
        number: u64,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        resolves_neighbour: bool,
    ) -> Result<Option<NeighbourResolution>, IdError> {
        let id = self.id(number)?;
        id.require("resolve_addr", &[IdState::Idle, IdState::Bound])?;
        let bound = id.local.map(|local| local.ip());
        let src_ip = src.map(|src| src.ip()).or(bound).filter(|ip| !ip.is_unspecified());
        if let Some(src) = src_ip
            && src.to_canonical().is_ipv4() != dst.ip().to_canonical().is_ipv4()
        {
            return Err(IdError::Family { src, dst: dst.ip() });
        }
        let route = match src_ip {
            Some(ip) => {
                let (device, sgid_index) = self.device_of(ip).ok_or(IdError::NoDevice(ip))?;
                let dgid = self.destination_gid(device, sgid_index, dst.ip());
                Some(Route { device, sgid_index, dgid })
            }
            None => self.route_to(dst)?,
        };
        let Some(Route { device, sgid_index, dgid }) = route else {
            self.id(number)?.report(CmEventKind::AddrError, -libc::ENODEV, EventParam::None);
            return Ok(None);
        };
        let source = src_ip.unwrap_or_else(|| self.devices[device].gid(sgid_index).ip());
        let is_remote = resolves_neighbour
            && self.devices[device].has_system_routes()
            && self.device_of(dst.ip()).is_none()
            && !dst.ip().is_unspecified()
            && !source.is_loopback();
        let resolution = match is_remote {
            true => NeighbourResolution::start(source, dst)
                .map_err(|source| IdError::NoRoute { dst: dst.ip(), source })?,
            false => None,
        };
        if self.id(number)?.state == IdState::Idle {
            let port = src.map_or(0, |src| src.port());
            self.bind(number, SocketAddr::new(source, port), Some(device))?;
        }
        let psn = self.devices[device].random_psn();
        let id = self.id_mut(number)?;
        if let Some(local) = &mut id.local {
            local.set_ip(source);
        }
        (id.device, id.peer, id.state) = (Some(device), Some(dst), IdState::AddrResolved);
        id.lost_gid = None;
        id.path_override = None;
        if dst.ip().is_unspecified() {
            id.peer = Some(SocketAddr::new(source, dst.port()));
        }
        id.to = Some(AddressVector { sgid_index, ..AddressVector::to(dgid) });
        id.psn = psn;
        match resolution {
            Some(_) => id.state = IdState::Resolving,
            None => id.report(CmEventKind::AddrResolved, 0, EventParam::None),
        }
        Ok(resolution)
    }

    /// Ends a neighbour resolution with its result.
    pub fn end_resolution(&mut self, number: u64, result: &io::Result<()>) -> Result<(), IdError> {
        let id = self.id_mut(number)?;
        if id.state != IdState::Resolving {
            return Ok(());
        }
        let (state, kind, status) = match result {
            Ok(()) => (IdState::AddrResolved, CmEventKind::AddrResolved, 0),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
                (IdState::Bound, CmEventKind::AddrError, -errno)
            }
        };
        id.state = state;
        id.report(kind, status, EventParam::None);
        Ok(())
    }

    /// Returns the GID to which a device sends packets for the address `dst`: the device's own GID if `dst`
    /// is unspecified, or if `dst` is a loopback address and the device's own address is not.
    fn destination_gid(&self, device: usize, sgid_index: u8, dst: IpAddr) -> Gid {
        let own = self.devices[device].gid(sgid_index);
        match dst.is_unspecified() || dst.is_loopback() && !own.ip().is_loopback() {
            true => own,
            false => dst.to_canonical().into(),
        }
    }

    /// Returns the route to `dst`; `None` if no device has one. The source is the device that has `dst`
    /// itself; otherwise the address that the system's routes select or, if no device has that address,
    /// the GID most similar to `dst` of a device that does not send by those routes, or of any if `dst`
    /// is an address of this host.
    ///
    /// # Errors
    /// [`IdError::NoRoute`] if all devices send by the system's routes, and none leads to `dst`.
    fn route_to(&self, dst: SocketAddr) -> Result<Option<Route>, IdError> {
        let ip = dst.ip().to_canonical();
        let routed = source_towards(dst);
        // Packets to this host need no route.
        let is_local = ip.is_loopback() || routed.as_ref().is_ok_and(|source| *source == ip);
        let any = || {
            let towards = |device: &Device| match ip.is_unspecified() {
                true => device.context.main_gid(),
                false if device.has_system_routes() && !is_local => None,
                false => device.context.gid_towards(ip.into()),
            };
            self.present_devices().find_map(|(i, device)| Some((i, towards(device)?)))
        };
        let found = self.device_of(ip).or_else(|| self.device_with(*routed.as_ref().ok()?)).or_else(any);
        match (found, routed) {
            (Some((device, sgid_index)), _) => {
                Ok(Some(Route { device, sgid_index, dgid: self.destination_gid(device, sgid_index, ip) }))
            }
            (None, Err(source)) => Err(IdError::NoRoute { dst: ip, source }),
            (None, Ok(_)) => Ok(None),
        }
    }

    pub fn resolve_route(&mut self, number: u64) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("resolve_route", &[IdState::AddrResolved])?;
        if id.lost_gid.is_some() {
            id.report(CmEventKind::RouteError, -libc::ENETUNREACH, EventParam::None);
            return Ok(());
        }
        let id = self.id_mut(number)?;
        id.state = IdState::RouteResolved;
        id.report(CmEventKind::RouteResolved, 0, EventParam::None);
        Ok(())
    }

    /// Sets an id's path, if the id's device has the path's source address.
    pub fn set_path(&mut self, number: u64, path: &PathRecord) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("set_path", &[IdState::AddrResolved])?;
        let device = &self.devices[id.device.ok_or(IdError::Ended)?];
        let to = device.address_vector(path)?;
        let id = self.id_mut(number)?;
        id.to = Some(to);
        id.tos = path.traffic_class;
        id.path_override = Some((path.mtu, AckTimeout::new(path.packet_life_time)));
        self.resolve_route(number)
    }

    /// Returns the path of an id; `None` if its peer is not known.
    pub fn path(&self, id: &Id) -> Option<cm::Path> {
        let (device, to) = (&self.devices[id.device?], id.to?);
        let av = AddressVector { traffic_class: id.tos, ..to };
        let (mtu, packet_life) = id.path_override.unwrap_or((device.context.0.mtu, PACKET_LIFE));
        Some(cm::Path { av, mtu, packet_life, pkey: device.pkey() })
    }

    /// Returns the path of an id as a path record; `None` if its peer is not known.
    pub fn path_record(&self, id: &Id) -> Option<PathRecord> {
        let path = self.path(id)?;
        Some(PathRecord {
            sgid: self.devices[id.device?].gid(path.av.sgid_index),
            dgid: path.av.dgid,
            sgid_index: path.av.sgid_index,
            pkey: path.pkey,
            mtu: path.mtu,
            traffic_class: path.av.traffic_class,
            hop_limit: path.av.hop_limit,
            flow_label: path.av.flow_label,
            packet_life_time: path.packet_life.code(),
        })
    }
}

impl Device {
    /// Reports whether the routing table of the system applies to what the device sends: its link is a
    /// socket, and therefore has one source port.
    fn has_system_routes(&self) -> bool {
        self.context.0.info.src_port.is_some()
    }

    fn pkey(&self) -> PKey {
        self.context.query_pkey(0).unwrap_or_default()
    }

    /// Validates a path, and converts it to an address vector for this device.
    fn address_vector(&self, path: &PathRecord) -> Result<AddressVector, IdError> {
        let [src, dst] = [path.sgid, path.dgid].map(Gid::ip);
        let sgid_index = self.gid_index(src).ok_or(IdError::NoDevice(src))?;
        if dst.is_unspecified() || dst.is_multicast() {
            return Err(IdError::NoHost(dst));
        }
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(IdError::Family { src, dst });
        }
        let max = self.context.0.mtu.bytes() as u64;
        let bounds = [
            ("path MTU", path.mtu.bytes() as u64, max),
            ("flow label", path.flow_label.into(), (1 << 20) - 1),
            ("packet life time", path.packet_life_time.into(), 31),
        ];
        if let Some(&(name, value, _)) = bounds.iter().find(|(_, value, max)| value > max) {
            return Err(IdError::Value { name, value });
        }
        if path.pkey != self.pkey() {
            return Err(IdError::Value { name: "partition key", value: path.pkey.0.into() });
        }
        let &PathRecord { dgid, hop_limit, traffic_class, flow_label, .. } = path;
        Ok(AddressVector { dgid, sgid_index, hop_limit, traffic_class, flow_label })
    }
}
