//! What commands ask for, as far as their own bytes tell: which fields they have, and what data they move.

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

/// What the controller can do, as the log of commands' effects has it: opcodes of admin commands and of I/O commands, and
/// whether they change what blocks hold.
pub const ADMIN_COMMANDS: [u8; 7] = [
    opcode::GET_LOG_PAGE,
    opcode::IDENTIFY,
    opcode::ABORT,
    opcode::SET_FEATURES,
    opcode::GET_FEATURES,
    opcode::ASYNC_EVENT,
    opcode::KEEP_ALIVE,
];
/// See [`ADMIN_COMMANDS`].
pub const IO_COMMANDS: [(u8, bool); 5] = [
    (opcode::FLUSH, false),
    (opcode::WRITE, true),
    (opcode::READ, false),
    (opcode::WRITE_ZEROES, true),
    (opcode::DATASET_MANAGEMENT, true),
];

/// A run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// A command that makes sense by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The host says who it is and what it wants to use.
    Connect(Connect),
    /// Reads a register.
    PropertyGet {
        /// Which.
        offset: u32,
        /// All of its 8 bytes.
        wide: bool,
    },
    /// Writes one.
    PropertySet {
        /// Which.
        offset: u32,
        /// What.
        value: u64,
    },
    /// Asks what the controller, or a namespace, is.
    Identify {
        /// Of what kind the answer is.
        cns: u8,
        /// Of which namespace.
        nsid: u32,
        /// Of which command set.
        csi: u8,
    },
    /// Reads a log.
    GetLogPage {
        /// Which.
        log: u8,
        /// From which byte on.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// Sets a feature.
    SetFeatures {
        /// Which.
        feature: u8,
        /// To what.
        value: u32,
    },
    /// Reads one.
    GetFeatures {
        /// Which.
        feature: u8,
        /// 0: as it is; 1: as it was at first; 2: as it is saved; 3: what can be done with it.
        select: u8,
    },
    /// To be answered when something happens.
    AsyncEvent,
    /// The host lives.
    KeepAlive,
    /// Never mind a command.
    Abort,
    /// Reads blocks.
    Read(Blocks),
    /// Writes blocks.
    Write {
        /// Which.
        blocks: Blocks,
        /// Completes when they are on the medium.
        through: bool,
    },
    /// Completes when all that was written is on the medium.
    Flush,
    /// Makes blocks zero.
    WriteZeroes {
        /// Which.
        blocks: Blocks,
        /// Completes when they are on the medium.
        through: bool,
    },
    /// Tells what blocks are for.
    DatasetManagement {
        /// Runs of blocks that the data describes.
        ranges: usize,
        /// What they hold is of no use any more.
        deallocate: bool,
    },
}

/// A Connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// 0 is all there is.
    pub format: u16,
    /// The queue.
    pub queue: u16,
    /// The number of its last command.
    pub last: u16,
    /// The host does not want to know where the controller is in the queue.
    pub no_flow_control: bool,
    /// Milliseconds without a command after which the host is dead; 0: never.
    pub keep_alive: u32,
}

impl Connect {
    /// Bytes that come with it.
    pub const DATA_LEN: usize = 1024;
    /// Where [`queue`](Self::queue) is in the command.
    pub const QUEUE_AT: u64 = 42;
    /// Where [`last`](Self::last) is in the command.
    pub const LAST_AT: u64 = 44;
}

/// The data that a command moves, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// None.
    None,
    /// The host's, before the command is executed.
    FromHost(usize),
    /// The answer's.
    ToHost(usize),
}

impl Request {
    /// Reads a command of the admin queue or of an I/O queue whose blocks have this many bytes.
    ///
    /// # Errors
    /// [`Status`].
    pub fn parse(command: &Command, is_admin: bool, block_len: usize) -> Result<Request, Status> {
        // Whether there is such a command comes first: hosts ask so what there is.
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

    /// The data that it moves.
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
            // A number of dwords, less one.
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
            let saves = command.dword(10) >> 31 != 0;
            if saves {
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
    let through = command.dword(12) & 1 << 30 != 0;
    let request = match command.opcode() {
        opcode::FLUSH => Request::Flush,
        opcode::WRITE => Request::Write { blocks, through },
        opcode::READ => Request::Read(blocks),
        opcode::WRITE_ZEROES => Request::WriteZeroes { blocks, through },
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

/// The blocks that the data of a Dataset Management describes, each once however often it is named.
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
