//! Compares two ways to send payload from user memory: urxe's, which copies it into the packet in the pass
//! that computes the ICRC, and leaving it to the kernel to gather it. Prints the CPU time of both, and the
//! share of packets with a wrong ICRC if the memory changes during the send, which is permitted for memory
//! that a peer READs.

#[path = "support/raw.rs"]
#[allow(dead_code, reason = "each bench uses some of it")]
mod raw;

use std::io::{self, IoSlice};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crc32fast::Hasher;
use urxe::memory::{Access, Accessor, Buffer, Extent, HostSlice, PdId, Table};
use urxe::transport::{BurstLimits, TxQueue};
use urxe::wire::{BTH_LEN, Bth, Flow, Headers, ICRC_LEN, IpIdent, Opcode, Qpn, ROCE_PORT, icrc};

const PAYLOAD: usize = 4096;
const PACKETS: usize = 15;
const PACKET: usize = BTH_LEN + PAYLOAD + ICRC_LEN;
/// Bytes covered by the ICRC before the payload: masked link, IPv4 and UDP headers, and the BTH.
const COVERED_HEADERS: usize = 8 + 20 + 8 + BTH_LEN;

fn headers() -> Headers {
    Headers { bth: Bth { opcode: Opcode(0x01), ..Bth::default() }, ..Headers::default() }
}

fn flow() -> Flow {
    let ip: IpAddr = [127, 0, 0, 1].into();
    Flow::new(ip, ip, ROCE_PORT)
}

/// Registers the whole buffer and returns it as a slice to send from.
fn registered(buffer: &Buffer, table: &mut Table) -> HostSlice {
    let (len, access) = (buffer.len(), Access::ALL);
    // SAFETY: `main` owns both, and keeps the buffer until the last use of the table.
    let info =
        unsafe { table.register(PdId(1), Extent { addr: buffer.addr(), len, iova: 0, access }) }.unwrap();
    let accessor = Accessor { pd: PdId(1), qpn: Qpn::new(2) };
    table.local(accessor, info.lkey, 0, len as u32, Access::LOCAL_READ).unwrap()
}

/// urxe's method: the payload is copied while its ICRC is computed, and the kernel sends contiguous bytes.
struct Copied {
    queue: TxQueue,
    memory: HostSlice,
}

impl Copied {
    fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.queue.clear();
        self.queue.push_train(&flow(), headers(), self.memory, PAYLOAD);
        self.queue.bursts().try_for_each(|burst| socket.send(burst.bytes()).map(drop))
    }

    /// Returns the number of packets in a burst whose ICRC is wrong.
    fn corrupted(bytes: &[u8]) -> usize {
        let is_corrupted =
            |(i, packet): &(usize, &[u8])| !icrc::verify(&flow(), IpIdent::SENT, *i as u16, packet);
        bytes.chunks(PACKET).enumerate().filter(is_corrupted).count()
    }
}

/// The alternative: the ICRC is computed from user memory, and the kernel gathers each packet's header,
/// payload and ICRC.
struct Gathered<'m> {
    buffer: &'m Buffer,
    trailers: [[u8; ICRC_LEN]; PACKETS],
}

impl Gathered<'_> {
    fn icrc(payload: &[u8]) -> [u8; ICRC_LEN] {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; COVERED_HEADERS]);
        hasher.update(payload);
        hasher.finalize().to_le_bytes()
    }

    fn payload(&self, i: usize) -> &[u8] {
        // SAFETY: the range is inside the buffer, which outlives the slice. Another thread may write to it
        // meanwhile, which is the subject of this bench and the reason why the crate itself never makes such
        // a reference: the bytes are only hashed and passed to the kernel.
        unsafe {
            std::slice::from_raw_parts(
                std::ptr::with_exposed_provenance(self.buffer.addr() + i * PAYLOAD),
                PAYLOAD,
            )
        }
    }

    fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        for i in 0..PACKETS {
            self.trailers[i] = Gathered::icrc(self.payload(i));
        }
        let header = [0; BTH_LEN];
        let mut parts = [IoSlice::new(&[]); 3 * PACKETS];
        for (i, packet) in parts.chunks_mut(3).enumerate() {
            packet[0] = IoSlice::new(&header);
            packet[1] = IoSlice::new(self.payload(i));
            packet[2] = IoSlice::new(&self.trailers[i]);
        }
        // SAFETY: msghdr consists of integers and pointers, for which zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr().cast();
        message.msg_iovlen = parts.len();
        // SAFETY: the header and all buffers that it points to outlive the call.
        match unsafe { libc::sendmsg(socket.as_raw_fd(), &message, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn corrupted(bytes: &[u8]) -> usize {
        let is_corrupted = |packet: &&[u8]| {
            let (covered, trailer) = packet.split_at(packet.len() - ICRC_LEN);
            Gathered::icrc(&covered[BTH_LEN..]) != *trailer
        };
        bytes.chunks(PACKET).filter(is_corrupted).count()
    }
}

/// Sends bursts from memory that another thread changes concurrently, and returns the share of packets with a
/// wrong ICRC.
fn corrupted_fraction(
    memory: &Buffer,
    mut send: impl FnMut(&UdpSocket) -> io::Result<()>,
    corrupted: fn(&[u8]) -> usize,
) -> io::Result<f64> {
    const BURSTS: usize = 5000;
    let (tx, rx) = raw::segmented_pair(PACKET)?;
    let (done, mut buffer, mut corrupted_packets) = (AtomicBool::new(false), vec![0; 65_536], 0);
    thread::scope(|s| {
        s.spawn(|| {
            for n in 0.. {
                // One word of each packet changes, as in a ring of flags or counters.
                (0..PACKETS).for_each(|i| memory.store_u64(i * PAYLOAD + 2048, n).unwrap());
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let outcome = (0..BURSTS).try_for_each(|_| {
            send(&tx)?;
            let n = rx.recv(&mut buffer)?;
            corrupted_packets += corrupted(&buffer[..n]);
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        outcome.map(|()| corrupted_packets as f64 / (BURSTS * PACKETS) as f64)
    })
}

fn main() -> io::Result<()> {
    let (len, mut table) = (PACKETS * PAYLOAD, Table::new());
    let buffer = Buffer::zeroed(len);
    let memory = registered(&buffer, &mut table);
    let mut copied = Copied { queue: TxQueue::new(BurstLimits::SEGMENTED), memory };
    let mut gathered = Gathered { buffer: &buffer, trailers: [[0; ICRC_LEN]; PACKETS] };
    let mut received = vec![0; 65_536];
    for _ in 0..5 {
        let (tx, rx) = raw::segmented_pair(PACKET)?;
        let c = raw::cost(|| copied.send(&tx), || rx.recv(&mut received).map(drop))?;
        let g = raw::cost(|| gathered.send(&tx), || rx.recv(&mut received).map(drop))?;
        println!(
            "CPU time of sending {PACKETS} packets of {PAYLOAD} bytes: copied {} ns, gathered {} ns ({:.2} x)",
            c.send,
            g.send,
            g.send as f64 / c.send as f64
        );
    }
    let c = corrupted_fraction(&buffer, |tx| copied.send(tx), Copied::corrupted)?;
    let g = corrupted_fraction(&buffer, |tx| gathered.send(tx), Gathered::corrupted)?;
    println!(
        "memory modified while sending: packets with a wrong ICRC: copied {:.2} %, gathered {:.2} %",
        c * 100.0,
        g * 100.0
    );
    Ok(())
}
