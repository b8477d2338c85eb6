//! Input of captures: decompression, files that grow, and the buffer that packets are parsed from.

use std::io::{self, BufReader, Cursor, Read};
use std::ops::Range;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// Returns a reader of what `reader` contains, decompressed if it is compressed.
pub(super) fn decompressed(mut reader: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut start = [0; 4];
    let mut len = 0;
    while len < start.len() {
        match reader.read(&mut start[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let whole = Cursor::new(start[..len].to_vec()).chain(reader);
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(256 << 10, whole))),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let decoder = StreamingDecoder::new(BufReader::with_capacity(256 << 10, whole));
            Box::new(decoder.map_err(io::Error::other)?)
        }
        _ => Box::new(whole),
    })
}

/// Returns what a file that begins with `start` probably is.
pub(super) fn hint(start: &[u8]) -> &'static str {
    match start {
        [0x7f, b'E', b'L', b'F', ..] => " (a program)",
        [b'{' | b'[', ..] => " (JSON)",
        [b'P', b'K', ..] => " (a zip archive: unpack it)",
        [b'B', b'Z', b'h', ..] => " (bzip2: unpack it)",
        [0xfd, b'7', b'z', ..] => " (xz: unpack it)",
        [b's', b'n', b'o', b'o', b'p', ..] => " (snoop: `editcap` converts it)",
        _ => "",
    }
}

/// Largest block that the buffer holds.
const MAX_BLOCK: usize = 64 << 20;

/// Bytes that were read and not parsed yet.
pub(super) struct Buffer {
    source: Box<dyn Read>,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn new(source: Box<dyn Read>) -> Buffer {
        Buffer { source, bytes: vec![0; 1 << 20], start: 0, end: 0 }
    }

    /// Returns what is not consumed yet.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Consumes bytes, and returns their position. They stay readable until the next [`fill`](Self::fill).
    pub(super) fn consume(&mut self, len: usize) -> usize {
        self.start += len;
        self.start - len
    }

    /// Returns consumed bytes by their position.
    pub(super) fn consumed(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Reads more bytes, and returns their number: 0 at the end.
    pub(super) fn fill(&mut self) -> io::Result<usize> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.bytes.len() {
            if self.end >= MAX_BLOCK {
                let text = format!("a block of more than {MAX_BLOCK} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            self.bytes.resize(2 * self.end, 0);
        }
        loop {
            match self.source.read(&mut self.bytes[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A decompressor at the end of a file that was cut: what it has decompressed is valid.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(e) => return Err(e),
            }
        }
    }
}
