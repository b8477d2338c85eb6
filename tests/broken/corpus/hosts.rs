//! Two hosts on a fabric in virtual time, each with a capture of its own between its NIC and the wire.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::{Faults, Rule};
use urxe::verbs::*;
use urxe_test_support::nic::Nic;

use super::shot::{self, Shot};

/// Time limit of waits, in virtual time.
pub const LIMIT: Duration = Duration::from_secs(600);
/// Length of the region of each host.
pub const REGION: usize = 256 << 10;

/// Configuration of the hosts. The client has number 1, the server number 2.
pub struct Setup {
    pub v6: bool,
    pub config: FabricConfig,
    pub options: [ContextOptions; 2],
    /// Rules between each host's capture and the wire: the capture shows sent packets before the rules apply,
    /// and received packets afterwards.
    pub wire: [Vec<Rule>; 2],
    /// Rules between each host's capture and its NIC.
    pub nic: [Vec<Rule>; 2],
}

impl Setup {
    /// Returns hosts without faults.
    pub fn new(seed: u64) -> Setup {
        let options = |n| {
            // The NICs wait for timers and go back N, as most do.
            ContextOptions::default().personality(Personality::STRICT).seed(seed ^ n)
        };
        Setup {
            v6: false,
            config: FabricConfig::default().latency(Duration::from_micros(5)).seed(seed),
            options: [options(1), options(2)],
            wire: Default::default(),
            nic: Default::default(),
        }
    }

    /// Returns hosts with rules between the captures and the wire.
    pub fn wire(seed: u64, client: &[&str], server: &[&str]) -> Setup {
        Setup { wire: [rules(client), rules(server)], ..Setup::new(seed) }
    }

    pub fn v6(self) -> Setup {
        Setup { v6: true, ..self }
    }

    pub fn address(&self, n: u8) -> IpAddr {
        match self.v6 {
            true => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n.into()).into(),
            false => [10, 77, 0, n].into(),
        }
    }

    /// Opens both hosts.
    pub fn open(self) -> Hosts {
        let addresses = [1, 2].map(|n| self.address(n));
        self.open_at(addresses)
    }

    /// Opens both hosts, with the given addresses.
    pub fn open_at(self, addresses: [IpAddr; 2]) -> Hosts {
        let fabric = Fabric::virtual_time(self.config.clone()).expect("a valid configuration");
        let tapes = [Tape::default(), Tape::default()];
        let host = |n: usize| {
            let port = fabric.port(&[addresses[n]]).expect("a free address");
            let context = Context::on_port(port, &self.options[n], |port| {
                let below = Faults::new(port, self.wire[n].clone(), 1);
                Box::new(Faults::new(tapes[n].file().capture(below, "nic"), self.nic[n].clone(), 1))
            });
            let access = Access::ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
            let nic = Nic::with_access(context.expect("a NIC"), REGION, access);
            let contents: Vec<u8> = (0..REGION).map(|i| (i + (i >> 8)) as u8 ^ n as u8).collect();
            nic.mr.write(0, &contents).expect("the region has this length");
            nic
        };
        let (a, b) = (host(0), host(1));
        Hosts { a, b, fabric, tapes }
    }
}

/// Parses rules of the fault language.
pub fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().expect("a rule")).collect()
}

/// Options of the connections: path MTU 256, so that captures are small, and a timeout of 4.2 ms.
pub fn options() -> ConnectOptions {
    ConnectOptions::default().mtu(Mtu::Mtu256).timeout(AckTimeout::new(10))
}

/// A capture in memory.
#[derive(Default)]
struct Tape {
    bytes: SharedBytes,
    file: Mutex<Option<CaptureFile>>,
}

impl Tape {
    fn file(&self) -> CaptureFile {
        let new = || CaptureFile::to_writer(self.bytes.clone(), Timestamps::Virtual).expect("memory");
        self.file.lock().get_or_insert_with(new).clone()
    }
}

/// Bytes that a writer appends to.
#[derive(Clone, Default)]
pub struct SharedBytes(Arc<Mutex<Vec<u8>>>);

impl SharedBytes {
    /// Returns the bytes written so far.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Write for SharedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Client `a` and server `b`.
pub struct Hosts {
    pub a: Nic,
    pub b: Nic,
    pub fabric: Fabric,
    tapes: [Tape; 2],
}

impl Hosts {
    /// Connects two new queue pairs with equal options.
    pub fn connect(&self, options: &ConnectOptions) -> (Qp, Qp) {
        self.connect_each([options, options])
    }

    /// Connects two new queue pairs, each with its own options.
    pub fn connect_each(&self, options: [&ConnectOptions; 2]) -> (Qp, Qp) {
        let (x, y) = (self.a.qp(QpType::Rc), self.b.qp(QpType::Rc));
        x.connect(&y.endpoint(), options[0]).expect("a new queue pair");
        y.connect(&x.endpoint(), options[1]).expect("a new queue pair");
        (x, y)
    }

    /// Posts a WRITE of the client to the start of the server's region.
    pub fn write(&self, qp: &Qp, len: usize) {
        self.post(qp, &SendWr::write(1, &[self.a.mr.sge(0..len)], self.b.mr.remote(0)));
    }

    /// Posts a SEND of the client.
    pub fn send(&self, qp: &Qp, len: usize) {
        self.post(qp, &SendWr::send(1, &[self.a.mr.sge(0..len)]));
    }

    /// Posts a READ of the client from the start of the server's region.
    pub fn read(&self, qp: &Qp, len: usize) {
        self.post(qp, &SendWr::read(1, &[self.a.mr.sge(0..len)], self.b.mr.remote(0)));
    }

    pub fn post(&self, qp: &Qp, wr: &SendWr<'_>) {
        qp.post_send(wr).expect("a work request that the queue pair takes");
    }

    /// Posts receives at the server.
    pub fn receives(&self, qp: &Qp, count: u64) {
        for id in 0..count {
            qp.post_recv(&RecvWr::new(id, &[self.b.mr.sge(0..8192)])).expect("room for the receive");
        }
    }

    /// Waits for successful completions of the client.
    pub fn done(&self, count: usize) {
        for _ in 0..count {
            self.a.cq.wait(LIMIT).expect("success");
        }
    }

    /// Waits for a completion of the client with an error.
    pub fn fails(&self, status: WcStatus) {
        assert_eq!(self.a.cq.wait_any(LIMIT).expect("a completion").status, status);
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.fabric.advance(time);
    }

    pub fn micros(&self, micros: u64) {
        self.pass(Duration::from_micros(micros));
    }

    /// Ends the hosts, and returns the captures of the client and of the server.
    pub fn captures(self) -> [Vec<Shot>; 2] {
        let Hosts { a, b, fabric, tapes } = self;
        drop((a, b, fabric));
        tapes.map(|tape| {
            let file = tape.file();
            file.flush().expect("memory takes every write");
            shot::from_pcapng(&tape.bytes.take())
        })
    }

    /// Like [`captures`](Self::captures), for a case that shows both ends.
    pub fn both(self) -> Vec<Vec<Shot>> {
        self.captures().into()
    }

    /// Returns the capture of the client.
    pub fn client(self) -> Vec<Vec<Shot>> {
        let [client, _] = self.captures();
        vec![client]
    }

    /// Returns the capture of the server.
    pub fn server(self) -> Vec<Vec<Shot>> {
        let [_, server] = self.captures();
        vec![server]
    }
}
