//! Congestion control on fabrics in virtual time: DCQCN with CNPs from a script, and the delay-based control
//! against losses in a short queue. Needs nothing.

use std::time::Duration;

use urxe::verbs::*;
use urxe_test_support::cnp::{CnpLink, Cnps};
use urxe_test_support::nic::connect;

const LEN: usize = 1 << 20;
const TEN_GIGABIT: u64 = 10_000_000_000;

/// Two connected NICs, the first of which gets CNPs.
struct Network {
    fabric: Fabric,
    a: TestEndpoint,
    b: TestEndpoint,
    cnps: Cnps,
    source: Mr,
    target: Mr,
}

impl Network {
    fn new(congestion: Congestion) -> Network {
        let config = FabricConfig::default().bandwidth(TEN_GIGABIT).latency(Duration::from_micros(2)).seed(5);
        let fabric = Fabric::virtual_time(config).unwrap();
        let options = ContextOptions::default().congestion(congestion);
        let b = TestEndpoint::new(fabric.open(&options).unwrap()).unwrap();
        let (cnps, peer) = (Cnps::default(), b.context.gids()[0].ip());
        let port = fabric.port(&fabric.auto_address()).unwrap();
        let wrap = |inner| Box::new(CnpLink { inner, cnps: cnps.clone(), peer }) as Box<_>;
        let a = TestEndpoint::new(Context::on_port(port, &options, wrap).unwrap()).unwrap();
        connect(&a.qp, &b.qp);
        let (source, target) =
            (a.pd.reg_mr(LEN, Access::ALL).unwrap(), b.pd.reg_mr(LEN, Access::ALL).unwrap());
        Network { fabric, a, b, cnps, source, target }
    }

    /// Transfers `LEN` bytes `messages` times from the first NIC to the second, by WRITEs of the first or by
    /// READs of the second, with a CNP in every `interval` if one is given. Returns the goodput in bits
    /// per second.
    fn transfer(&self, by_read: bool, messages: u64, interval: Option<Duration>) -> f64 {
        let step = interval.unwrap_or(Duration::from_micros(20));
        let requester = if by_read { &self.b } else { &self.a };
        let begin = self.fabric.now();
        for id in 0..messages {
            let posted = match by_read {
                true => {
                    self.b.qp.post_send(&SendWr::read(id, &[self.target.sge(0..LEN)], self.source.remote(0)))
                }
                false => {
                    self.a.qp.post_send(&SendWr::write(id, &[self.source.sge(0..LEN)], self.target.remote(0)))
                }
            };
            posted.unwrap();
        }
        let mut completions = Vec::new();
        while completions.len() < messages as usize {
            if interval.is_some() {
                self.cnps.add(self.a.qp.endpoint().qpn);
            }
            self.fabric.advance(step);
            requester.cq.poll(64, &mut completions).unwrap();
            assert!(self.fabric.now().since(begin) < Duration::from_secs(60), "no progress");
        }
        assert!(completions.iter().all(|c| c.status == WcStatus::Success), "{completions:?}");
        let seconds = self.fabric.now().since(begin).as_secs_f64();
        let rate = (messages as usize * LEN * 8) as f64 / seconds;
        println!("{} of {messages} MiB: {:.3} Gb/s", if by_read { "READ" } else { "WRITE" }, rate / 1e9);
        rate
    }
}

#[test]
fn cnps_cut_the_rate_of_the_sender_and_it_recovers() {
    let congestion = "dcqcn:sigcomm15,rpg_ai_rate=400".parse().unwrap();
    for by_read in [false, true] {
        let network = Network::new(congestion);
        let before = network.transfer(by_read, 8, None);
        assert!(before > 0.9 * TEN_GIGABIT as f64, "{before}");
        let during = network.transfer(by_read, 2, Some(Duration::from_micros(50)));
        assert!(during < 0.3 * before, "{during} instead of {before}");
        let counters = network.a.context.counters();
        assert!(counters.rp_cnp_handled > 50 && counters.rp_cnp_ignored == 0, "{counters:?}");
        network.fabric.advance(Duration::from_millis(10));
        let after = network.transfer(by_read, 8, None);
        assert!((after / before - 1.0).abs() < 0.01, "{after} instead of {before}");
        assert_eq!(network.a.context.counters().retransmitted_pkts, 0);
    }
}

#[test]
fn maximum_rate_limits_the_sender_before_the_first_cnp() {
    for by_read in [false, true] {
        let rate =
            Network::new("dcqcn:connectx,rpg_max_rate=2000".parse().unwrap()).transfer(by_read, 8, None);
        assert!((1.7e9..=2.0e9).contains(&rate), "{rate}");
    }
}

#[test]
fn rates_with_cnps_are_the_same_in_every_run() {
    let run = || {
        let network = Network::new(Congestion::DCQCN_CONNECTX);
        let rates =
            [false, true].map(|by_read| network.transfer(by_read, 1, Some(Duration::from_micros(20))));
        (rates, network.fabric.now(), network.a.context.counters())
    };
    assert_eq!(run(), run());
}

#[test]
fn cnps_change_nothing_without_dcqcn() {
    let interval = Duration::from_micros(20);
    for text in ["none", "loss-driven", "delay,delay_target=1000"] {
        let congestion: Congestion = text.parse().unwrap();
        let network = Network::new(congestion);
        let rate = network.transfer(false, 8, Some(interval));
        assert!(rate > 0.9 * TEN_GIGABIT as f64, "{congestion}: {rate}");
        assert_eq!(network.a.context.counters().rp_cnp_handled, 0);
        assert!(network.a.context.counters().rp_cnp_ignored > 50);
    }
}

#[test]
fn delay_based_control_avoids_losses_in_a_short_queue() {
    // Two senders share a wire whose queue holds a third of one window.
    let lost = |congestion| {
        let config = FabricConfig::default()
            .bandwidth(1_000_000_000)
            .queue_bytes(300_000)
            .latency(Duration::from_micros(5))
            .seed(9);
        let fabric = Fabric::virtual_time(config).unwrap();
        let options = ContextOptions::default().congestion(congestion);
        let contexts: [Context; 3] = std::array::from_fn(|_| fabric.open(&options).unwrap());
        let receivers = [0, 1].map(|_| TestEndpoint::new(contexts[2].clone()).unwrap());
        let senders = [0, 1].map(|i| TestEndpoint::new(contexts[i].clone()).unwrap());
        let mut regions = Vec::new();
        for (sender, receiver) in senders.iter().zip(&receivers) {
            connect(&sender.qp, &receiver.qp);
            let source = sender.pd.reg_mr(LEN, Access::ALL).unwrap();
            regions.push((source, receiver.pd.reg_mr(LEN, Access::ALL).unwrap()));
        }
        let transfer = |messages: u64| {
            for (sender, (source, target)) in senders.iter().zip(&regions) {
                for id in 0..messages {
                    sender.qp.post_send(&SendWr::write(id, &[source.sge(0..LEN)], target.remote(0))).unwrap();
                }
            }
            for sender in &senders {
                (0..messages).for_each(|_| {
                    assert_eq!(sender.cq.wait(Duration::from_secs(60)).unwrap().status, WcStatus::Success);
                });
            }
        };
        transfer(8);
        let (warm, begin) = (fabric.counters().queue_full, fabric.now());
        transfer(16);
        let seconds = fabric.now().since(begin).as_secs_f64();
        let utilisation = (32 * LEN * 8) as f64 / seconds / 1e9;
        let lost = fabric.counters().queue_full - warm;
        println!("{congestion}: {lost} packets lost, utilisation {utilisation:.3}");
        (lost, utilisation)
    };
    let (lost_by_delay, utilisation) = lost("delay,delay_target=300".parse().unwrap());
    assert_eq!(lost_by_delay, 0);
    assert!(utilisation > 0.9, "{utilisation}");
    assert!(lost(Congestion::NONE).0 > 0);
}
