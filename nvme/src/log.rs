//! Log pages. Most are constant; the discovery log page lists the subsystems and their addresses.

use std::net::IpAddr;

use super::capsule::Status;
use super::controller::{Controller, Kind};
use super::identify::Page;
use super::request::{ADMIN_COMMANDS, IO_COMMANDS};
use super::subsystem::Subsystem;
use super::{DISCOVERY_NQN, QUEUE_DEPTH};

/// Length in bytes of the discovery log header and of each discovery log entry.
const ENTRY: usize = 1024;

/// Copies a log page, starting at `offset`, to `data`, which must contain only zeros. Bytes of `data` beyond
/// the end of the page stay zero.
///
/// # Errors
/// [`Status`].
pub fn read(
    log: u8,
    offset: u64,
    controller: &Controller,
    subsystem: &Subsystem,
    data: &mut [u8],
) -> Result<(), Status> {
    let page = match (log, controller.kind) {
        (0x01, Kind::Io) => vec![0; 64],
        (0x02, Kind::Io) => health(),
        (0x03, Kind::Io) => firmware(),
        (0x05, Kind::Io) => effects(),
        (0x70, Kind::Discovery) => discovery(subsystem),
        _ => return Err(Status::InvalidLogPage),
    };
    // The offset has to be a multiple of a dword.
    let from = usize::try_from(offset).ok().filter(|from| from % 4 == 0);
    let rest = from.and_then(|from| page.get(from..)).ok_or(Status::InvalidField)?;
    let len = rest.len().min(data.len());
    data[..len].copy_from_slice(&rest[..len]);
    Ok(())
}

/// Returns the SMART / Health Information log page: a temperature of 20 degrees Celsius (293 K), and 100 % of
/// the spare capacity available.
fn health() -> Vec<u8> {
    let mut log = vec![0; 512];
    Page(&mut log).put(1, &293_u16.to_le_bytes());
    Page(&mut log).put(3, &[100, 10]);
    log
}

fn firmware() -> Vec<u8> {
    let mut log = vec![0; 512];
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    log[8..16].fill(b' ');
    Page(&mut log).put(0, &[1]);
    Page(&mut log).put(8, &version[..version.len().min(8)]);
    log
}

fn effects() -> Vec<u8> {
    let mut log = vec![0; 4096];
    let mut page = Page(&mut log);
    for opcode in ADMIN_COMMANDS {
        page.put(4 * usize::from(opcode), &[1]);
    }
    for (opcode, writes) in IO_COMMANDS {
        page.put(1024 + 4 * usize::from(opcode), &[1 | u8::from(writes) << 1]);
    }
    log
}

fn discovery(subsystem: &Subsystem) -> Vec<u8> {
    let names = [(DISCOVERY_NQN, 3), (subsystem.nqn.as_str(), 2)];
    let entries = subsystem.addresses.iter().flat_map(|at| names.map(|(nqn, kind)| (at, nqn, kind)));
    let mut log = vec![0; ENTRY];
    for (at, nqn, kind) in entries {
        let mut entry = [0; ENTRY];
        let mut page = Page(&mut entry);
        // Transport type RDMA, address family, subsystem type, no secure channel required; any controller.
        page.put(0, &[1, if at.is_ipv4() { 1 } else { 2 }, kind, 1 << 1]);
        page.put(6, &0xffff_u16.to_le_bytes());
        page.put(8, &QUEUE_DEPTH.to_le_bytes());
        page.put(32, at.port().to_string().as_bytes());
        page.put(256, nqn.as_bytes());
        let ip: IpAddr = at.ip();
        page.put(512, ip.to_string().as_bytes());
        // RDMA service type: reliable connected; provider type: RoCE v2; connection management: RDMA_CM.
        page.put(768, &[1, 4, 1]);
        log.extend_from_slice(&entry);
    }
    let count = (log.len() / ENTRY - 1) as u64;
    // Generation counter, which never changes.
    Page(&mut log).put(0, &1_u64.to_le_bytes());
    Page(&mut log).put(8, &count.to_le_bytes());
    log
}
