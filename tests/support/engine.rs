//! Helpers for NIC tests: registered memory between guard bytes, and encoded packets.

use urxe::memory::{Access, Extent, PdId, RegionInfo, Table};
use urxe::transport::{Sge, TxQueue};
use urxe::wire::{Flow, Headers, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Packet, icrc, pad_count};

pub use crate::cq::{TestCq, take_outputs};
pub use crate::rng::Rng;

pub const PD: PdId = PdId(1);

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xee;

/// Registered memory with guard bytes around it.
pub struct Region {
    base: *mut u8,
    layout: std::alloc::Layout,
    len: usize,
    pub iova: u64,
    pub info: RegionInfo,
}

impl Region {
    /// Registers `len` bytes that work requests and peers address from `iova` on. Their initial contents are
    /// [`pattern`].
    pub fn new(table: &mut Table, pd: PdId, len: usize, iova: u64, access: Access) -> Region {
        let layout = std::alloc::Layout::from_size_align(len + 2 * GUARD, 64).unwrap();
        // SAFETY: the size of the layout is above zero because of the guards.
        let base = unsafe { std::alloc::alloc(layout) };
        assert!(!base.is_null());
        // SAFETY: `base` is a live allocation of `layout.size()` bytes that only this function uses.
        unsafe { base.write_bytes(GUARD_BYTE, layout.size()) };
        let addr = base.expose_provenance() + GUARD;
        // SAFETY: the memory is freed only in `drop`, and every test stops using the NIC and the table when
        // it drops the region.
        let info = unsafe { table.register(pd, Extent { addr, len, iova, access }) }.unwrap();
        let region = Region { base, layout, len, iova, info };
        region.write(0, &(0..len).map(|i| pattern(i as u64)).collect::<Vec<_>>());
        region
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the virtual address of the first byte in this process.
    pub fn addr(&self) -> usize {
        self.base.expose_provenance() + GUARD
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: the range is in bounds, as checked above, and no other thread accesses the region.
        unsafe { self.base.add(GUARD + at).copy_to_nonoverlapping(out.as_mut_ptr(), len) };
        out
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: the range is in bounds, as checked above, and no other thread accesses the region.
        unsafe { self.base.add(GUARD + at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn va(&self, at: usize) -> u64 {
        self.iova + at as u64
    }

    pub fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.va(at), length, lkey: self.info.lkey }
    }

    /// Reports whether the guard bytes are unchanged.
    pub fn guards_intact(&self) -> bool {
        let is_intact = |at| {
            let mut b = [0; GUARD];
            // SAFETY: both guards are inside the allocation.
            unsafe { self.base.add(at).copy_to_nonoverlapping(b.as_mut_ptr(), GUARD) };
            b == [GUARD_BYTE; GUARD]
        };
        is_intact(0) && is_intact(GUARD + self.len)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` was allocated with this layout in `new` and is freed only here.
        unsafe { std::alloc::dealloc(self.base, self.layout) }
    }
}

/// Returns byte `i` of newly registered memory. The contents do not repeat from packet to packet, whatever
/// the packet size.
pub fn pattern(i: u64) -> u8 {
    (i * 7 + i / 251) as u8
}

/// Encodes a packet as a UDP payload, with padding and ICRC.
pub fn encode(headers: &Headers, payload: &[u8], flow: &Flow) -> Vec<u8> {
    let mut headers = *headers;
    headers.bth.pad = pad_count(payload.len()) as u8;
    let mut buf = [0; MAX_HEADERS_LEN];
    let n = headers.emit(&mut buf);
    let mut out = buf[..n].to_vec();
    out.extend_from_slice(payload);
    out.resize(out.len() + pad_count(payload.len()) + ICRC_LEN, 0);
    write_icrc(&mut out, flow);
    out
}

/// Computes a packet's ICRC, and stores it in the last four bytes.
pub fn write_icrc(bytes: &mut [u8], flow: &Flow) {
    let crc = icrc::compute(flow, 0, IpIdent::DONT_FRAGMENT, bytes);
    let at = bytes.len() - ICRC_LEN;
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Calls `each` with the flow and the bytes of every queued packet, and empties the queue. Each ICRC is
/// verified, and recomputed as if the packet were a burst of its own.
pub fn drain(tx: &mut TxQueue, mut each: impl FnMut(Flow, Vec<u8>)) {
    let mut bytes = Vec::new();
    for burst in tx.bursts() {
        bytes.clear();
        burst.copy_to(&mut bytes);
        for (i, packet) in bytes.chunks(burst.segment).enumerate() {
            assert!(
                icrc::verify(&burst.flow, IpIdent::SENT, i as u16, packet),
                "packet with an invalid ICRC"
            );
            let mut packet = packet.to_vec();
            write_icrc(&mut packet, &burst.flow);
            each(burst.flow, packet);
        }
    }
    tx.clear();
}

/// Decodes the headers and payload of a packet that the NIC has sent.
pub fn decode(bytes: &[u8]) -> (Headers, Vec<u8>) {
    let packet = Packet::parse(bytes).expect("the NIC sent a malformed packet");
    (packet.headers(), packet.payload().to_vec())
}
