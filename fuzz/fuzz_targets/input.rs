//! Input of the stateful targets.

/// Fuzz input, read byte by byte; reads past the end return zeros.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }
}

impl Input<'_> {
    /// Reports whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.u8()))
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.u8() as usize % n
    }

    pub fn chance(&mut self, one_in: u8) -> bool {
        self.u8() % one_in == 1
    }
}
