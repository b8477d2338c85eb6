//! Data structures that the Identify command returns: pages of 4096 bytes, padded with zeros.

use super::capsule::{COMMAND_LEN, RESPONSE_LEN, Status};
use super::controller::{ASYNC_EVENTS, Controller, Kind};
use super::subsystem::Subsystem;
use super::{DISCOVERY_NQN, IN_CAPSULE, MDTS, QUEUE_DEPTH, VERSION};

/// Length of a page in bytes.
pub const PAGE: usize = 4096;

/// A data structure of zeros, except for the fields written by `put`.
pub struct Page<'a>(pub &'a mut [u8]);

impl Page<'_> {
    /// Writes `bytes` at offset `at` of the page.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes text into a field of `len` bytes at offset `at`, padded with spaces.
    fn put_text(&mut self, at: usize, len: usize, text: &str) {
        let field = &mut self.0[at..at + len];
        field.fill(b' ');
        let len = text.len().min(len);
        field[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
}

/// Fills `page`, which must contain only zeros, with the requested data structure.
///
/// # Errors
/// [`Status`].
pub fn fill(
    (cns, nsid, csi): (u8, u32, u8),
    controller: &Controller,
    subsystem: &Subsystem,
    page: &mut [u8],
) -> Result<(), Status> {
    let mut page = Page(page);
    match (cns, controller.kind) {
        (0x01, _) => identify_controller(controller, subsystem, &mut page),
        (0x00, Kind::Io) => match nsid {
            1 => identify_namespace(subsystem, &mut page),
            _ => return Err(Status::InvalidNamespace),
        },
        (0x02, Kind::Io) => match nsid {
            // List of the active namespaces with a higher number than `nsid`.
            0 => page.put(0, &1_u32.to_le_bytes()),
            0xffff_fffe.. => return Err(Status::InvalidNamespace),
            _ => {}
        },
        (0x03, Kind::Io) => match nsid {
            1 => descriptors(subsystem, &mut page),
            _ => return Err(Status::InvalidNamespace),
        },
        // The I/O command set has no further attributes; zeros mean that there are no limits.
        (0x05, Kind::Io) if csi == 0 && nsid == 1 => {}
        (0x06, Kind::Io) if csi == 0 => {}
        _ => return Err(Status::InvalidField),
    }
    Ok(())
}

fn identify_controller(controller: &Controller, subsystem: &Subsystem, page: &mut Page<'_>) {
    let uuid = subsystem.uuid();
    let serial: String = uuid[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    page.put_text(4, 20, &serial);
    page.put_text(24, 40, "urxe NVMe over Fabrics target");
    page.put_text(64, 8, env!("CARGO_PKG_VERSION"));
    // The subsystem may have several controllers (CMIC); the transfer size limit (MDTS).
    page.put(76, &[1 << 1, MDTS]);
    page.put(78, &controller.id.to_le_bytes());
    page.put(80, &VERSION.to_le_bytes());
    // Any command restarts the keep alive timer (traffic based keep alive).
    page.put(96, &(1_u32 << 6).to_le_bytes());
    page.put(111, &[if controller.kind == Kind::Io { 1 } else { 2 }]);
    // Asynchronous Event Requests less one (AERL); no replaceable firmware (FRMW); log pages can be read in
    // parts, and there is one of the commands' effects (LPA).
    page.put(259, &[ASYNC_EVENTS - 1, 1 << 1 | 1, 1 << 2 | 1 << 1]);
    // Keep alive granularity (KAS), in units of 100 ms.
    page.put(320, &1_u16.to_le_bytes());
    page.put(514, &QUEUE_DEPTH.to_le_bytes());
    // SGL support (SGLS): keyed descriptors, offsets into the capsule, and SGLs that are longer than the
    // data.
    page.put(536, &(1_u32 << 20 | 1 << 18 | 1 << 2 | 1).to_le_bytes());
    if controller.kind == Kind::Discovery {
        page.put(768, DISCOVERY_NQN.as_bytes());
        return;
    }
    page.put(512, &[0x66, 0x44]);
    page.put(516, &1_u32.to_le_bytes());
    // Optional commands (ONCS): Write Zeroes and Dataset Management; then the volatile write cache (VWC).
    page.put(520, &(1_u16 << 3 | 1 << 2).to_le_bytes());
    page.put(525, &[1]);
    page.put(768, subsystem.nqn.as_bytes());
    // Capsule sizes (IOCCSZ, IORCSZ), in units of 16 bytes.
    page.put(1792, &(((COMMAND_LEN + IN_CAPSULE) / 16) as u32).to_le_bytes());
    page.put(1796, &((RESPONSE_LEN / 16) as u32).to_le_bytes());
    // One SGL descriptor per command (MSDBD).
    page.put(1803, &[1]);
}

fn identify_namespace(subsystem: &Subsystem, page: &mut Page<'_>) {
    let namespace = &subsystem.namespace;
    for at in [0, 8, 16] {
        page.put(at, &namespace.blocks().to_le_bytes());
    }
    // Shared by several controllers (NMIC); deallocated blocks read as zeros (DLFEAT); the write protection
    // (NSATTR).
    page.put(30, &[1]);
    page.put(33, &[1 << 3 | 1]);
    page.put(99, &[namespace.is_read_only().into()]);
    page.put(104, &subsystem.uuid());
    page.put(130, &[namespace.block_len().trailing_zeros() as u8]);
}

/// Writes the namespace identification descriptors: UUID, NGUID, and the NVM command set.
fn descriptors(subsystem: &Subsystem, page: &mut Page<'_>) {
    let uuid = subsystem.uuid();
    page.put(0, &[3, 16]);
    page.put(4, &uuid);
    page.put(20, &[2, 16]);
    page.put(24, &uuid);
    page.put(40, &[4, 1]);
}
