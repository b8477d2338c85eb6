//! Tests of multicast datagrams between urxe and the kernel's rxe in both directions, on every kind of link
//! and over both IP versions. Data and GRHs are checked on both sides. Needs the test guest; the tap links
//! need root.

use std::net::IpAddr;
use std::time::Duration;
use urxe::verbs::*;
use urxe_test_support::guest::{self, pattern};
use urxe_test_support::peer::{self, Shell, Side};
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

const QKEY: u32 = 0x1111_1111;
const SIZES: [usize; 5] = [0, 1, 255, 1024, 4096];
/// Offset of the data to send; the receive buffers begin at 0 and at [`SECOND`].
const SRC: usize = 64 << 10;
const SECOND: usize = 32 << 10;
/// How long to wait before concluding that no packet arrives.
const NO_PACKET_TIME: Duration = Duration::from_millis(300);

struct Case<'a> {
    setup: &'a Testbed,
    side: &'a Side,
    shell: &'a mut Shell,
    ip: Ip,
    group: IpAddr,
    qp: Qp,
}

type Outcome = Result<(), String>;

fn check_eq<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("{what} is {got:?}, expected {want:?}")) }
}

impl Case<'_> {
    fn gid(&self) -> Gid {
        self.group.into()
    }

    fn vsh(&mut self, line: &str) -> Result<guest::Reply, String> {
        self.shell.vsh.cmd(line).map_err(|e| e.message)
    }

    fn recv_at_urxe(&self, qp: &Qp, wr_id: u64, at: usize) {
        qp.post_recv(&RecvWr::new(wr_id, &[self.side.mr.sge(at..at + 5000)])).unwrap();
    }

    fn send_from_urxe(&self, len: usize, seed: u8) {
        let av = AddressVector::to(self.gid()).sgid_index(self.side.gid_index(self.ip.of(self.setup.host)));
        let ah = self.side.pd.create_ah(&av).unwrap();
        self.side.mr.write(SRC, &pattern(len, seed)).unwrap();
        let sge = [self.side.mr.sge(SRC..SRC + len)];
        let to = Some(ah.to(Qpn::MULTICAST, QKey(QKEY)));
        self.qp.post_send(&SendWr::send(99, &sge).to(to)).unwrap();
    }

    fn send_from_rxe(&mut self, len: usize, seed: u8) -> Outcome {
        let sgid = self.setup.guest.gid_index(&self.ip.of(1).to_string()).map_err(|e| e.message)?;
        let gid = self.gid();
        self.vsh(&format!("pattern m {SRC} {len} {seed}"))?;
        self.vsh(&format!("send u m {SRC} {len} gid={gid} qpn=0xffffff qkey={QKEY:#x} sgid={sgid} id=99"))?;
        Ok(())
    }

    /// Returns `n` local completions, sorted by `wr_id`.
    fn urxe_completions(&self, n: usize) -> Result<Vec<Completion>, String> {
        let mut got = self.side.poll(n, peer::TIMEOUT);
        if got.len() < n {
            let state = (self.side.context.counters(), self.side.context.link_state());
            return Err(format!("urxe has {} completions of {n}: {got:?}; {state:?}", got.len()));
        }
        got.sort_by_key(|wc| wc.wr_id);
        Ok(got)
    }

    fn rxe_completions(&mut self, n: usize) -> Result<Vec<guest::Wc>, String> {
        let mut got = self.shell.vsh.poll(n, peer::TIMEOUT).map_err(|e| e.message)?;
        check_eq("rxe's number of completions", got.len(), n)?;
        got.sort_by_key(|wc| wc.wr_id);
        Ok(got)
    }

    /// Checks the contents of a receive buffer: the GRH of a datagram from host `n` to the group, then the
    /// data.
    fn check(&self, receiver: &str, bytes: &[u8], n: u8, len: usize, seed: u8) -> Outcome {
        let flow = grh::flow(bytes[..grh::LEN].try_into().unwrap()).ok_or(format!("{receiver}: no GRH"))?;
        check_eq(&format!("{receiver}: source"), flow.src, self.ip.of(n))?;
        check_eq(&format!("{receiver}: destination"), flow.dst, self.group)?;
        if bytes[grh::LEN..] != pattern(len, seed) {
            return Err(format!("{receiver}: wrong data"));
        }
        Ok(())
    }

    fn check_urxe(&self, wc: &Completion, at: usize, from: u8, len: usize, seed: u8) -> Outcome {
        check_eq("urxe's status", wc.status, WcStatus::Success)?;
        check_eq("urxe's length", wc.byte_len as usize, grh::LEN + len)?;
        let mut bytes = vec![0; grh::LEN + len];
        self.side.mr.read(at, &mut bytes).unwrap();
        self.check("urxe", &bytes, from, len, seed)
    }

    fn check_rxe(&mut self, wc: &guest::Wc, at: usize, from: u8, len: usize, seed: u8) -> Outcome {
        check_eq("rxe's status", wc.status.as_str(), "SUCCESS")?;
        check_eq("rxe's length", wc.len as usize, grh::LEN + len)?;
        let bytes = self.shell.vsh.get("m", at, grh::LEN + len).map_err(|e| e.message)?;
        self.check("rxe", &bytes, from, len, seed)
    }

    /// Sends datagrams in both directions to a group with two QPs on each side and checks every copy,
    /// including the sender's own; then checks that detached QPs receive none.
    fn run(&mut self) -> Outcome {
        let gid = self.gid();
        let second = ud_qp(self.side);
        for name in ["u", "v"] {
            let _ = self.shell.vsh.raw(&format!("destroy {name}"));
            self.vsh(&format!("qp {name} ud"))?;
            self.vsh(&format!("connect {name}"))?;
            self.vsh(&format!("attach {name} gid={gid} ip={}", u8::from(name == "u")))?;
        }
        self.qp.attach_mcast(gid).map_err(|e| e.to_string())?;
        second.attach_mcast(gid).map_err(|e| e.to_string())?;
        for (i, len) in SIZES.into_iter().enumerate() {
            for from_urxe in [true, false] {
                let seed = (i * 2 + usize::from(from_urxe)) as u8;
                self.recv_at_urxe(&self.qp, 1, 0);
                self.recv_at_urxe(&second, 2, SECOND);
                self.vsh("recv u m 0 5000 id=1")?;
                self.vsh(&format!("recv v m {SECOND} 5000 id=2"))?;
                let from = if from_urxe { self.setup.host } else { 1 };
                if from_urxe {
                    self.send_from_urxe(len, seed);
                } else {
                    self.send_from_rxe(len, seed)?;
                }
                let (at_urxe, at_rxe) = (
                    self.urxe_completions(2 + usize::from(from_urxe))?,
                    self.rxe_completions(2 + usize::from(!from_urxe))?,
                );
                for (wr_id, at) in [(1, 0), (2, SECOND)] {
                    self.check_urxe(&at_urxe[wr_id - 1], at, from, len, seed)?;
                    self.check_rxe(&at_rxe[wr_id - 1], at, from, len, seed)?;
                }
            }
        }
        // Datagrams to a group after the QPs were detached are not received.
        self.qp.detach_mcast(gid).map_err(|e| e.to_string())?;
        second.detach_mcast(gid).map_err(|e| e.to_string())?;
        self.recv_at_urxe(&self.qp, 1, 0);
        self.vsh("recv u m 0 5000 id=1")?;
        self.send_from_rxe(10, 1)?;
        self.rxe_completions(2)?;
        check_eq("urxe's completions", self.side.poll(1, NO_PACKET_TIME), vec![])?;
        for name in ["u", "v"] {
            self.vsh(&format!("detach {name} gid={gid} ip={}", u8::from(name == "v")))?;
        }
        self.vsh("recv u m 0 5000 id=1")?;
        self.send_from_urxe(10, 1);
        self.urxe_completions(1)?;
        let got = self.shell.vsh.poll(1, NO_PACKET_TIME).map_err(|e| e.message)?;
        check_eq("rxe's completions", got, vec![])
    }
}

fn ud_qp(side: &Side) -> Qp {
    let options = QpOptions::default().qp_type(QpType::Ud);
    let qp = side.pd.create_qp(&side.cq, &side.cq, &options).unwrap();
    qp.activate(QKey(QKEY)).unwrap();
    qp
}

fn check_ip_versions(via: LinkKind) {
    let setup = Testbed::start(via);
    compare_limits(&setup);
    let mut shell = setup.shell(1 << 17);
    let mut failed = Vec::new();
    for (ip, group) in [(Ip::V4, "239.9.8.7"), (Ip::Ula, "ff15::987")] {
        let side = setup.open(ip);
        let qp = ud_qp(&side);
        let mut case =
            Case { setup: &setup, side: &side, shell: &mut shell, ip, group: group.parse().unwrap(), qp };
        match case.run() {
            Ok(()) => {
                eprintln!(
                    "{via}, {ip}: {} sizes to {group} in both directions, two members each: ok",
                    SIZES.len()
                )
            }
            Err(e) => failed.push(format!("{via}, {ip}: {e}")),
        }
        let c = side.counters();
        let errors =
            [c.rx_icrc_err, c.rx_malformed(), c.rx_not_multicast, c.rx_pkey_violation, c.rx_wrong_state];
        if errors != [0; 5] || side.context.link_state().0.tx_unresolved != 0 {
            failed.push(format!("{via}, {ip}: {c:?}, {:?}", side.context.link_state()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Checks that the multicast limits of the personality `rxe` are those of the guest's rxe.
fn compare_limits(setup: &Testbed) {
    let output = setup.guest.exec("ibv_devinfo -v -d rxe0", peer::TIMEOUT).unwrap().stdout;
    let limit = |name: &str| -> u32 {
        let line = output.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {output}")).trim().parse().unwrap()
    };
    let ours = Personality::RXE.limits;
    let ours = [ours.max_mcast_grp, ours.max_mcast_qp_attach, ours.max_total_mcast_qp_attach];
    assert_eq!(["max_mcast_grp", "max_mcast_qp_attach", "max_total_mcast_qp_attach"].map(limit), ours);
}

#[test]
fn multicast_is_delivered_over_datagram_frames() {
    check_ip_versions(LinkKind::Dgram);
}

#[test]
fn multicast_is_delivered_over_packet_socket_with_interface_addresses() {
    check_ip_versions(LinkKind::Packet);
}

#[test]
fn multicast_is_delivered_over_packet_socket_with_own_stack() {
    check_ip_versions(LinkKind::PacketHostStack);
}

#[test]
fn multicast_is_delivered_over_udp_socket() {
    check_ip_versions(LinkKind::Udp);
}
