//! Routes of a link's packets: through a ring or through the UDP socket, by destination.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// Destination of packets: an address and a QPN partition.
pub type Destination = (IpAddr, u8);

/// How packets reach a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Through the UDP socket. `is_final` is false if no process listened at the destination.
    Socket { is_final: bool },
    /// Through the ring of the connection with this index.
    Ring(usize),
    /// Not at all: a ring is required, and there is none.
    Nowhere,
}

/// Maximum number of destinations that are remembered.
const MAX_ROUTES: usize = 4096;

/// The routes, and the addresses of which the paths have changed.
#[derive(Debug, Default)]
pub struct Routes {
    /// Route to each destination; `None` if there is none, because the process that read the ring has ended.
    by_destination: HashMap<Destination, Option<Route>>,
    /// The destination looked up last, with its route.
    last: Option<(Destination, Route)>,
    /// Addresses whose paths have changed since [`next_changed`](Self::next_changed) returned them.
    changed: BTreeSet<IpAddr>,
}

impl Routes {
    /// Returns the route to a destination, if it is known.
    #[inline]
    pub fn get(&mut self, to: Destination) -> Option<Route> {
        match self.last {
            Some((last, route)) if last == to => Some(route),
            _ => {
                let route = (*self.by_destination.get(&to)?)?;
                self.last = Some((to, route));
                Some(route)
            }
        }
    }

    /// Reports whether there is no room for further destinations.
    pub fn is_full(&self) -> bool {
        self.by_destination.len() >= MAX_ROUTES
    }

    /// Sets the route to a destination. That of packets that go nowhere is not remembered: the next packet
    /// tries again.
    pub fn set(&mut self, to: Destination, route: Route) {
        self.forget(to);
        if route != Route::Nowhere {
            self.by_destination.insert(to, Some(route));
        }
    }

    /// Forgets the route to a process that has ended. Until a process listens at the destination again, each
    /// packet looks for one.
    pub fn end(&mut self, to: Destination) {
        self.forget(to);
        self.by_destination.insert(to, None);
    }

    /// Reports whether the last process at a destination without a route has ended.
    pub fn has_ended(&self, to: Destination) -> bool {
        self.by_destination.get(&to) == Some(&None)
    }

    /// Forgets the route to a destination: the next packet decides again.
    pub fn forget(&mut self, to: Destination) {
        self.by_destination.remove(&to);
        self.last = None;
        self.changed.insert(to.0);
    }

    /// Returns the number of rings and of sockets among the routes to an address.
    pub fn count(&self, address: IpAddr) -> (usize, usize) {
        let routes = || self.by_destination.iter().filter(|(to, route)| to.0 == address && route.is_some());
        let rings = routes().filter(|(_, route)| matches!(route, Some(Route::Ring(_)))).count();
        (rings, routes().count() - rings)
    }

    /// Records that a ring from an address has been opened or closed. Has no effect if there is no route to
    /// the address.
    pub fn note_reader_change(&mut self, address: IpAddr) {
        if self.count(address) != (0, 0) {
            self.changed.insert(address);
        }
    }

    /// Returns the next address whose paths have changed.
    pub fn next_changed(&mut self) -> Option<IpAddr> {
        self.changed.pop_first()
    }
}
