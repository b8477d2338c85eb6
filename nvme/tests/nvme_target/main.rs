//! Tests of the NVMe over Fabrics target: its responses to valid and invalid commands, without RDMA and over
//! RDMA to a host on the verbs API.

mod commands;
mod controllers;
mod host;
mod over_rdma;

use std::sync::Arc;

use urxe_nvme::capsule::Command;
use urxe_nvme::namespace::Namespace;
use urxe_nvme::subsystem::Subsystem;

const NQN: &str = "nqn.2014-08.org.urxe:disk";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const BLOCK: usize = 512;
const BLOCKS: usize = 4096;

/// A subsystem whose namespace is a temporary file; each block initially contains its own number.
struct Disk {
    subsystem: Arc<Subsystem>,
    file: tempfile::NamedTempFile,
}

impl Disk {
    fn new() -> Disk {
        Disk::with(false)
    }

    fn with(read_only: bool) -> Disk {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), (0..BLOCKS).flat_map(block).collect::<Vec<u8>>()).unwrap();
        let namespace = Namespace::open(file.path(), BLOCK, read_only).unwrap();
        let addresses = vec!["192.0.2.1:4420".parse().unwrap(), "[2001:db8::1]:4420".parse().unwrap()];
        Disk { subsystem: Arc::new(Subsystem::new(NQN.into(), namespace, addresses)), file }
    }

    /// Returns the contents of `count` blocks of the file, starting at block `first`.
    fn blocks(&self, first: usize, count: usize) -> Vec<u8> {
        std::fs::read(self.file.path()).unwrap()[first * BLOCK..(first + count) * BLOCK].to_vec()
    }
}

/// Returns the initial contents of a block.
fn block(number: usize) -> Vec<u8> {
    (number as u32).to_le_bytes().repeat(BLOCK / 4)
}

/// Returns a command for namespace 1 with `dwords` as its command dwords from CDW10 on.
fn command(opcode: u8, dwords: &[u32]) -> Command {
    let mut bytes = [0; 64];
    (bytes[0], bytes[1], bytes[4]) = (opcode, 0x40, 1);
    for (at, dword) in dwords.iter().enumerate() {
        bytes[40 + 4 * at..44 + 4 * at].copy_from_slice(&dword.to_le_bytes());
    }
    Command(bytes)
}

/// Returns a copy of the command in which `bytes` replace the bytes from offset `at` on.
fn with(command: Command, at: usize, bytes: &[u8]) -> Command {
    let mut changed = command.0;
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    Command(changed)
}

/// Returns a Fabrics command.
fn fabrics(kind: u8, dwords: &[u32]) -> Command {
    with(command(0x7f, dwords), 4, &[kind])
}

/// Returns a Connect command for queue `queue` with a depth of `depth` commands.
fn connect(queue: u16, depth: u16) -> Command {
    fabrics(1, &[u32::from(queue) << 16, u32::from(depth - 1), 0])
}

fn connect_data(controller: u16, subsystem: &str, host: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].fill(7);
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + host.len()].copy_from_slice(host.as_bytes());
    data
}

/// Returns the Property Set command that the kernel sends to enable a controller: it sets register CC, with
/// queue entries of 64 and 16 bytes.
fn enable() -> Command {
    fabrics(0, &[0, 0x14, 0x46_0001, 0])
}
