//! Speed of the analysis: writes a capture of WRITEs and their ACKs to a file, analyses it, and prints bytes and
//! packets per second and the process's peak memory.
//!
//! `cargo bench --package urxe-decode --profile dist [-- BYTES]`, by default 1 GB for each packet size.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use urxe::wire::{
    Aeth, Bth, Flow, Headers, ICRC_LEN, IpIdent, Mtu, Opcode, Psn, Qpn, RKey, Reth, Syndrome, frame, icrc,
};
use urxe_decode::{Capture, Report};

/// Packets per message; the last one asks for an ACK.
const MESSAGE: u32 = 16;

struct Writer {
    file: BufWriter<File>,
    time: u64,
    bytes: u64,
    packets: u64,
    frame: Vec<u8>,
}

impl Writer {
    fn packet(&mut self, flow: &Flow, headers: &Headers, payload: &[u8]) {
        self.frame.clear();
        let len = headers.len() + payload.len() + ICRC_LEN;
        frame::append_ip_udp(&mut self.frame, flow, 0, len);
        let start = self.frame.len();
        self.frame.resize(start + headers.len(), 0);
        headers.emit(&mut self.frame[start..]);
        self.frame.extend_from_slice(payload);
        self.frame.extend_from_slice(&[0; ICRC_LEN]);
        let right = icrc::compute(flow, 0, IpIdent::DONT_FRAGMENT, &self.frame[start..]);
        let end = self.frame.len() - ICRC_LEN;
        self.frame[end..].copy_from_slice(&right.to_le_bytes());
        self.time += 300;
        let len = self.frame.len() as u32;
        for field in [(self.time / 1_000_000_000) as u32, (self.time % 1_000_000_000) as u32, len, len] {
            self.file.write_all(&field.to_le_bytes()).unwrap();
        }
        self.file.write_all(&self.frame).unwrap();
        self.bytes += u64::from(len) + 16;
        self.packets += 1;
    }
}

/// Writes a capture of packets with `payload` bytes, and returns its numbers of bytes and packets.
fn write(path: &Path, payload: usize, size: u64) -> (u64, u64) {
    let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let (there, back) = (Flow::new(a, b, 0xc000), Flow::new(b, a, 0xc000));
    let file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    let mut writer = Writer { file, time: 0, bytes: 0, packets: 0, frame: Vec::new() };
    // pcap with nanoseconds, raw IP.
    let header = [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0];
    writer.file.write_all(&header).unwrap();
    let data = vec![0x5a; payload];
    let is_full = Mtu::from_bytes(payload).is_some();
    let mut psn = Psn::new(0);
    while writer.bytes < size {
        for index in 0..MESSAGE {
            let is_last = index + 1 == MESSAGE;
            // WRITE First, Middle and Last, or SEND Only.
            let opcode = match (is_full, index, is_last) {
                (false, ..) => 0x04,
                (true, 0, _) => 0x06,
                (true, _, true) => 0x08,
                (true, ..) => 0x07,
            };
            let bth = Bth {
                opcode: Opcode(opcode),
                dest_qp: Qpn::new(0x11),
                psn,
                ack_req: is_last,
                ..Bth::default()
            };
            let reth = Reth { va: 0x1000, rkey: RKey(7), dma_len: MESSAGE * payload as u32 };
            writer.packet(&there, &Headers { bth, reth, ..Headers::default() }, &data);
            psn = psn.next();
        }
        let bth = Bth { opcode: Opcode(0x11), dest_qp: Qpn::new(0x22), psn: psn.prev(), ..Bth::default() };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0 };
        writer.packet(&back, &Headers { bth, aeth, ..Headers::default() }, &[]);
    }
    writer.file.flush().unwrap();
    (writer.bytes, writer.packets)
}

/// Returns the greatest resident memory of this process so far, in MB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kb| kb / 1000)
}

fn main() {
    let size = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1_000_000_000);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("analysis.pcap");
    for payload in [4096, 56] {
        let (bytes, packets) = write(&path, payload, size);
        let start = Instant::now();
        let report = Report::read([Capture::open(&path)]);
        let seconds = start.elapsed().as_secs_f64();
        assert!(report.is_clean(), "{report}");
        println!(
            "payload of {payload:4} bytes: {:.2} GB/s, {:.2} million packets/s, peak memory {} MB",
            bytes as f64 / seconds / 1e9,
            packets as f64 / seconds / 1e6,
            peak_memory()
        );
    }
    std::fs::remove_file(&path).unwrap();
}
