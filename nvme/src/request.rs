//! Parsing of commands and of the data that they transfer.

use super::MAX_TRANSFER;
use super::capsule::{Command, Status, u16_at, u32_at, u64_at};
use super::identify::PAGE;

/// Opcodes.
mod opcode {
    pub const FABRICS: u8 = 0x7f;
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Opcodes of the supported admin commands, for the Commands Supported and Effects log page.
pub const ADMIN_COMMANDS: [u8; 7] = [
    opcode::GET_LOG_PAGE,
    opcode::IDENTIFY,
    opcode::ABORT,
    opcode::SET_FEATURES,
    opcode::GET_FEATURES,
    opcode::ASYNC_EVENT,
    opcode::KEEP_ALIVE,
];
/// Opcodes of the supported I/O commands, for the Commands Supported and Effects log page, each with a flag
/// that is set if the command changes block contents.
pub const IO_COMMANDS: [(u8, bool); 5] = [
    (opcode::FLUSH, false),
    (opcode::WRITE, true),
    (opcode::READ, false),
    (opcode::WRITE_ZEROES, true),
    (opcode::DATASET_MANAGEMENT, true),
];

/// A range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// LBA of the first block.
    pub first: u64,
    /// Number of blocks.
    pub count: u64,
}

/// A parsed command whose fields are valid in themselves; execution checks them against the state of the
/// controller and the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Connect: the host identifies itself and names the subsystem that it wants to use.
    Connect(Connect),
    /// Reads a register.
    PropertyGet {
        /// Offset of the register.
        offset: u32,
        /// Whether the register is 8 bytes long instead of 4.
        wide: bool,
    },
    /// Writes a register.
    PropertySet {
        /// Offset of the register.
        offset: u32,
        /// Value to write.
        value: u64,
    },
    /// Identify: returns a data structure that describes the controller or a namespace.
    Identify {
        /// Controller or Namespace Structure (CNS): the data structure to return.
        cns: u8,
        /// Namespace identifier.
        nsid: u32,
        /// Command set identifier (CSI).
        csi: u8,
    },
    /// Reads a log page.
    GetLogPage {
        /// Log page identifier.
        log: u8,
        /// Offset of the first byte to return, in the log page.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Sets a feature.
    SetFeatures {
        /// Feature identifier.
        feature: u8,
        /// New value.
        value: u32,
    },
    /// Reads a feature.
    GetFeatures {
        /// Feature identifier.
        feature: u8,
        /// Value to return (SEL): 0 current; 1 default; 2 saved; 3 supported capabilities.
        select: u8,
    },
    /// Asynchronous Event Request, which completes when an event occurs.
    AsyncEvent,
    /// Keep Alive, which restarts the keep alive timer.
    KeepAlive,
    /// Aborts a command.
    Abort,
    /// Reads blocks.
    Read(Blocks),
    /// Writes blocks.
    Write {
        /// Blocks to write.
        blocks: Blocks,
        /// Whether the command may complete only once the blocks are on the medium (FUA).
        fua: bool,
    },
    /// Flush, which completes once all previously written data is on the medium.
    Flush,
    /// Fills blocks with zeros.
    WriteZeroes {
        /// Blocks to fill.
        blocks: Blocks,
        /// Whether the command may complete only once the blocks are on the medium (FUA).
        fua: bool,
    },
    /// Dataset Management: sets attributes of block ranges.
    DatasetManagement {
        /// Number of block ranges in the data.
        ranges: usize,
        /// Whether the blocks may be deallocated, because their contents are no longer needed.
        deallocate: bool,
    },
}

/// Fields of the Connect command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Record format; only 0 is defined.
    pub format: u16,
    /// Number of the queue.
    pub queue: u16,
    /// Queue depth minus one (SQSIZE).
    pub last: u16,
    /// Whether the host has disabled flow control, so that responses carry no submission queue head pointer.
    pub no_flow_control: bool,
    /// Keep alive timeout in milliseconds; 0 disables it.
    pub keep_alive: u32,
}

impl Connect {
    /// Length of a Connect command's data in bytes.
    pub const DATA_LEN: usize = 1024;
    /// Offset of [`queue`](Self::queue) in the command, in bytes.
    pub const QUEUE_AT: u64 = 42;
    /// Offset of [`last`](Self::last) in the command, in bytes.
    pub const LAST_AT: u64 = 44;
}

/// Direction and length in bytes of a command's data transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// No data.
    None,
    /// Data that the host provides, transferred before the command is executed.
    FromHost(usize),
    /// Data that the command returns, transferred to the host before the response.
    ToHost(usize),
}

impl Request {
    /// Parses a command from the admin queue, or from an I/O queue of a namespace with blocks of `block_len`
    /// bytes.
    ///
    /// # Errors
    /// [`Status`].
    pub fn parse(command: &Command, is_admin: bool, block_len: usize) -> Result<Request, Status> {
        // An unknown opcode is reported first, because hosts detect supported commands by it.
        let request = match (command.opcode(), is_admin) {
            (opcode::FABRICS, _) => fabrics(command),
            (_, true) => admin(command),
            (_, false) => io(command),
        }?;
        if command.is_fused() || !command.has_sgl() {
            return Err(Status::InvalidField);
        }
        match request.transfer(block_len) {
            Transfer::FromHost(len) | Transfer::ToHost(len) if len > MAX_TRANSFER => {
                Err(Status::InvalidField)
            }
            _ => Ok(request),
        }
    }

    /// Returns the direction and length of the command's data transfer.
    pub fn transfer(&self, block_len: usize) -> Transfer {
        let bytes = |blocks: &Blocks| blocks.count as usize * block_len;
        match self {
            Request::Connect(_) => Transfer::FromHost(Connect::DATA_LEN),
            Request::Identify { .. } => Transfer::ToHost(PAGE),
            Request::GetLogPage { len, .. } => Transfer::ToHost(*len),
            Request::Read(blocks) => Transfer::ToHost(bytes(blocks)),
            Request::Write { blocks, .. } => Transfer::FromHost(bytes(blocks)),
            Request::DatasetManagement { ranges, .. } => Transfer::FromHost(ranges * RANGE_LEN),
            _ => Transfer::None,
        }
    }
}

fn fabrics(command: &Command) -> Result<Request, Status> {
    let offset = command.dword(11);
    let wide = match command.0[40] & 0b111 {
        0 => false,
        1 => true,
        _ if matches!(command.fabrics_type(), 0x00 | 0x04) => return Err(Status::InvalidField),
        _ => false,
    };
    match command.fabrics_type() {
        0x00 => {
            let value = if wide { command.qword(12) } else { command.dword(12).into() };
            Ok(Request::PropertySet { offset, value })
        }
        0x01 => Ok(Request::Connect(Connect {
            format: u16_at(&command.0, 40),
            queue: u16_at(&command.0, Connect::QUEUE_AT as usize),
            last: u16_at(&command.0, Connect::LAST_AT as usize),
            no_flow_control: command.0[46] & 1 << 2 != 0,
            keep_alive: command.dword(12),
        })),
        0x04 => Ok(Request::PropertyGet { offset, wide }),
        _ => Err(Status::InvalidOpcode),
    }
}

fn admin(command: &Command) -> Result<Request, Status> {
    match command.opcode() {
        opcode::GET_LOG_PAGE => {
            // The field holds the number of dwords less one.
            let last = u64::from(command.dword(10) >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
            let len = usize::try_from((last + 1) * 4).map_err(|_| Status::InvalidField)?;
            Ok(Request::GetLogPage { log: command.dword(10) as u8, offset: command.qword(12), len })
        }
        opcode::IDENTIFY => Ok(Request::Identify {
            cns: command.dword(10) as u8,
            nsid: command.nsid(),
            csi: (command.dword(11) >> 24) as u8,
        }),
        opcode::ABORT => Ok(Request::Abort),
        opcode::SET_FEATURES => {
            let is_saved = command.dword(10) >> 31 != 0;
            if is_saved {
                return Err(Status::InvalidField);
            }
            Ok(Request::SetFeatures { feature: command.dword(10) as u8, value: command.dword(11) })
        }
        opcode::GET_FEATURES => Ok(Request::GetFeatures {
            feature: command.dword(10) as u8,
            select: (command.dword(10) >> 8) as u8 & 0b111,
        }),
        opcode::ASYNC_EVENT => Ok(Request::AsyncEvent),
        opcode::KEEP_ALIVE => Ok(Request::KeepAlive),
        _ => Err(Status::InvalidOpcode),
    }
}

fn io(command: &Command) -> Result<Request, Status> {
    let blocks = Blocks { first: command.qword(10), count: u64::from(command.dword(12) & 0xffff) + 1 };
    let fua = command.dword(12) & 1 << 30 != 0;
    let request = match command.opcode() {
        opcode::FLUSH => Request::Flush,
        opcode::WRITE => Request::Write { blocks, fua },
        opcode::READ => Request::Read(blocks),
        opcode::WRITE_ZEROES => Request::WriteZeroes { blocks, fua },
        opcode::DATASET_MANAGEMENT => Request::DatasetManagement {
            ranges: (command.dword(10) & 0xff) as usize + 1,
            deallocate: command.dword(11) & 1 << 2 != 0,
        },
        _ => return Err(Status::InvalidOpcode),
    };
    let all = request == Request::Flush && command.nsid() == u32::MAX;
    if command.nsid() == 1 || all { Ok(request) } else { Err(Status::InvalidNamespace) }
}

const RANGE_LEN: usize = 16;

/// Parses the data of a Dataset Management command, merging overlapping and adjacent ranges so that each
/// block is returned once.
pub fn ranges(data: &[u8]) -> Vec<Blocks> {
    let all = data.chunks_exact(RANGE_LEN);
    let mut all: Vec<Blocks> =
        all.map(|r| Blocks { first: u64_at(r, 8), count: u32_at(r, 4).into() }).collect();
    all.sort_unstable_by_key(|blocks| blocks.first);
    let end = |blocks: &Blocks| blocks.first.saturating_add(blocks.count);
    all.dedup_by(|next, blocks| {
        let is_joined = next.first <= end(blocks);
        if is_joined {
            blocks.count = end(blocks).max(end(next)) - blocks.first;
        }
        is_joined
    });
    all
}
