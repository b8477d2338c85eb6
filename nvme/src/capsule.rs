//! Capsules: 64-byte commands, optionally followed by data, and 16-byte responses. All numbers are
//! little-endian.

/// Length of a command in bytes.
pub const COMMAND_LEN: usize = 64;
/// Length of a response in bytes.
pub const RESPONSE_LEN: usize = 16;

/// Reads a little-endian 16-bit number at offset `at` of `bytes`, which must be long enough.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a little-endian 32-bit number at offset `at` of `bytes`, which must be long enough.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// Reads a little-endian 64-bit number at offset `at` of `bytes`, which must be long enough.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command(pub [u8; COMMAND_LEN]);

impl Command {
    /// Parses the command at the beginning of a capsule, or returns `None` if the capsule is too short.
    pub fn of(capsule: &[u8]) -> Option<Command> {
        capsule.first_chunk().copied().map(Command)
    }

    /// Returns the opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Reports whether the command is part of a fused operation.
    pub fn is_fused(&self) -> bool {
        self.0[1] & 0b11 != 0
    }

    /// Reports whether the data is described by an SGL, as NVMe over Fabrics requires, instead of PRPs.
    pub fn has_sgl(&self) -> bool {
        matches!(self.0[1] >> 6, 1 | 2)
    }

    /// Returns the command identifier (CID).
    pub fn id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Returns the namespace identifier (NSID).
    pub fn nsid(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// Returns the type of a Fabrics command (FCTYPE).
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Returns dword `n`.
    pub fn dword(&self, n: usize) -> u32 {
        u32_at(&self.0, 4 * n)
    }

    /// Returns dwords `n` and `n + 1`.
    pub fn qword(&self, n: usize) -> u64 {
        u64_at(&self.0, 4 * n)
    }

    /// Parses the command's SGL descriptor.
    ///
    /// # Errors
    /// [`Status::SglType`] for a descriptor that RDMA does not have.
    pub fn data_pointer(&self) -> Result<DataPointer, Status> {
        let sgl = &self.0[24..40];
        match sgl[15] {
            0x01 => Ok(DataPointer::InCapsule { offset: u64_at(sgl, 0), len: u32_at(sgl, 8) as usize }),
            kind @ (0x40 | 0x4f) => Ok(DataPointer::Keyed(Keyed {
                addr: u64_at(sgl, 0),
                len: u32_at(sgl, 8) as usize & 0xff_ffff,
                rkey: u32_at(sgl, 11),
                invalidate: kind == 0x4f,
            })),
            _ => Err(Status::SglType),
        }
    }
}

/// Location of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPointer {
    /// The data is in the capsule, after the command.
    InCapsule {
        /// Offset of the data from the end of the command.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// In the host's memory.
    Keyed(Keyed),
}

/// Range of host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keyed {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Length in bytes, below 2^24.
    pub len: usize,
    /// R_Key of the region.
    pub rkey: u32,
    /// Whether the response must invalidate the R_Key, by SEND with Invalidate.
    pub invalidate: bool,
}

/// Status of a failed command: status code type (bits 8 to 10) and status code (bits 0 to 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{self:?} ({:#05x})", *self as u16)]
#[repr(u16)]
pub enum Status {
    /// The queue does not support the opcode.
    InvalidOpcode = 0x01,
    /// A field of the command is invalid.
    InvalidField = 0x02,
    /// The namespace does not exist.
    InvalidNamespace = 0x0b,
    /// The command is out of sequence: sent before Connect or before the controller was enabled, or repeated.
    CommandSequence = 0x0c,
    /// The SGL is shorter than the data that the command transfers.
    SglLength = 0x0f,
    /// The SGL descriptor type is invalid for RDMA or for this command.
    SglType = 0x11,
    /// The SGL describes data outside the capsule.
    SglOffset = 0x16,
    /// The namespace is read-only.
    WriteProtected = 0x20,
    /// The blocks are beyond the end of the namespace.
    LbaOutOfRange = 0x80,
    /// Too many Asynchronous Event Requests are outstanding.
    AsyncEventLimit = 0x105,
    /// The log page does not exist.
    InvalidLogPage = 0x109,
    /// The record format of the Connect command is not supported.
    ConnectFormat = 0x180,
    /// No further host can connect at the moment.
    ConnectBusy = 0x181,
    /// A field of the Connect command is invalid; the result contains the field's offset.
    ConnectParameter = 0x182,
    /// The file could not be written.
    WriteFault = 0x280,
    /// The file could not be read.
    ReadError = 0x281,
}

impl Status {
    /// Returns the response's status field, with the Do Not Retry bit set unless a retry may succeed.
    fn bits(self) -> u16 {
        let is_retryable = self == Status::ConnectBusy;
        let do_not_retry = if is_retryable { 0 } else { 1 << 15 };
        (self as u16) << 1 | do_not_retry
    }
}

/// Failure of a command: the status and the result to return in the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Status of the command.
    pub status: Status,
    /// Result, in the first two dwords of the response.
    pub result: u64,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure { status, result: 0 }
    }
}

/// A response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// Command identifier (CID).
    pub id: u16,
    /// Submission queue head pointer (SQHD); 0xffff if the host has disabled flow control.
    pub head: u16,
    /// Result of the command, or its failure.
    pub outcome: Result<u64, Failure>,
}

impl Response {
    /// Encodes the response.
    pub fn bytes(&self) -> [u8; RESPONSE_LEN] {
        let (result, status) = match self.outcome {
            Ok(result) => (result, 0),
            Err(failure) => (failure.result, failure.status.bits()),
        };
        let mut bytes = [0; RESPONSE_LEN];
        bytes[..8].copy_from_slice(&result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.head.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.id.to_le_bytes());
        bytes[14..].copy_from_slice(&status.to_le_bytes());
        bytes
    }
}
