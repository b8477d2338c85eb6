//! What becomes of ids when an address of their device goes, or the device does.

use super::state::{Id, Phase, State};
use super::{CmEventKind, EventParam};
use crate::transport::{AddressVector, AsyncEvent};

impl State {
    /// Acts on what a device has told of itself.
    pub fn heed_device(&mut self, index: usize) {
        while let Some(event) = self.devices[index].next_event() {
            match event {
                AsyncEvent::GidChange => self.on_addresses(index),
                AsyncEvent::DeviceFatal => self.on_loss(index),
                _ => {}
            }
        }
    }

    /// The ids of a device.
    fn ids_on(&self, index: usize) -> Vec<u64> {
        self.ids().filter(|(_, id)| id.device == Some(index)).map(|(number, _)| number).collect()
    }

    /// Ids whose address is no longer the device's are told. They stay as they are: what of theirs can still be ended is for
    /// their program to end, and the address may come back.
    fn on_addresses(&mut self, index: usize) {
        let device = &mut self.devices[index];
        let now = device.context.gids();
        let before = std::mem::replace(&mut device.gids, now.clone());
        device.cm.set_gids(now.clone());
        let own = |id: &Id| match id.to {
            Some(to) => Some(usize::from(to.sgid_index)),
            None => before
                .iter()
                .position(|gid| Some(gid.ip()) == id.local.map(|local| local.ip().to_canonical())),
        };
        for number in self.ids_on(index) {
            let Ok(id) = self.id_mut(number) else { continue };
            let has_lost = own(id).filter(|own| before.get(*own) != now.get(*own));
            if let (None, Some(own)) = (id.lost, has_lost)
                && id.phase != Phase::Ended
            {
                id.lost = before.get(own).copied();
                id.report(CmEventKind::AddrChange, 0, EventParam::None);
            }
            // It may come back to another place.
            let at = id.lost.and_then(|lost| now.iter().position(|gid| *gid == lost));
            if let Some(index) = at.and_then(|at| u8::try_from(at).ok()) {
                id.lost = None;
                id.to = id.to.map(|to| AddressVector { sgid_index: index, ..to });
            }
        }
    }

    /// The device is gone: so are its addresses, and the connections of its ids, of which nothing more is told.
    fn on_loss(&mut self, index: usize) {
        let device = &mut self.devices[index];
        device.is_lost = true;
        device.gids.clear();
        device.cm.set_gids(Vec::new());
        for number in self.ids_on(index) {
            self.forget_connection(number);
            let Ok(id) = self.id_mut(number) else { continue };
            id.end();
            id.told_of_end = true;
            id.report(CmEventKind::DeviceRemoval, 0, EventParam::None);
        }
    }
}
