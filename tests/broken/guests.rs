//! Recorders with rxe at both ends, in two guests on a wire.

use std::time::Duration;

use urxe_test_support::guest::{Guest, GuestConfig, Reply, Vsh};
use urxe_test_support::wire::{End, Fault, Wire};

use super::corpus::shot::{Shot, from_pcap};
use super::{Error, Result};

/// Time limit of a completion, long because the guests are emulated.
const LIMIT: Duration = Duration::from_secs(20);
/// Addresses of client and server, IPv4 and IPv6.
const CLIENT: [&str; 2] = ["10.77.0.1", "fd77::1"];
const SERVER: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// MAC address of the client.
const CLIENT_MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 1];

/// The guests, started for the first case that needs them.
#[derive(Default)]
pub struct Peers(Option<Guests>);

struct Guests {
    a: Guest,
    b: Guest,
    wire: Wire,
}

/// Shells in both guests, each with a region `m` and, once connected, a queue pair `q`.
struct Ends<'g> {
    guests: &'g Guests,
    a: Vsh,
    b: Vsh,
    /// Address and R_Key of the server's region.
    remote: String,
}

impl Peers {
    /// Records the packets of a case on the wire.
    pub fn record(&mut self, name: &str) -> Result<Vec<Shot>> {
        if self.0.is_none() {
            self.0 = Some(Guests::start()?);
        }
        let guests = self.0.as_ref().expect("started above");
        let file = tempfile::NamedTempFile::new()?;
        // Queue pairs and neighbours come first: the capture begins with the first RoCE packet.
        guests.wire.record(file.path())?;
        guests.run(name)?;
        std::thread::sleep(Duration::from_millis(100)); // for late responses
        guests.wire.stop_recording();
        guests.wire.clear();
        Ok(from_pcap(&std::fs::read(file.path())?, CLIENT_MAC))
    }
}

impl Guests {
    fn start() -> Result<Guests> {
        let wire = Wire::start()?;
        let start = |end, n| Guest::start(GuestConfig::new(wire.net(end), n));
        let (a, b) = std::thread::scope(|s| {
            let b = s.spawn(|| start(End::B, 2));
            (start(End::A, 1), b.join().expect("booting guest 2 panicked"))
        });
        Ok(Guests { a: a?, b: b?, wire })
    }

    fn run(&self, name: &str) -> Result<()> {
        if name == "rxe-no-listener" {
            self.a.check("! ucmatose -s 10.77.0.2 -C 1 -c 1 -p 7999", LIMIT)?;
            return Ok(());
        }
        let mut ends = Ends::new(self)?;
        match name {
            "rxe-unknown-qp" => ends.unknown_qp(),
            "rxe-not-ready-655-ms" => ends.not_ready(),
            "rxe-remote-access" => ends.remote_access(),
            "rxe-wrong-qkey" => ends.wrong_qkey(),
            "rxe-retry-exceeded" => ends.retry_exceeded(),
            "rxe-path-mtu-differs" => ends.path_mtu(),
            "rxe-no-receive-left" => ends.no_receive_left(),
            other => Err(format!("no recorder for {other}").into()),
        }
    }
}

impl<'g> Ends<'g> {
    fn new(guests: &'g Guests) -> Result<Ends<'g>> {
        let (mut a, mut b) = (guests.a.vsh()?, guests.b.vsh()?);
        a.cmd("mr m 65536")?;
        a.cmd("pattern m 0 65536 0")?;
        let m = b.cmd("mr m 65536")?;
        let remote = at(&m);
        Ok(Ends { guests, a, b, remote })
    }

    /// Creates a queue pair on each side, and connects the two with the given keys.
    fn connect(&mut self, name: &str, ip: usize, keys: [&str; 2]) -> Result<()> {
        let qa = self.a.cmd(&format!("qp {name} rc"))?.get("qpn").to_string();
        let qb = self.b.cmd(&format!("qp {name} rc"))?.get("qpn").to_string();
        let gid = |ip: &str| if ip.contains(':') { ip.to_string() } else { format!("::ffff:{ip}") };
        let sgids = [self.guests.a.gid_index(CLIENT[ip])?, self.guests.b.gid_index(SERVER[ip])?];
        let psns = [0x4_31b5, 0x9f_0e12];
        let line = |qpn: &str, peer, side: usize| {
            let (sgid, rq, sq, keys) = (sgids[side], psns[1 - side], psns[side], keys[side]);
            format!("connect {name} qpn={qpn} gid={} sgid={sgid} rq_psn={rq} sq_psn={sq} {keys}", gid(peer))
        };
        self.a.cmd(&line(&qb, SERVER[ip], 0))?;
        self.b.cmd(&line(&qa, CLIENT[ip], 1))?;
        Ok(())
    }

    /// Executes a command of the client, with `REMOTE` replaced by the server's region, and waits for its
    /// status.
    fn expect(&mut self, line: &str, status: &str) -> Result<()> {
        self.a.cmd(&line.replace("REMOTE", &self.remote))?;
        self.completes(status)
    }

    fn completes(&mut self, status: &str) -> Result<()> {
        match self.a.poll(1, LIMIT)?.pop() {
            Some(wc) if wc.status == status => Ok(()),
            other => Err(Error::from(format!("expected {status}, got {:?}", other.map(|wc| wc.status)))),
        }
    }

    fn recvs(&mut self, qp: &str, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| Ok(self.b.cmd(&format!("recv {qp} m 0 4096")).map(drop)?))
    }

    fn unknown_qp(&mut self) -> Result<()> {
        self.connect("q", 0, ["timeout=13 retry=4", ""])?;
        self.recvs("q", 3)?;
        for _ in 0..2 {
            self.expect("send q m 0 200", "SUCCESS")?;
        }
        self.b.cmd("destroy q")?;
        self.connect("p", 0, ["", ""])?;
        self.a.cmd("send q m 0 200")?;
        self.expect("write p m 0 400 REMOTE", "SUCCESS")?;
        self.completes("RETRY_EXC_ERR")
    }

    fn not_ready(&mut self) -> Result<()> {
        self.connect("q", 0, ["timeout=18", "rnr=0"])?;
        self.recvs("q", 1)?;
        self.expect("send q m 0 300", "SUCCESS")?;
        self.a.cmd("send q m 0 300")?;
        self.b.cmd("sleep 30")?;
        self.recvs("q", 1)?;
        self.completes("SUCCESS")
    }

    fn remote_access(&mut self) -> Result<()> {
        self.connect("q", 0, ["timeout=18", ""])?;
        let old = self.b.cmd("mr old 8192")?;
        for len in [100, 500] {
            self.expect(&format!("write q m 0 {len} {}", at(&old)), "SUCCESS")?;
        }
        self.b.cmd("destroy old")?;
        self.b.cmd("mr new 8192")?;
        self.expect(&format!("write q m 0 300 {}", at(&old)), "REM_ACCESS_ERR")
    }

    fn wrong_qkey(&mut self) -> Result<()> {
        let mut qpns = Vec::new();
        for vsh in [&mut self.a, &mut self.b] {
            qpns.push(vsh.cmd("qp q ud")?.get("qpn").to_string());
            vsh.cmd("connect q qkey=0x11111111 sq_psn=0x77")?;
        }
        let sgids = [self.guests.a.gid_index(CLIENT[0])?, self.guests.b.gid_index(SERVER[0])?];
        let request = format!("send q m 0 64 gid=::ffff:{} qpn={} sgid={}", SERVER[0], qpns[1], sgids[0]);
        let answer = format!("send q m 0 64 gid=::ffff:{} qpn={} sgid={}", CLIENT[0], qpns[0], sgids[1]);
        self.recvs("q", 8)?;
        for _ in 0..3 {
            self.a.cmd("recv q m 4096 4096")?;
            self.expect(&request, "SUCCESS")?;
            self.b.poll(1, LIMIT)?;
            self.b.cmd(&answer)?;
            self.b.poll(1, LIMIT)?;
            self.completes("SUCCESS")?;
        }
        for _ in 0..4 {
            self.expect(&format!("{request} qkey=0x22222222"), "SUCCESS")?;
            self.a.cmd("sleep 50")?;
        }
        Ok(())
    }

    fn retry_exceeded(&mut self) -> Result<()> {
        self.connect("q", 0, ["timeout=14 retry=3", ""])?;
        self.recvs("q", 2)?;
        self.expect("send q m 0 200", "SUCCESS")?;
        let all: Vec<_> = (1..=20).map(|n| (n, Fault::Drop)).collect();
        self.guests.wire.faults(End::A, &all);
        self.expect("send q m 0 200", "RETRY_EXC_ERR")
    }

    fn path_mtu(&mut self) -> Result<()> {
        self.connect("q", 1, ["timeout=18 mtu=1024", "timeout=18 mtu=256"])?;
        self.recvs("q", 3)?;
        self.expect("send q m 0 200", "SUCCESS")?;
        self.a.cmd("recv q m 8192 4096")?;
        self.b.cmd("send q m 0 600")?;
        self.completes("SUCCESS")?;
        self.expect("write q m 0 3000 REMOTE", "REM_INV_REQ_ERR")
    }

    fn no_receive_left(&mut self) -> Result<()> {
        self.connect("q", 0, ["timeout=18 rnr_retry=2", "rnr=18"])?;
        self.recvs("q", 2)?;
        for _ in 0..2 {
            self.expect("send q m 0 100", "SUCCESS")?;
        }
        self.expect("send q m 0 100", "RNR_RETRY_EXC_ERR")
    }
}

/// Returns address and R_Key of a region, as arguments of a one-sided operation.
fn at(region: &Reply) -> String {
    format!("addr={} rkey={}", region.get("addr"), region.get("rkey"))
}
