//! Device events: what happens to ids when their device loses an address or fails.

use super::state::{Id, IdState, State};
use super::{CmEventKind, EventParam};
use crate::transport::{AddressVector, AsyncEvent};

impl State {
    /// Handles a device's pending asynchronous events.
    pub fn process_device_events(&mut self, index: usize) {
        while let Some(event) = self.devices[index].port.context().next_event() {
            match event {
                AsyncEvent::GidChange => self.on_gid_change(index),
                AsyncEvent::DeviceFatal => self.on_device_fatal(index),
                _ => {}
            }
        }
    }

    /// Returns the ids that use a device.
    fn ids_of_device(&self, index: usize) -> Vec<u64> {
        self.ids().filter(|(_, id)| id.device == Some(index)).map(|(number, _)| number).collect()
    }

    /// Reports `AddrChange` to ids whose address the device has lost. The ids keep their state: the program
    /// decides which of them to disconnect, and the device may regain the address.
    fn on_gid_change(&mut self, index: usize) {
        let device = &mut self.devices[index];
        let now = device.context.gids();
        let before = device.cm.set_gids(now.clone());
        let own = |id: &Id| match id.to {
            Some(to) => Some(usize::from(to.sgid_index)),
            None => before
                .iter()
                .position(|gid| Some(gid.ip()) == id.local.map(|local| local.ip().to_canonical())),
        };
        for number in self.ids_of_device(index) {
            let Ok(id) = self.id_mut(number) else { continue };
            let has_lost = own(id).filter(|own| before.get(*own) != now.get(*own));
            if let (None, Some(own)) = (id.lost_gid, has_lost)
                && id.state != IdState::Ended
            {
                id.lost_gid = before.get(own).copied();
                id.report(CmEventKind::AddrChange, 0, EventParam::None);
            }
            // The address may return at another index.
            let at = id.lost_gid.and_then(|lost_gid| now.iter().position(|gid| *gid == lost_gid));
            if let Some(index) = at.and_then(|at| u8::try_from(at).ok()) {
                id.lost_gid = None;
                id.to = id.to.map(|to| AddressVector { sgid_index: index, ..to });
            }
        }
    }

    /// Handles the loss of a device: its addresses and its ids' connections no longer exist, and its ids
    /// report no events after `DeviceRemoval`.
    fn on_device_fatal(&mut self, index: usize) {
        let device = &mut self.devices[index];
        device.is_lost = true;
        device.cm.set_gids(Vec::new());
        for number in self.ids_of_device(index) {
            self.release_connection(number);
            let Ok(id) = self.id_mut(number) else { continue };
            id.end();
            id.disconnect_reported = true;
            id.handle.set_device_removed();
            id.report(CmEventKind::DeviceRemoval, 0, EventParam::None);
        }
    }
}
