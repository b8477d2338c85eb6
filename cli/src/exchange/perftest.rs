//! The handshake of perftest 4.5 (Debian 12's 4.5+0.17-1, which calls itself 6.06 on the wire) over plain
//! TCP, for RC runs of a number of iterations (`-n`) in one direction, with one or more QPs (`-q`).
//!
//! Not covered: `-R` and `-z` (rdma_cm), duration mode (`-D`), `-b`, `-a`, UC/UD/XRC/DC, `--report-per-port`.
//!
//! # The steps
//! One TCP connection to port [`PORT`] of the server (the passive side); the stock server listens on IPv4
//! only. Each step below is a swap: the client writes, the server reads that and then writes its own value of
//! the same length. So the client always writes first, and at most one message is in flight, except in the
//! very last step.
//!
//! | step | bytes | content |
//! | --- | --- | --- |
//! | version | 16 | `6.06`, padded with NULs ([`encode_version`]) |
//! | cycle buffer | 4 | big-endian; the page size, 4096 on x86; both use the larger one |
//! | cache line | 4 | big-endian; 64 on x86; both use the larger one |
//! | MTU | 2 | the verbs' MTU code in decimal, `1` (256) to `5` (4096), and a NUL; both use the smaller one |
//! | destination | 108 | one per QP, in order: see [`Destination`] |
//!
//! A destination swap with known content is the barrier: QP 0's line is sent once more, and only its arrival
//! matters. D(i) is the swap of QP i's line:
//!
//! | test | before the run | after it |
//! | --- | --- | --- |
//! | `ib_write_bw`, `ib_read_bw`, `ib_atomic_bw` | D(0..q) C D(0..q) D(0) | D(0) reports D(0) done |
//! | `ib_send_bw` | D(0..q) C D(0) D(0..q) R D(0) | D(0) done |
//! | `ib_send_lat` | D(0..q) C D(0) D(0..q) R D(0) | D(0) done |
//! | `ib_write_lat` | D(0..q) C D(0) D(0..q) D(0) | nothing: the connection is closed |
//!
//! C: the QPs must be connected (RTS; the passive side of a bandwidth test stops at RTR) before the next
//! swap. R: the receives must be posted before it. *reports* is five swaps of 8 bytes, see [`BwReport`].
//! *done*: both sides write `done` and a NUL without waiting, read nothing more and close, which may reset
//! the connection. Both sides of `ib_write_bw` sleep for a second between connecting and the version.
//!
//! **Size, iterations, number of QPs, operation and verb are not exchanged.** Both sides must be started
//! with the same values (`-s -n -q -A`), otherwise one of them waits indefinitely. Both sides must run the
//! same program.
//!
//! The server of the three one-sided bandwidth tests fills its reports from uninitialised memory: only the
//! client's report is meaningful, and that is what the server prints. So [`BwReport`] accepts any bytes.
//!
//! # QPs
//! RC, P_Key index 0, `max_dest_rd_atomic` = this side's own out_reads, `max_rd_atomic` = the *peer's*
//! out_reads (so announce no more than the peer's device can have; it is 1 for SEND and WRITE, and for READ
//! and atomics the value of `-o` or the device's `max_qp_rd_atom`, 128 on rxe; a stock client that receives 2
//! never has more than 2 in flight), RNR timer 12 (0.64 ms), timeout 14 (67 ms, `-u`), retry count 7, RNR
//! retry 7 (infinite), hop limit 255, traffic class `-T` or 0, random 24-bit PSNs. Remote access is that of
//! the verb only (SEND QPs have remote write too, with an announced R_Key of 0). Both GIDs must be
//! IPv4-mapped, or neither; otherwise the peer prints "Found Incompatibility issue with GID types" and exits.
//!
//! # Buffers
//! See [`Layout`]. Each side has one region, with sends in the first half and receives (or remote access) in
//! the second. Let *slot* = max(size, cycle buffer). QP i announces `vaddr` = start + (q + i) * slot, and the
//! peer accesses only [vaddr, vaddr + slot). If size is at most half the cycle buffer, message n of a
//! bandwidth test goes to vaddr + (n mod (cycle / inc)) * inc, where inc is the size rounded up to cache
//! lines; otherwise, and in all latency tests, every message goes to vaddr. The remote address does not
//! depend on the post list or the completion moderation, which the passive side cannot see at all.
//!
//! Default sizes: bandwidth 65536, latency 2, atomics always 8. Default iterations: 5000 for `ib_write_bw`,
//! else 1000; 5 at least.
//!
//! # What the two sides do between "before" and "after"
//! Several QPs are driven side by side, each with the full number of iterations; the total is n * q.
//!
//! * **`ib_write_bw`**: the client posts n RDMA WRITEs of `size` per QP. The server only waits in the
//!   after-barrier; there are no receives and no immediate data, and its memory is not checked. There is
//!   no warm-up (unless `--perform_warm_up`: then up to tx_depth more WRITEs to the first address).
//! * **`ib_read_bw`**: the same with RDMA READs; up to min(tx_depth 128, out_reads) of them at once.
//! * **`ib_atomic_bw`**: the same with 8-byte atomics, FETCH_AND_ADD of 1 by default, or with
//!   `-A CMP_AND_SWAP` compare 0, swap 0. Since 8 is small, the target moves by a cache line each time: 64
//!   words of the 4096-byte cycle buffer, 64 bytes apart. Their initial values are random, and neither side
//!   checks the results. The unused swap operand of the add is undefined.
//! * **`ib_send_bw`**: the client posts n SENDs of `size` per QP. The server posts min(512, n) rounded up to
//!   an even number of receives per QP (`-r`) before R, each of `size` bytes, and another one for every
//!   completed one while completed + depth <= n; their addresses are the server's own choice (the stock
//!   server cycles as above). It is done after n * q completions. Falling behind is safe: the sender's RNR
//!   retry is infinite.
//! * **`ib_send_lat`**: one QP. Both sides post receives as in `ib_send_bw` (each of `size` bytes). The
//!   client sends first; the server sends its message k once it has received message k; the client sends k+1
//!   once it has received k. Both send n and receive n. The content does not matter.
//! * **`ib_write_lat`**: one QP, both sides write and poll memory. Each side zeroes its buffer before
//!   announcing it and polls the *last* byte of its area, vaddr + size - 1. **The server writes first.**
//!   Round k (from 1): the server WRITEs `size` bytes, the last one being k mod 256, to the client's vaddr,
//!   and waits for its own send completion; the client sees its poll byte become k mod 256, WRITEs its
//!   message with last byte k mod 256 to the server's vaddr and waits for its completion; the server sees k
//!   and continues with k+1. Both do n rounds. Because nothing follows, the server must keep its QP until the
//!   client has disconnected (the ACK of the client's last WRITE may have been lost): [`Exchange::finish`]
//!   waits for the end of the stream.
//!
//! # Example
//! ```no_run
//! # use std::net::TcpStream;
//! # use urxe_cli::exchange::{ExchangeError, perftest::{BwReport, Config, Destination, Exchange, Test}};
//! # fn run(stream: TcpStream, local: Destination) -> Result<(), ExchangeError> {
//! let mut x = Exchange::client(stream, &Config::new(Test::WriteBw, 1024))?;
//! let _mtu = x.agreed().mtu; // and max(size, x.agreed().cycle_buffer) bytes of memory per QP
//! let _remote = x.swap_destinations(&[local])?;
//! // ... connect the QP; the passive side of a SEND test, and both sides of ib_send_lat, post receives ...
//! x.start()?;
//! // ... the run ...
//! x.finish(&BwReport { size: 65536, iterations: 5000, peak: 0.0, average: 900.0, msg_rate: 0.0144 })?;
//! # Ok(()) }
//! ```

use super::{ExchangeError, Fields, in_range, is_timeout, read_message, write_message};
use std::io::{ErrorKind, Read, Write};

/// The default TCP port of all the perftest programs.
pub const PORT: u16 = 18515;

/// The version that this side announces, and the only one that it accepts: later ones negotiate more.
pub const VERSION: &str = "6.06";

/// Length of the version message.
pub const VERSION_LEN: usize = 16;

/// Length of a [`Destination`] on the wire, with its NUL.
pub const DESTINATION_LEN: usize = 108;

/// The last message of either side.
pub const DONE: &[u8; 5] = b"done\0";

const WHAT_VERSION: &str = "perftest version";
const WHAT_CYCLE: &str = "perftest cycle buffer size";
const WHAT_CACHE: &str = "perftest cache line size";
const WHAT_MTU: &str = "perftest MTU";
const WHAT_DEST: &str = "perftest address";
const WHAT_REPORT: &str = "perftest report";
const WHAT_DONE: &str = "perftest \"done\"";

/// Largest accepted cycle buffer and cache line in bytes: a page of any architecture is smaller.
const MAX_CYCLE: u32 = 16 << 20;

/// Program at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    /// `ib_write_bw`
    WriteBw,
    /// `ib_read_bw`
    ReadBw,
    /// `ib_send_bw`
    SendBw,
    /// `ib_atomic_bw`
    AtomicBw,
    /// `ib_write_lat`
    WriteLat,
    /// `ib_send_lat`
    SendLat,
}

impl Test {
    /// Reports whether the client's results are exchanged at the end.
    pub fn has_report(self) -> bool {
        matches!(self, Self::WriteBw | Self::ReadBw | Self::AtomicBw)
    }

    /// Reports whether out_reads is that of the device (or `-o`) and not 1.
    pub fn has_out_reads(self) -> bool {
        matches!(self, Self::ReadBw | Self::AtomicBw)
    }

    /// Reports whether the two sides take turns, so that both of them send.
    pub fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::SendLat)
    }

    /// Returns the message size in bytes without `-s`.
    pub fn default_size(self) -> u32 {
        match self {
            Self::AtomicBw => 8,
            Self::WriteLat | Self::SendLat => 2,
            Self::WriteBw | Self::ReadBw | Self::SendBw => 65536,
        }
    }

    /// Returns the number of iterations without `-n`.
    pub fn default_iterations(self) -> u64 {
        if self == Self::WriteBw { 5000 } else { 1000 }
    }
}

/// Role of this side on the TCP connection; the client starts the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Connects, and writes first.
    Client,
    /// Accepts, and responds.
    Server,
}

/// Parameters of this side in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The test.
    pub test: Test,
    /// Largest path MTU of this side in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Size of the cycle buffer in bytes; usually the page size, 4096.
    pub cycle_buffer: u32,
    /// Size of a cache line in bytes; usually 64.
    pub cache_line: u32,
}

impl Config {
    /// Returns the usual values of an x86 machine.
    pub fn new(test: Test, mtu: u32) -> Self {
        Self { test, mtu, cycle_buffer: 4096, cache_line: 64 }
    }
}

/// Parameters that both sides use after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Path MTU in bytes: the smaller one.
    pub mtu: u32,
    /// Size of the cycle buffer in bytes: the larger one.
    pub cycle_buffer: u32,
    /// Size of a cache line in bytes: the larger one.
    pub cache_line: u32,
}

/// Placement of a test's messages in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes from each QP's announced `vaddr` on that the peer may access.
    pub slot: u64,
    /// Distance in bytes between the messages of a bandwidth test; 0 if all have the same position.
    pub stride: u64,
    /// Number of positions, which are used cyclically.
    pub positions: u64,
}

impl Layout {
    /// Returns the layout for messages of `size` bytes.
    pub fn new(test: Test, size: u32, agreed: &Agreed) -> Self {
        let (size, cycle) = (u64::from(size), u64::from(agreed.cycle_buffer));
        let line = u64::from(agreed.cache_line.max(1));
        let slot = size.max(cycle);
        if test.is_latency() || size > cycle / 2 {
            return Self { slot, stride: 0, positions: 1 };
        }
        let stride = size.div_ceil(line).max(1) * line;
        Self { slot, stride, positions: (cycle / stride).max(1) }
    }

    /// Returns the offset of message `n` (from 0) of a QP from its `vaddr`.
    pub fn offset(&self, n: u64) -> u64 {
        n % self.positions * self.stride
    }

    /// Returns the number of bytes that `qps` QPs need for remote access or receives; the `vaddr` of QP i is
    /// at offset `i * slot`.
    pub fn region(&self, qps: u32) -> u64 {
        self.slot.saturating_mul(qps.into())
    }
}

/// Encodes the version message.
pub fn encode_version() -> [u8; VERSION_LEN] {
    let mut out = [0; VERSION_LEN];
    out[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
    out
}

/// Parses a version message, which has to announce [`VERSION`].
pub fn parse_version(bytes: &[u8; VERSION_LEN]) -> Result<(), ExchangeError> {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(VERSION_LEN);
    let text = &bytes[..end];
    let is_version = text.first().is_some_and(u8::is_ascii_digit)
        && text.iter().all(|b| b.is_ascii_digit() || *b == b'.')
        && end < VERSION_LEN;
    if !is_version {
        return Err(ExchangeError::malformed(WHAT_VERSION, "not a version number", bytes));
    }
    if text != VERSION.as_bytes() {
        return Err(ExchangeError::Version { got: text.escape_ascii().to_string(), want: VERSION });
    }
    Ok(())
}

/// Encodes the MTU message for a path MTU in bytes.
pub fn encode_mtu(mtu: u32) -> Result<[u8; 2], ExchangeError> {
    in_range("path MTU", mtu.into(), 256, 4096)?;
    if !mtu.is_power_of_two() {
        return Err(ExchangeError::OutOfRange {
            what: "path MTU (a power of two)",
            value: mtu.into(),
            min: 256,
            max: 4096,
        });
    }
    // The verbs' code of 256 is 1, that of 4096 is 5.
    Ok([b'0' + (mtu.trailing_zeros() as u8 - 7), 0])
}

/// Parses an MTU message and returns the path MTU in bytes.
pub fn parse_mtu(bytes: &[u8; 2]) -> Result<u32, ExchangeError> {
    match bytes {
        [c @ b'1'..=b'5', 0] => Ok(128 << (c - b'0')),
        _ => Err(ExchangeError::malformed(WHAT_MTU, "MTU code is not in 1..=5", bytes)),
    }
}

/// Address and parameters of one QP as exchanged in the handshake.
///
/// `LLLL:OOOO:QQQQQQ:PPPPPP:RRRRRRRR:V{16}:gg:gg:...:gg:SSSSSSSS:` and a NUL: LID, out_reads, QPN, PSN,
/// R_Key, address, the 16 bytes of the GID and the SRQ number, all zero-padded lower-case hexadecimal.
/// (Without a GID index, which is impossible on Ethernet, the GID is omitted and the message has another
/// length.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// LID of the port; 0 on RoCE.
    pub lid: u16,
    /// RDMA READs and atomics that this side serves at a time; 1 in tests of other operations.
    pub out_reads: u16,
    /// QP number, 24 bits.
    pub qpn: u32,
    /// First PSN that this side will send, 24 bits.
    pub psn: u32,
    /// R_Key of this QP's memory; 0 in SEND tests.
    pub rkey: u32,
    /// Address of this QP's memory.
    pub vaddr: u64,
    /// GID of this side.
    pub gid: [u8; 16],
    /// SRQ number; 0 without XRC.
    pub srqn: u32,
}

impl Destination {
    /// Encodes the message, including its NUL.
    pub fn encode(&self) -> Result<[u8; DESTINATION_LEN], ExchangeError> {
        in_range("QP number", self.qpn.into(), 0, 0xff_ffff)?;
        in_range("PSN", self.psn.into(), 0, 0xff_ffff)?;
        let mut line = format!(
            "{:04x}:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:",
            self.lid, self.out_reads, self.qpn, self.psn, self.rkey, self.vaddr
        );
        for b in self.gid {
            line.push_str(&format!("{b:02x}:"));
        }
        line.push_str(&format!("{:08x}:\0", self.srqn));
        let mut out = [0; DESTINATION_LEN];
        out.copy_from_slice(line.as_bytes());
        Ok(out)
    }

    /// Parses a message. Every field must have its full width, as the programs print it.
    pub fn parse(bytes: &[u8; DESTINATION_LEN]) -> Result<Self, ExchangeError> {
        let mut f = Fields::new(WHAT_DEST, bytes);
        let lid = f.hex_colon("the LID", 4)? as u16;
        let out_reads = f.hex_colon("out_reads", 4)? as u16;
        let qpn = f.hex_colon("the QP number", 6)? as u32;
        let psn = f.hex_colon("the PSN", 6)? as u32;
        let rkey = f.hex_colon("the R_Key", 8)? as u32;
        let vaddr = f.hex_colon("the address", 16)?;
        let mut gid = [0; 16];
        for b in &mut gid {
            *b = f.hex_colon("the GID", 2)? as u8;
        }
        let srqn = f.hex_colon("the SRQ number", 8)? as u32;
        f.expect_byte(0)?;
        Ok(Self { lid, out_reads, qpn, psn, rkey, vaddr, gid, srqn })
    }
}

/// Result of a bandwidth test: five messages of 8 bytes, big-endian, swapped one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BwReport {
    /// Message size in bytes.
    pub size: u64,
    /// Messages of all QPs together.
    pub iterations: u64,
    /// Peak bandwidth, in 2^20 bytes per second (or, with `--report_gbits`, 10^9 bits per second).
    pub peak: f64,
    /// Average bandwidth, in the same unit.
    pub average: f64,
    /// Messages per microsecond.
    pub msg_rate: f64,
}

impl BwReport {
    /// Encodes the five messages.
    pub fn encode(&self) -> [[u8; 8]; 5] {
        [
            self.size.to_be_bytes(),
            self.iterations.to_be_bytes(),
            self.peak.to_be_bytes(),
            self.average.to_be_bytes(),
            self.msg_rate.to_be_bytes(),
        ]
    }

    /// Decodes the five messages; all values are valid.
    pub fn parse(messages: &[[u8; 8]; 5]) -> Self {
        let [size, iterations, peak, average, msg_rate] = *messages;
        Self {
            size: u64::from_be_bytes(size),
            iterations: u64::from_be_bytes(iterations),
            peak: f64::from_be_bytes(peak),
            average: f64::from_be_bytes(average),
            msg_rate: f64::from_be_bytes(msg_rate),
        }
    }
}

/// One side of the handshake, after the parameters have been agreed upon.
///
/// [`Self::swap_destinations`], [`Self::start`] and [`Self::finish`] are the whole handshake; the methods
/// below them are the single steps of those three.
#[derive(Debug)]
pub struct Exchange<S> {
    stream: S,
    role: Role,
    test: Test,
    agreed: Agreed,
    local: Vec<Destination>,
    remote: Vec<Destination>,
}

impl<S: Read + Write> Exchange<S> {
    /// Performs the client's side of the exchange on a fresh connection, up to the message that agrees on the
    /// MTU.
    pub fn client(stream: S, config: &Config) -> Result<Self, ExchangeError> {
        Self::open(stream, Role::Client, config)
    }

    /// Performs the server's side on a fresh connection, up to the MTU.
    pub fn server(stream: S, config: &Config) -> Result<Self, ExchangeError> {
        Self::open(stream, Role::Server, config)
    }

    fn open(mut stream: S, role: Role, config: &Config) -> Result<Self, ExchangeError> {
        let mtu = encode_mtu(config.mtu)?;
        check_cycle(config)?;
        let s = &mut stream;
        parse_version(&swap(s, role, WHAT_VERSION, &encode_version())?)?;
        let cycle = swap(s, role, WHAT_CYCLE, &config.cycle_buffer.to_be_bytes())?;
        let cycle = parse_size(WHAT_CYCLE, &cycle)?;
        let line = parse_size(WHAT_CACHE, &swap(s, role, WHAT_CACHE, &config.cache_line.to_be_bytes())?)?;
        let mtu = parse_mtu(&swap(s, role, WHAT_MTU, &mtu)?)?;
        let agreed = Agreed {
            mtu: mtu.min(config.mtu),
            cycle_buffer: cycle.max(config.cycle_buffer),
            cache_line: line.max(config.cache_line),
        };
        Ok(Self { stream, role, test: config.test, agreed, local: Vec::new(), remote: Vec::new() })
    }

    /// Returns the parameters that both sides use.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Returns the role of this side.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the stream, for example to change its timeouts for the run.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the QPs that the peer has announced so far.
    pub fn remote(&self) -> &[Destination] {
        &self.remote
    }

    /// Swaps the data of all QPs and returns the peer's. The caller then connects the QPs and calls
    /// [`Self::start`].
    pub fn swap_destinations(&mut self, local: &[Destination]) -> Result<Vec<Destination>, ExchangeError> {
        in_range("number of QPs", local.len() as u64, 1, 1 << 14)?;
        for d in local {
            self.swap_destination(d)?;
        }
        Ok(self.remote.clone())
    }

    /// Performs the steps between connecting the QPs (and posting the receives) and the first packet of the
    /// run.
    pub fn start(&mut self) -> Result<(), ExchangeError> {
        if self.test.has_report() {
            self.confirm_destinations()?;
        } else {
            self.barrier()?;
            self.confirm_destinations()?;
        }
        self.barrier()
    }

    /// Performs the steps after the run. `local` is this side's report, which counts if this side is the
    /// client. Returns the peer's report in the tests that have one; it is meaningful if the peer is the
    /// client.
    ///
    /// The server of a bandwidth test with RDMA or atomics calls this right after [`Self::start`]; the call
    /// returns when the run has ended. For the server of `ib_write_lat` it returns when the client has closed
    /// the connection.
    pub fn finish(mut self, local: &BwReport) -> Result<Option<BwReport>, ExchangeError> {
        if self.test == Test::WriteLat {
            if self.role == Role::Server {
                self.wait_for_close()?;
            }
            return Ok(None);
        }
        self.barrier()?;
        let mut report = None;
        if self.test.has_report() {
            report = Some(self.report(local)?);
            self.barrier()?;
        }
        self.done()?;
        Ok(report)
    }

    /// Swaps the data of one more QP and returns the peer's.
    pub fn swap_destination(&mut self, local: &Destination) -> Result<Destination, ExchangeError> {
        match self.role {
            Role::Client => {
                self.send_destination(local)?;
                self.recv_destination()
            }
            Role::Server => {
                let remote = self.recv_destination()?;
                self.send_destination(local)?;
                Ok(remote)
            }
        }
    }

    /// The sending half of [`Self::swap_destination`]: the client's first one, the server's second one.
    pub fn send_destination(&mut self, local: &Destination) -> Result<(), ExchangeError> {
        write_message(&mut self.stream, WHAT_DEST, &local.encode()?)?;
        self.local.push(*local);
        Ok(())
    }

    /// The receiving half of [`Self::swap_destination`].
    pub fn recv_destination(&mut self) -> Result<Destination, ExchangeError> {
        let remote = Destination::parse(&read_message(&mut self.stream, WHAT_DEST)?)?;
        self.remote.push(remote);
        Ok(remote)
    }

    /// Waits for the peer to reach the same point.
    pub fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.confirm(0)
    }

    /// Swaps the data of all QPs a second time.
    pub fn confirm_destinations(&mut self) -> Result<(), ExchangeError> {
        (0..self.local.len()).try_for_each(|i| self.confirm(i))
    }

    /// Swaps QP `index`'s data once more and checks that the peer's is the same as before.
    fn confirm(&mut self, index: usize) -> Result<(), ExchangeError> {
        let (Some(local), Some(remote)) = (self.local.get(index), self.remote.get(index)) else {
            let value = index as u64;
            let max = (self.local.len().min(self.remote.len()) as u64).saturating_sub(1);
            return Err(ExchangeError::OutOfRange { what: "QP to confirm", value, min: 0, max });
        };
        let first = remote.encode()?;
        let second = swap(&mut self.stream, self.role, WHAT_DEST, &local.encode()?)?;
        if Destination::parse(&second)? != *remote {
            let text = |b: &[u8]| b.escape_ascii().to_string();
            return Err(ExchangeError::Changed { index, first: text(&first), second: text(&second) });
        }
        Ok(())
    }

    /// Swaps the results and returns the peer's.
    pub fn report(&mut self, local: &BwReport) -> Result<BwReport, ExchangeError> {
        let mut messages = [[0; 8]; 5];
        for (remote, local) in messages.iter_mut().zip(local.encode()) {
            *remote = swap(&mut self.stream, self.role, WHAT_REPORT, &local)?;
        }
        Ok(BwReport::parse(&messages))
    }

    /// Swaps the last message, in both directions at once. The peer does not read the local one and may close
    /// before it arrives, so a connection that is closed by now is no error; another message is.
    pub fn done(&mut self) -> Result<(), ExchangeError> {
        match write_message(&mut self.stream, WHAT_DONE, DONE) {
            Err(ExchangeError::Io { source, .. }) if is_disconnect(source.kind()) => return Ok(()),
            other => other?,
        }
        match read_message::<{ DONE.len() }>(&mut self.stream, WHAT_DONE) {
            Ok(b) if &b == DONE => Ok(()),
            Ok(b) => Err(ExchangeError::malformed(WHAT_DONE, "not \"done\"", &b)),
            Err(ExchangeError::Closed { .. }) => Ok(()),
            Err(ExchangeError::Io { source, .. }) if is_disconnect(source.kind()) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Waits for the peer to close the connection.
    pub fn wait_for_close(&mut self) -> Result<(), ExchangeError> {
        const WHAT: &str = "perftest end of connection";
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(ExchangeError::malformed(WHAT, "unexpected data", &byte)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_disconnect(e.kind()) => return Ok(()),
                Err(e) if is_timeout(&e) => {
                    return Err(ExchangeError::TimedOut { what: WHAT, got: 0, want: 0 });
                }
                Err(source) => return Err(ExchangeError::Io { what: WHAT, source }),
            }
        }
    }
}

fn is_disconnect(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe)
}

fn check_cycle(config: &Config) -> Result<(), ExchangeError> {
    in_range(WHAT_CYCLE, config.cycle_buffer.into(), 1, MAX_CYCLE.into())?;
    in_range(WHAT_CACHE, config.cache_line.into(), 1, MAX_CYCLE.into())?;
    Ok(())
}

/// Parses a size announced by the peer, on which the size of local buffers depends.
fn parse_size(what: &'static str, bytes: &[u8; 4]) -> Result<u32, ExchangeError> {
    let size = u32::from_be_bytes(*bytes);
    if (1..=MAX_CYCLE).contains(&size) {
        Ok(size)
    } else {
        Err(ExchangeError::malformed(what, format!("{size} is out of range"), bytes))
    }
}

/// Performs one step: swaps messages of the same length, the client's first.
fn swap<S: Read + Write, const N: usize>(
    stream: &mut S,
    role: Role,
    what: &'static str,
    local: &[u8; N],
) -> Result<[u8; N], ExchangeError> {
    if role == Role::Client {
        write_message(stream, what, local)?;
    }
    let remote = read_message(stream, what)?;
    if role == Role::Server {
        write_message(stream, what, local)?;
    }
    Ok(remote)
}

#[cfg(test)]
mod tests;
