//! Capsules: commands of 64 bytes with data behind them, responses of 16. All numbers are little endian.

/// Bytes of a command.
pub const COMMAND_LEN: usize = 64;
/// Bytes of a response.
pub const RESPONSE_LEN: usize = 16;

/// A number at a place in bytes that are long enough.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The same of 32 bits.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// The same of 64 bits.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command(pub [u8; COMMAND_LEN]);

impl Command {
    /// The first bytes of a capsule; `None` if there are too few.
    pub fn of(capsule: &[u8]) -> Option<Command> {
        capsule.first_chunk().copied().map(Command)
    }

    /// What is to be done.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Whether it is one of a pair that is to be executed as one.
    pub fn is_fused(&self) -> bool {
        self.0[1] & 0b11 != 0
    }

    /// Whether its data is described by an SGL, as over fabrics all is.
    pub fn has_sgl(&self) -> bool {
        matches!(self.0[1] >> 6, 1 | 2)
    }

    /// Its number among those that the host waits for.
    pub fn id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// The namespace.
    pub fn nsid(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// What is to be done, of a Fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Dword `n`.
    pub fn dword(&self, n: usize) -> u32 {
        u32_at(&self.0, 4 * n)
    }

    /// Dwords `n` and `n + 1`.
    pub fn qword(&self, n: usize) -> u64 {
        u64_at(&self.0, 4 * n)
    }

    /// Where its data is.
    ///
    /// # Errors
    /// [`Status::SglType`] of what RDMA does not have.
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

/// Where the data of a command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPointer {
    /// Behind the command.
    InCapsule {
        /// From the end of the command on.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// In the host's memory.
    Keyed(Keyed),
}

/// A run of the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keyed {
    /// Its first byte, as the host's region counts.
    pub addr: u64,
    /// Bytes, below 2^24.
    pub len: usize,
    /// The region's key.
    pub rkey: u32,
    /// The response is to close the key.
    pub invalidate: bool,
}

/// How a command fails: status code type and status code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{self:?} ({:#05x})", *self as u16)]
#[repr(u16)]
pub enum Status {
    /// There is no such command on this queue.
    InvalidOpcode = 0x01,
    /// A field of the command makes no sense.
    InvalidField = 0x02,
    /// There is no such namespace.
    InvalidNamespace = 0x0b,
    /// Not now: before Connect, before the controller is enabled, or twice.
    CommandSequence = 0x0c,
    /// The SGL has less room than the command moves data.
    SglLength = 0x0f,
    /// An SGL descriptor that RDMA or this command does not have.
    SglType = 0x11,
    /// Data that is said to lie outside the capsule.
    SglOffset = 0x16,
    /// The namespace is read-only.
    WriteProtected = 0x20,
    /// Beyond the namespace's end.
    LbaOutOfRange = 0x80,
    /// More requests for events than there may be.
    AsyncEventLimit = 0x105,
    /// There is no such log.
    InvalidLogPage = 0x109,
    /// A Connect of another format.
    ConnectFormat = 0x180,
    /// As many hosts are connected as can be.
    ConnectBusy = 0x181,
    /// A Connect whose field makes no sense; the result says which.
    ConnectParameter = 0x182,
    /// The file could not be written.
    WriteFault = 0x280,
    /// The file could not be read.
    ReadError = 0x281,
}

impl Status {
    /// As a response has it: with the bit that says that to try again would bring the same.
    fn bits(self) -> u16 {
        let again = self == Status::ConnectBusy;
        let do_not_retry = if again { 0 } else { 1 << 15 };
        (self as u16) << 1 | do_not_retry
    }
}

/// A failure, with what the response says besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// How.
    pub status: Status,
    /// The response's first dwords.
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
    /// The command's number.
    pub id: u16,
    /// Where the controller is in the queue: 0xffff if the host does not want to know.
    pub head: u16,
    /// What the command brought, or how it failed.
    pub outcome: Result<u64, Failure>,
}

impl Response {
    /// Its bytes.
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
