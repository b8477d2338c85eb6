//! Capture of a link's packets to a pcapng file.
//!
//! Packets are IP packets (link type RAW), each with its direction and, if a fault was applied to it, a
//! comment. Several links can share a [`CaptureFile`], in which each is a separate interface.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use super::faults::{Direction, FaultEvent};
use super::output::{self, Output};
use super::packets::{as_received, packets_of};
use super::rotation::Rotated;
pub use super::rotation::{ParseRotationError, Rotation};
use crate::burst::{RxBurst, TxQueue};
use crate::link::{HostMemory, Link, delegate_link_methods};
use crate::sys::thread::spawn_background;
use crate::transport::Instant;
use crate::wire::{BTH_LEN, Bth, Flow, IpIdent, frame};

/// Clock that timestamps are taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timestamps {
    /// The wall clock.
    Wall,
    /// The instants passed to the link, interpreted as time since the epoch; for simulations.
    Virtual,
}

/// Error when creating or writing a capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file cannot be created.
    #[error("cannot write the capture file {path}: {source}; use a path in a writable directory")]
    Create {
        /// The file.
        path: PathBuf,
        /// The underlying system error.
        source: io::Error,
    },
    /// The file header could not be written.
    #[error("cannot write the capture: {0}")]
    Write(io::Error),
    /// Some packets could not be written.
    #[error("{lost} packets are missing from {name}: {source}; the others are intact")]
    Incomplete {
        /// Name of the capture.
        name: String,
        /// Number of packets missing so far.
        lost: u64,
        /// Error from the first failed write.
        source: io::Error,
    },
}

/// Maximum number of pending comments. When it is exceeded, the oldest are dropped, because their packets may
/// never arrive.
const MAX_PENDING_COMMENTS: usize = 1024;

/// A pcapng file to which links write their packets. Clones refer to the same file.
///
/// The file is flushed when the last of its links and clones is dropped.
#[derive(Clone)]
pub struct CaptureFile(Arc<Mutex<Inner>>);

impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaptureFile({})", self.0.lock().name)
    }
}

/// Number of buffered bytes above which packets are written out.
const FLUSH_THRESHOLD: usize = 256 << 10;

struct Inner {
    name: String,
    output: Output,
    /// Block encoder, which also buffers packet blocks until they are written out.
    writer: PcapNgWriter<Vec<u8>>,
    /// Number of buffered packets.
    buffered: u64,
    /// Interface blocks not yet written, to which buffered packets may refer.
    interface_blocks: Vec<u8>,
    timestamps: Timestamps,
    interfaces: u32,
    /// Number of packets that could not be written.
    lost: u64,
    /// The first write error not yet reported by [`CaptureFile::flush`].
    error: Option<io::Error>,
    /// Function to call at the first write error.
    listener: Option<Listener>,
    /// Whether a stream has failed, so that nothing more is written.
    stopped: bool,
    /// Blocks that each file begins with: its header, and all interfaces.
    start: Vec<u8>,
    /// Path of the file, if it is one.
    path: Option<PathBuf>,
    rotated: Option<Rotated>,
    /// Scratch buffer for the packet being written.
    frame: Vec<u8>,
}

type Listener = Box<dyn FnOnce(&CaptureError) + Send>;

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}

fn create_error(path: &Path) -> impl FnOnce(io::Error) -> CaptureError {
    let path = path.to_owned();
    |source| CaptureError::Create { path, source }
}

impl CaptureFile {
    /// Creates a file, or replaces an existing one.
    ///
    /// # Errors
    /// [`CaptureError::Create`], also if another process captures to this file.
    pub fn create(path: impl AsRef<Path>, timestamps: Timestamps) -> Result<CaptureFile, CaptureError> {
        let path = path.as_ref();
        let created = output::replace(path).and_then(|file| CaptureFile::on_file(file, path, timestamps));
        created.map_err(create_error(path))
    }

    /// Creates a capture file for this process alone, for use when several processes are given the same path:
    /// the file at `path` if it is empty and not in use, otherwise one with the PID in its name. Also returns
    /// the file's path.
    ///
    /// # Errors
    /// [`CaptureError::Create`] if neither file can be created and written.
    pub fn create_own(path: impl AsRef<Path>) -> Result<(CaptureFile, PathBuf), CaptureError> {
        let path = path.as_ref();
        let created = output::claim(path, std::process::id())
            .and_then(|(file, own)| Ok((CaptureFile::on_file(file, &own, Timestamps::Wall)?, own)));
        created.map_err(create_error(path))
    }

    /// Empties a file before several processes pass its path to [`create_own`](Self::create_own).
    ///
    /// # Errors
    /// [`CaptureError::Create`] if the file cannot be created or emptied.
    pub fn clear(path: impl AsRef<Path>) -> Result<(), CaptureError> {
        let path = path.as_ref();
        output::clear(path).map_err(create_error(path))
    }

    /// Creates a capture that is written to `writer`, for example standard output, a pipe to Wireshark, or
    /// memory.
    ///
    /// # Errors
    /// [`CaptureError::Write`] if the file header cannot be written.
    pub fn to_writer(
        writer: impl Write + Send + 'static,
        timestamps: Timestamps,
    ) -> Result<CaptureFile, CaptureError> {
        let output = Output::Stream(Box::new(writer));
        CaptureFile::start(output, "the capture".into(), timestamps).map_err(CaptureError::Write)
    }

    fn on_file(file: File, path: &Path, timestamps: Timestamps) -> io::Result<CaptureFile> {
        let capture = CaptureFile::start(Output::new(file)?, path.display().to_string(), timestamps)?;
        capture.0.lock().path = Some(path.to_owned());
        Ok(capture)
    }

    /// Renames the file when it is large or old, to `out-00001.pcapng` if it is `out.pcapng`, and continues in a new one.
    /// A capture that is not a file has no limit. The size is exceeded by at most the packets that are buffered, 256 KiB.
    pub fn rotate(&self, rotation: Rotation) {
        let mut inner = self.0.lock();
        if let (Some(path), Output::File(..)) = (inner.path.clone(), &inner.output) {
            inner.rotated = Some(Rotated::new(rotation, path));
        }
    }

    fn start(output: Output, name: String, timestamps: Timestamps) -> io::Result<CaptureFile> {
        let mut inner = Inner {
            name,
            output,
            writer: PcapNgWriter::new(Vec::with_capacity(FLUSH_THRESHOLD)).map_err(io_error)?,
            buffered: 0,
            interface_blocks: Vec::new(),
            timestamps,
            interfaces: 0,
            lost: 0,
            error: None,
            listener: None,
            stopped: false,
            start: Vec::new(),
            path: None,
            rotated: None,
            frame: Vec::new(),
        };
        // Written at once, so that an unusable output is detected here.
        inner.output.append(inner.writer.get_ref())?;
        inner.start.extend(inner.writer.get_ref());
        inner.writer.get_mut().clear();
        Ok(CaptureFile(Arc::new(Mutex::new(inner))))
    }

    /// Sets a function to call when a write first fails.
    pub fn on_failure(&self, listener: impl FnOnce(&CaptureError) + Send + 'static) {
        self.0.lock().listener = Some(Box::new(listener));
    }

    /// Wraps a link so that its packets are captured, as an interface called `name`.
    pub fn capture<L: Link>(&self, link: L, name: &str) -> Capture<L> {
        self.interface(name, &link.info().name).capture(link)
    }

    /// Adds an interface called `name` for the packets of `link`, and returns the handle that captures them.
    pub fn interface(&self, name: &str, link: &str) -> CaptureHandle {
        let interface = self.0.lock().add_interface(name, link);
        CaptureHandle { file: self.clone(), interface, pending_comments: Arc::default() }
    }

    /// Starts a thread that writes out buffered packets periodically as long as the file exists, for programs
    /// that may exit without flushing.
    ///
    /// # Errors
    /// [`CaptureError::Write`] if the thread cannot be created.
    pub fn flush_every(&self, period: Duration) -> Result<(), CaptureError> {
        let file = Arc::downgrade(&self.0);
        let run = move || {
            while let Some(file) = file.upgrade() {
                file.lock().write_out();
                drop(file);
                thread::sleep(period);
            }
        };
        spawn_background("urxe-capture".into(), run).map(drop).map_err(CaptureError::Write)
    }

    /// Writes out buffered packets.
    ///
    /// # Errors
    /// [`CaptureError::Incomplete`] if packets were lost since the last call.
    pub fn flush(&self) -> Result<(), CaptureError> {
        let mut inner = self.0.lock();
        inner.write_out();
        match inner.error.take() {
            None => Ok(()),
            Some(source) => Err(inner.incomplete(source)),
        }
    }
}

impl Inner {
    fn write_out(&mut self) {
        let packets = std::mem::take(&mut self.buffered);
        if self.stopped {
            self.lost += packets;
        } else if let Err(e) = self.append() {
            self.lost += packets;
            self.fail(e);
        }
        self.writer.get_mut().clear();
    }

    fn append(&mut self) -> io::Result<()> {
        if !self.interface_blocks.is_empty() {
            self.output.append(&self.interface_blocks)?;
            self.interface_blocks.clear();
        }
        match self.writer.get_ref() {
            packets if packets.is_empty() => Ok(()),
            packets => self.output.append(packets).and_then(|()| self.rotate_if_due()),
        }
    }

    /// Continues in a new file if the current one has reached a limit.
    fn rotate_if_due(&mut self) -> io::Result<()> {
        let (Some(rotated), Output::File(_, len)) = (&mut self.rotated, &self.output) else { return Ok(()) };
        if !rotated.is_due(*len) {
            return Ok(());
        }
        rotated.rename()?;
        self.output = Output::new(output::replace(rotated.path())?)?;
        self.output.append(&self.start)
    }

    fn fail(&mut self, error: io::Error) {
        self.stopped |= !self.output.is_recoverable();
        if let Some(listener) = self.listener.take() {
            let copy = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            listener(&self.incomplete(copy));
        }
        self.error.get_or_insert(error);
    }

    fn incomplete(&self, source: io::Error) -> CaptureError {
        CaptureError::Incomplete { name: self.name.clone(), lost: self.lost, source }
    }

    fn add_interface(&mut self, name: &str, description: &str) -> u32 {
        let mut block = InterfaceDescriptionBlock::new(DataLink::RAW, 0);
        block.options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
            InterfaceDescriptionOption::IfDescription(Cow::Owned(description.to_owned())),
            // The timestamp resolution as a power of ten: nanoseconds.
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        let packets = self.writer.get_ref().len();
        match self.writer.write_pcapng_block(block) {
            Ok(_) => {
                self.start.extend(&self.writer.get_ref()[packets..]);
                self.interface_blocks.extend(self.writer.get_mut().drain(packets..));
            }
            Err(e) => self.fail(io_error(e)),
        }
        self.interfaces += 1;
        self.interfaces - 1
    }

    fn time(&self, now: Instant) -> Duration {
        match self.timestamps {
            Timestamps::Virtual => Duration::from_nanos(now.0),
            Timestamps::Wall => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        }
    }

    fn write(
        &mut self,
        interface: u32,
        at: Duration,
        direction: Direction,
        packet: &RxBurst<'_>,
        comment: Option<String>,
    ) {
        let too_long = packet.data.len() + packet.flow.header_len() > u16::MAX as usize;
        // No link can carry such a packet, and no IP header can describe it.
        if too_long || packet.flow.src.is_ipv4() != packet.flow.dst.is_ipv4() {
            return;
        }
        if self.stopped {
            self.lost += 1;
            return;
        }
        self.frame.clear();
        let (id, flags) = id_and_flags(packet.ident);
        frame::append_ip_udp(&mut self.frame, &packet.flow, id, packet.data.len());
        if packet.flow.dst.is_ipv4() && flags != IpIdent::DONT_FRAGMENT {
            set_flags(&mut self.frame, flags);
        }
        self.frame.extend_from_slice(packet.data);
        let flags = match direction {
            Direction::Rx => 1,
            Direction::Tx => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        options.extend(comment.map(|c| EnhancedPacketOption::Comment(Cow::Owned(c))));
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: at,
            original_len: self.frame.len() as u32,
            data: Cow::Borrowed(&self.frame),
            options,
        };
        match self.writer.write_pcapng_block(block) {
            Ok(_) => self.buffered += 1,
            Err(e) => {
                self.lost += 1;
                self.fail(io_error(e));
            }
        }
        if self.writer.get_ref().len() >= FLUSH_THRESHOLD {
            self.write_out();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // `drop` cannot return an error; a caller that needs it has called `flush` before.
        self.write_out();
    }
}

/// Sets the flags and fragment offset in the IPv4 header at the start of `frame`, and updates the checksum.
fn set_flags(frame: &mut [u8], flags: u16) {
    let header = &mut frame[..20];
    header[6..8].copy_from_slice(&flags.to_be_bytes());
    let checksum = frame::ipv4_checksum(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the IPv4 identification and flags; if unknown, those that urxe itself sends.
fn id_and_flags(ident: IpIdent) -> (u16, u16) {
    match ident {
        IpIdent::Exact { id, flags } => (id, flags),
        IpIdent::Unknown | IpIdent::Elided => (0, IpIdent::DONT_FRAGMENT),
    }
}

/// A comment whose packet has not yet been written.
struct PendingComment {
    direction: Direction,
    /// The packet, if a fault has dropped it. If it does not reach the capture, it is written from here.
    dropped: Option<(Flow, IpIdent, Bytes)>,
    /// The packet's BTH, which identifies it.
    bth: Bytes,
    text: String,
}

/// Handle to a running capture, usable from any thread.
#[derive(Clone)]
pub struct CaptureHandle {
    file: CaptureFile,
    interface: u32,
    pending_comments: Arc<Mutex<Vec<PendingComment>>>,
}

impl CaptureHandle {
    /// Captures the packets of a link, or of another shard's link, as this interface.
    pub fn capture<L: Link>(&self, link: L) -> Capture<L> {
        Capture { inner: link, handle: self.clone() }
    }

    /// Adds a comment to the packet that a fault was applied to. To be called from the observer of a
    /// [`super::faults::Faults`] that wraps this capture or is wrapped by it. Dropped packets are written
    /// even if they do not reach the capture.
    pub fn comment(&self, event: &FaultEvent<'_>) {
        let mut pending_comments = self.pending_comments.lock();
        if pending_comments.len() == MAX_PENDING_COMMENTS {
            pending_comments.remove(0);
        }
        let direction = event.rule.direction;
        let dropped = event.rule.action.is_loss().then(|| (event.flow, event.ident, event.packet.clone()));
        pending_comments.push(PendingComment {
            direction,
            dropped,
            bth: event.packet.slice(..BTH_LEN.min(event.packet.len())),
            text: format!("fault {}, packet {}", event.rule, event.count),
        });
    }

    /// Removes the pending comments for a packet and returns them joined.
    fn take_comments(&self, direction: Direction, data: &[u8]) -> Option<String> {
        let mut pending_comments = self.pending_comments.lock();
        if pending_comments.is_empty() {
            return None;
        }
        let mut texts: Vec<String> = Vec::new();
        pending_comments.retain_mut(|n| {
            let matches = n.direction == direction && data.starts_with(&n.bth);
            if matches {
                texts.push(std::mem::take(&mut n.text));
            }
            !matches
        });
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Returns the time of packets that are passed on now.
    fn time(&self, now: Instant) -> Duration {
        self.file.0.lock().time(now)
    }

    fn write(&self, at: Duration, direction: Direction, burst: &RxBurst<'_>) {
        let mut inner = self.file.0.lock();
        let (id, flags) = id_and_flags(burst.ident);
        let burst = RxBurst { ident: IpIdent::Exact { id, flags }, ..*burst };
        for packet in packets_of(&burst) {
            self.write_dropped(&mut inner, at, direction, |dropped| {
                precedes(dropped, packet.data) && !packets_of(&burst).any(|p| p.data.starts_with(dropped))
            });
            let comment = self.take_comments(direction, packet.data);
            inner.write(self.interface, at, direction, &packet, comment);
        }
    }

    /// Writes all packets that were dropped before they reached the capture.
    fn write_all_dropped(&self, at: Duration, direction: Direction) {
        self.write_dropped(&mut self.file.0.lock(), at, direction, |_| true);
    }

    /// Writes the packets that were dropped before they reached the capture, and whose BTH satisfies the condition.
    fn write_dropped(
        &self,
        inner: &mut Inner,
        at: Duration,
        direction: Direction,
        is_due: impl Fn(&[u8]) -> bool,
    ) {
        self.pending_comments.lock().retain_mut(|pending| {
            let is_due = pending.direction == direction && is_due(&pending.bth);
            let Some((flow, ident, data)) = pending.dropped.take_if(|_| is_due) else { return true };
            let packet = RxBurst::new(flow, ident, data.len(), &data);
            inner.write(self.interface, at, direction, &packet, Some(std::mem::take(&mut pending.text)));
            false
        });
    }
}

/// Reports whether a dropped packet comes before another one of the same queue pair.
fn precedes(dropped: &[u8], next: &[u8]) -> bool {
    let bth = |bytes: &[u8]| (bytes.len() >= BTH_LEN).then(|| Bth::read(bytes));
    let (Some(dropped), Some(next)) = (bth(dropped), bth(next)) else { return false };
    dropped.dest_qp == next.dest_qp && dropped.psn.is_before(next.psn)
}

/// A link wrapper that captures packets.
///
/// Each packet is written after it was passed on, so that faults applied to it further on appear in its
/// comment. Wrap a link as `Faults<Capture<L>>` to capture what is on the wire, and as `Capture<Faults<L>>`
/// to capture what the NIC sees.
pub struct Capture<L> {
    inner: L,
    handle: CaptureHandle,
}

impl<L: Link> Capture<L> {
    /// Returns a handle to the capture, usable while a NIC owns the link.
    pub fn handle(&self) -> CaptureHandle {
        self.handle.clone()
    }
}

impl<L: Link> Link for Capture<L> {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        // The receiver on a fabric may capture a packet before this call ends.
        let at = self.handle.time(now);
        self.inner.transmit(now, queue)?;
        for burst in queue.bursts() {
            self.handle.write(at, Direction::Tx, &as_received(&burst));
        }
        self.handle.write_all_dropped(at, Direction::Tx);
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let handle = &self.handle;
        let received = self.inner.receive(now, &mut |burst| {
            let at = handle.time(now);
            sink(burst);
            handle.write(at, Direction::Rx, &burst);
        })?;
        handle.write_all_dropped(handle.time(now), Direction::Rx);
        Ok(received)
    }

    delegate_link_methods!(self => self.inner, HostMemory::with_icrcs, all);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use crate::fabric::{Fabric, FabricConfig, FabricPort};
    use crate::middleware::faults::Faults;
    use crate::wire::{Bth, Headers, Opcode, Packet, Psn, icrc};

    /// An in-memory writer whose contents stay accessible. A write that would exceed the given size fails.
    #[derive(Clone)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut buffer = self.0.lock();
            if buffer.len() + bytes.len() > self.1 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            buffer.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(PartialEq, Eq, Debug)]
    struct Row {
        interface: u32,
        at: Duration,
        inbound: bool,
        id: u16,
        psn: u32,
        intact: bool,
        comment: String,
    }

    fn rows(bytes: &[u8]) -> (Vec<String>, Vec<Row>) {
        let mut reader = PcapNgReader::new(bytes).unwrap();
        let (mut names, mut rows) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(b) => {
                    assert_eq!(b.linktype, DataLink::RAW);
                    names.extend(b.options.iter().find_map(|o| match o {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    }));
                }
                Block::EnhancedPacket(b) => rows.push(row(&b)),
                other => panic!("{other:?}"),
            }
        }
        (names, rows)
    }

    fn row(b: &EnhancedPacketBlock<'_>) -> Row {
        let sliced = etherparse::SlicedPacket::from_ip(&b.data).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else { panic!("no IPv4") };
        let ip = ip.header();
        assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
        let bth = &b.data[28..];
        let flow = Flow::new(ip.source_addr().into(), ip.destination_addr().into(), 50_000);
        let id = ip.identification();
        let flags = u16::from_be_bytes([b.data[6], b.data[7]]);
        let mut row = Row {
            interface: b.interface_id,
            at: b.timestamp,
            inbound: false,
            id,
            psn: Packet::parse(bth).unwrap().bth().psn.get(),
            intact: icrc::verify(&flow, IpIdent::Exact { id, flags }, 0, bth),
            comment: String::new(),
        };
        for option in &b.options {
            match option {
                EnhancedPacketOption::Flags(flags) => row.inbound = *flags == 1,
                EnhancedPacketOption::Comment(text) => row.comment = text.to_string(),
                _ => {}
            }
        }
        row
    }

    fn pair() -> (FabricPort, FabricPort) {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let a = fabric.port(&fabric.auto_address()).unwrap();
        (a, fabric.port(&fabric.auto_address()).unwrap())
    }

    fn send(from: &mut dyn Link, to: &dyn Link, now: Instant, psns: std::ops::Range<u32>) {
        let flow = Flow::new(from.info().addresses[1], to.info().addresses[1], 50_000);
        let mut q = TxQueue::new(from.info().burst);
        for psn in psns {
            let bth = Bth { opcode: Opcode(0x04), psn: Psn::new(psn), ..Bth::default() };
            q.push(&flow, Headers { bth, ..Headers::default() }, &[psn as u8; 33]);
        }
        from.transmit(now, &q).unwrap();
    }

    fn buffer(room: usize) -> (SharedBuffer, CaptureFile) {
        let buffer = SharedBuffer(Arc::default(), room);
        let file = CaptureFile::to_writer(buffer.clone(), Timestamps::Virtual).unwrap();
        (buffer, file)
    }

    #[test]
    fn both_ends_of_a_link_are_captured_to_the_same_file() {
        let (buffer, file) = buffer(usize::MAX);
        let (a, b) = pair();
        let (mut a, mut b) = (file.capture(a, "left"), file.capture(b, "right"));
        send(&mut a, &b, Instant(5_000_000_007), 8..10);
        b.receive(Instant(6_000_000_000), &mut |_| {}).unwrap();
        file.flush().unwrap();
        let (names, rows) = rows(&buffer.0.lock());
        assert_eq!(names, ["left", "right"]);
        let row = |interface, at, id, psn| Row {
            interface,
            at: Duration::from_nanos(at),
            inbound: interface == 1,
            id,
            psn,
            intact: true,
            comment: String::new(),
        };
        let (sent, received) = (5_000_000_007, 6_000_000_000);
        assert_eq!(
            rows,
            [row(0, sent, 0, 8), row(0, sent, 1, 9), row(1, received, 0, 8), row(1, received, 1, 9)]
        );
    }

    /// Sends packets with PSNs 1 to 4 through links with faults at both ends. Returns the interface, the PSN,
    /// whether the ICRC is valid, and the comment of each captured packet.
    fn with_faults(at_nic: bool) -> Vec<(u32, u32, bool, String)> {
        let (buffer, file) = buffer(usize::MAX);
        let (a, b) = pair();
        let tx: Vec<_> = ["drop=2", "corrupt=3"].map(|r| r.parse().unwrap()).into();
        let rx: Vec<_> = ["rx:drop=1"].map(|r| r.parse().unwrap()).into();
        let (mut a, mut b): (Box<dyn Link>, Box<dyn Link>) = if at_nic {
            // The capture is created last, so the observers get its handle through a cell.
            let cells: [Arc<Mutex<Option<CaptureHandle>>>; 2] = Default::default();
            let wrap = |link, rules, cell: &Arc<Mutex<Option<CaptureHandle>>>, name| {
                let handle = cell.clone();
                let observer = move |e: &FaultEvent<'_>| handle.lock().as_ref().unwrap().comment(e);
                let capture = file.capture(Faults::new(link, rules, 0).with_observer(observer), name);
                *cell.lock() = Some(capture.handle());
                capture
            };
            (Box::new(wrap(a, tx, &cells[0], "a")), Box::new(wrap(b, rx, &cells[1], "b")))
        } else {
            let wrap = |link, rules, name| {
                let capture = file.capture(link, name);
                let handle = capture.handle();
                Faults::new(capture, rules, 0).with_observer(move |e| handle.comment(e))
            };
            (Box::new(wrap(a, tx, "a")), Box::new(wrap(b, rx, "b")))
        };
        send(&mut a, &b, Instant(0), 1..5);
        b.receive(Instant(0), &mut |_| {}).unwrap();
        drop((a, b));
        file.flush().unwrap();
        let bytes = buffer.0.lock();
        rows(&bytes).1.into_iter().map(|r| (r.interface, r.psn, r.intact, r.comment)).collect()
    }

    #[test]
    fn captures_at_wire_and_at_nic_mark_faults_in_packet_comments() {
        let dropped = || "fault drop=2, packet 2".to_owned();
        let corrupted = || "fault corrupt=3, packet 3".to_owned();
        let rx_dropped = || "fault rx:drop=1, packet 1".to_owned();
        let none = String::new;
        // At the wire: the dropped packet never arrives there, and is added in its place.
        let tx =
            [(0, 1, true, none()), (0, 2, true, dropped()), (0, 3, false, corrupted()), (0, 4, true, none())];
        let rx = [(1, 1, true, rx_dropped()), (1, 3, false, none()), (1, 4, true, none())];
        assert_eq!(with_faults(false), [&tx[..], &rx[..]].concat());
        // At the NIC: all packets as the NIC sent them.
        let tx =
            [(0, 1, true, none()), (0, 2, true, dropped()), (0, 3, true, corrupted()), (0, 4, true, none())];
        let rx = [(1, 1, true, rx_dropped()), (1, 3, false, none()), (1, 4, true, none())];
        assert_eq!(with_faults(true), [&tx[..], &rx[..]].concat());
    }

    #[test]
    fn set_flags_updates_the_header_checksum() {
        let mut frame = Vec::new();
        let flow = Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 1);
        frame::append_ip_udp(&mut frame, &flow, 0x1234, 16);
        set_flags(&mut frame, 0);
        let (ip, _) = etherparse::Ipv4Header::from_slice(&frame).unwrap();
        assert!(!ip.dont_fragment);
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    }

    #[test]
    fn write_errors_are_reported_once_and_stop_only_the_capture() {
        let missing = Path::new("/nonexistent/dir/x.pcapng");
        let error = CaptureFile::create(missing, Timestamps::Wall).err().unwrap();
        assert!(error.to_string().starts_with("cannot write the capture file /nonexistent/dir/x.pcapng"));
        let (_, file) = buffer(1000);
        let (a, mut b) = pair();
        let mut a = file.capture(a, "a");
        send(&mut a, &b, Instant(0), 0..100);
        assert!(matches!(file.flush(), Err(CaptureError::Incomplete { lost: 100, .. })));
        assert!(file.flush().is_ok());
        send(&mut a, &b, Instant(0), 0..100);
        assert_eq!(b.receive(Instant(0), &mut |_| {}).unwrap(), 200);
    }

    #[test]
    fn dropping_the_last_link_completes_the_capture_file() {
        let path = std::env::temp_dir().join(format!("urxe-capture-{}.pcapng", std::process::id()));
        let (a, b) = pair();
        let mut a = CaptureFile::create(&path, Timestamps::Wall).unwrap().capture(a, "a");
        send(&mut a, &b, Instant(0), 0..7);
        drop(a);
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_, rows) = rows(&bytes);
        assert_eq!(rows.len(), 7);
        assert!(rows[0].at > Duration::from_secs(1_700_000_000));
    }
}
