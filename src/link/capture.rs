//! What a link carries, written to a pcapng file as it happens.
//!
//! Packets are IP packets (link type RAW), each with its direction and, where a fault struck it, a comment.
//! Several links can share a [`CaptureFile`]; each is an interface of its own in it.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use super::faults::{Action, Direction, FaultEvent};
use super::{Link, LinkCounters, LinkInfo, RxBurst};
use crate::transport::{Instant, TxQueue};
use crate::wire::{BTH_LEN, Flow, IpIdent, frame};

/// Which clock the packets' times are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timestamps {
    /// The wall clock's.
    Wall,
    /// The instants that the link is called with, as of a simulation, since the epoch.
    Virtual,
}

/// Why a capture does not work, or stopped to.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be made.
    #[error("cannot write the capture file {path}: {source}; name a file in a directory you may write to")]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Writing failed; nothing more is captured.
    #[error("the capture stopped: {0}; what was written before is good")]
    Write(io::Error),
}

/// Comments that wait for their packet, beyond which the oldest go: packets may never come.
const MAX_NOTES: usize = 1024;

/// A pcapng file that links write to. Clones are the same file.
///
/// It is flushed when the last of its links and clones is gone.
#[derive(Clone)]
pub struct CaptureFile(Arc<Mutex<Inner>>);

type Output = BufWriter<Box<dyn Write + Send>>;

struct Inner {
    writer: PcapNgWriter<Output>,
    timestamps: Timestamps,
    interfaces: u32,
    /// The first write error, until it is asked for.
    error: Option<io::Error>,
    /// Nothing is written any more.
    stopped: bool,
    /// A packet as it goes to the file.
    frame: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}

impl CaptureFile {
    /// Creates (or replaces) a file.
    ///
    /// # Errors
    /// [`CaptureError::Create`].
    pub fn create(path: impl AsRef<Path>, timestamps: Timestamps) -> Result<CaptureFile, CaptureError> {
        let path = path.as_ref();
        let create = |source| CaptureError::Create { path: path.to_owned(), source };
        let file = File::create(path).map_err(create)?;
        CaptureFile::start(Box::new(file), timestamps).map_err(create)
    }

    /// Writes to anything: standard output, a pipe to Wireshark, memory.
    ///
    /// # Errors
    /// [`CaptureError::Write`].
    pub fn to_writer(
        writer: impl Write + Send + 'static,
        timestamps: Timestamps,
    ) -> Result<CaptureFile, CaptureError> {
        CaptureFile::start(Box::new(writer), timestamps).map_err(CaptureError::Write)
    }

    fn start(output: Box<dyn Write + Send>, timestamps: Timestamps) -> io::Result<CaptureFile> {
        let mut writer = PcapNgWriter::new(BufWriter::with_capacity(256 << 10, output)).map_err(io_error)?;
        // So that what is wrong with the output shows now.
        writer.get_mut().flush()?;
        let inner =
            Inner { writer, timestamps, interfaces: 0, error: None, stopped: false, frame: Vec::new() };
        Ok(CaptureFile(Arc::new(Mutex::new(inner))))
    }

    /// Captures a link from now on, under `name`.
    pub fn capture<L: Link>(&self, link: L, name: &str) -> Capture<L> {
        let interface = lock(&self.0).add_interface(name, &link.info().name);
        let handle = CaptureHandle { file: self.clone(), interface, notes: Arc::default() };
        Capture { inner: link, handle, scratch: Vec::new() }
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`CaptureError::Write`], of this or of an earlier write; each is reported once.
    pub fn flush(&self) -> Result<(), CaptureError> {
        let mut inner = lock(&self.0);
        if !inner.stopped
            && let Err(e) = inner.writer.get_mut().flush()
        {
            inner.stop(e);
        }
        inner.error.take().map_or(Ok(()), |e| Err(CaptureError::Write(e)))
    }
}

impl Inner {
    fn stop(&mut self, error: io::Error) {
        self.stopped = true;
        self.error.get_or_insert(error);
    }

    fn add_interface(&mut self, name: &str, description: &str) -> u32 {
        let mut block = InterfaceDescriptionBlock::new(DataLink::RAW, 0);
        block.options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
            InterfaceDescriptionOption::IfDescription(Cow::Owned(description.to_owned())),
            // Powers of ten: nanoseconds.
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        if !self.stopped
            && let Err(e) = self.writer.write_pcapng_block(block)
        {
            self.stop(io_error(e));
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

    fn write(&mut self, interface: u32, at: Duration, packet: &Captured<'_>, comment: Option<String>) {
        let too_long = packet.data.len() + packet.flow.header_len() > u16::MAX as usize;
        // No link can carry such a packet, and no IP header describe it.
        if self.stopped || too_long || packet.flow.src.is_ipv4() != packet.flow.dst.is_ipv4() {
            return;
        }
        self.frame.clear();
        frame::append_ip_udp(&mut self.frame, &packet.flow, packet.id, packet.data.len());
        if packet.flow.dst.is_ipv4() && packet.flags != IpIdent::DONT_FRAGMENT {
            set_flags(&mut self.frame, packet.flags);
        }
        self.frame.extend_from_slice(packet.data);
        let direction = match packet.direction {
            Direction::Rx => 1,
            Direction::Tx => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        options.extend(comment.map(|c| EnhancedPacketOption::Comment(Cow::Owned(c))));
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: at,
            original_len: self.frame.len() as u32,
            data: Cow::Borrowed(&self.frame),
            options,
        };
        if let Err(e) = self.writer.write_pcapng_block(block) {
            self.stop(io_error(e));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.stopped {
            // Nobody is left to tell; whoever cares has flushed before.
            let _ = self.writer.get_mut().flush();
        }
    }
}

/// Puts other flags into the IPv4 header at the start of `frame`, and the checksum right again.
fn set_flags(frame: &mut [u8], flags: u16) {
    let header = &mut frame[..20];
    header[6..8].copy_from_slice(&flags.to_be_bytes());
    header[10..12].fill(0);
    let sum: u32 = header.chunks(2).map(|b| u16::from_be_bytes([b[0], b[1]]) as u32).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

/// A packet to be written.
struct Captured<'a> {
    direction: Direction,
    flow: Flow,
    id: u16,
    flags: u16,
    data: &'a [u8],
}

/// A comment that waits for its packet.
struct Note {
    direction: Direction,
    /// Of a packet that does not get here: it is written with its comment all the same.
    dropped: Option<(Flow, Vec<u8>)>,
    /// What the packet is known by.
    bth: Vec<u8>,
    text: String,
}

/// What a running capture can be told, from anywhere.
#[derive(Clone)]
pub struct CaptureHandle {
    file: CaptureFile,
    interface: u32,
    notes: Arc<Mutex<Vec<Note>>>,
}

impl CaptureHandle {
    /// As [`CaptureFile::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&self) -> Result<(), CaptureError> {
        self.file.flush()
    }

    /// Comments the packet that a fault struck: for the observer of a [`super::faults::Faults`] that wraps
    /// this capture or is wrapped by it. A dropped packet that does not come by here is written too.
    pub fn comment(&self, event: &FaultEvent<'_>) {
        let mut notes = lock(&self.notes);
        if notes.len() == MAX_NOTES {
            notes.remove(0);
        }
        let direction = event.rule.direction;
        let dropped = (event.rule.action == Action::Drop).then(|| (event.flow, event.packet.to_vec()));
        notes.push(Note {
            direction,
            dropped,
            bth: event.packet[..BTH_LEN.min(event.packet.len())].to_vec(),
            text: format!("fault {}, packet {}", event.rule, event.count),
        });
    }

    /// The comments for a packet, joined.
    fn take_notes(&self, direction: Direction, data: &[u8]) -> Option<String> {
        let mut notes = lock(&self.notes);
        if notes.is_empty() {
            return None;
        }
        let mut texts: Vec<String> = Vec::new();
        notes.retain_mut(|n| {
            let mine = n.direction == direction && data.starts_with(&n.bth);
            if mine {
                texts.push(std::mem::take(&mut n.text));
            }
            !mine
        });
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    fn write(&self, inner: &mut Inner, at: Duration, packet: &Captured<'_>) {
        let comment = self.take_notes(packet.direction, packet.data);
        inner.write(self.interface, at, packet, comment);
    }

    /// Writes packets that were dropped before they got here.
    fn write_dropped(&self, direction: Direction, now: Instant) {
        let mut notes = lock(&self.notes);
        if notes.is_empty() {
            return;
        }
        let mut inner = lock(&self.file.0);
        let at = inner.time(now);
        notes.retain_mut(|note| {
            let Some((flow, data)) = note.dropped.take_if(|_| note.direction == direction) else {
                return true;
            };
            let packet = Captured { direction, flow, id: 0, flags: IpIdent::DONT_FRAGMENT, data: &data };
            inner.write(self.interface, at, &packet, Some(std::mem::take(&mut note.text)));
            false
        });
    }
}

/// A link whose packets are captured.
///
/// Each packet is written after it was passed on, so that what happens to it further on can be noted in
/// its comment: wrap a link as `Faults<Capture<L>>` to see what is on the wire, as `Capture<Faults<L>>` to
/// see what the NIC sees.
pub struct Capture<L> {
    inner: L,
    handle: CaptureHandle,
    scratch: Vec<u8>,
}

impl<L: Link> Capture<L> {
    /// What the capture can be told while the link is inside a NIC.
    pub fn handle(&self) -> CaptureHandle {
        self.handle.clone()
    }
}

impl<L: Link> Link for Capture<L> {
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)?;
        {
            let mut file = lock(&self.handle.file.0);
            let at = file.time(now);
            for burst in queue.bursts() {
                self.scratch.clear();
                burst.copy_to(&mut self.scratch);
                for (i, data) in self.scratch.chunks(burst.segment.max(1)).enumerate() {
                    let (id, flags) = (i as u16, IpIdent::DONT_FRAGMENT);
                    let packet = Captured { direction: Direction::Tx, flow: burst.flow, id, flags, data };
                    self.handle.write(&mut file, at, &packet);
                }
            }
        }
        self.handle.write_dropped(Direction::Tx, now);
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let handle = &self.handle;
        let received = self.inner.receive(now, &mut |burst| {
            sink(burst);
            let (first, flags) = match burst.ident {
                IpIdent::Exact { id, flags } => (id, flags),
                // What every urxe sends; another peer's is not to be seen on this link.
                IpIdent::Unknown => (0, IpIdent::DONT_FRAGMENT),
            };
            let mut file = lock(&handle.file.0);
            let at = file.time(now);
            for (i, data) in burst.packets() {
                let id = first.wrapping_add(i);
                let packet = Captured { direction: Direction::Rx, flow: burst.flow, id, flags, data };
                handle.write(&mut file, at, &packet);
            }
        })?;
        handle.write_dropped(Direction::Rx, now);
        Ok(received)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}
