//! Free buffers for packets in a simulated network.

/// Capacity of a buffer for a short packet, such as an acknowledgement, in bytes.
const SHORT: usize = 128;

/// Free buffers of two sizes, so that many packets in the network occupy little more memory than their bytes.
#[derive(Debug)]
pub(super) struct Buffers {
    short: Vec<Vec<u8>>,
    long: Vec<Vec<u8>>,
    /// Capacity of a buffer for a long packet.
    longest: usize,
}

impl Buffers {
    /// Returns buffers for packets of at most `longest` bytes.
    pub fn new(longest: usize) -> Buffers {
        Buffers { short: Vec::new(), long: Vec::new(), longest: longest.max(2 * SHORT) }
    }

    /// Returns an empty buffer with room for `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let (free, capacity) = match len <= SHORT {
            true => (&mut self.short, SHORT),
            false => (&mut self.long, self.longest),
        };
        free.pop().unwrap_or_else(|| Vec::with_capacity(capacity.max(len)))
    }

    /// Keeps a buffer for reuse.
    pub fn put(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        match buffer.capacity() < self.longest {
            true => self.short.push(buffer),
            false => self.long.push(buffer),
        }
    }
}
