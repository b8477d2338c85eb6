//! DCQCN between two NICs in network namespaces: the sender's interface marks ECN-capable packets above a
//! rate. Needs root and nftables.

use std::time::{Duration, Instant};

use urxe::link::LinkSpec;
use urxe::verbs::*;
use urxe_test_support::netns::{self, Veth};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Length of a WRITE in bytes.
const LEN: usize = 64 << 10;
/// Number of WRITEs in flight.
const DEPTH: u64 = 16;
/// Number of WRITEs.
const COUNT: u64 = 320;
/// Congestion control whose first cut leads to 100 Mbit/s and whose increases are small, so that the rate is
/// soon near the one above which packets are marked.
const CONTROL: &str = "dcqcn:sigcomm15,rate_to_set_on_first_cnp=100,rpg_byte_reset=0,rpg_time_reset=1500,\
                       rpg_ai_rate=1,rpg_hai_rate=2";
/// Rate above which packets are marked, in megabytes per second.
const MARKED_ABOVE: u32 = 5;

/// Makes the first side's interface mark ECN-capable packets above the rate.
fn mark(net: &Veth) {
    let rule = |ip| {
        format!(
            "add rule netdev congestion out udp dport 4791 {ip} ecn ect0 \
             limit rate over {MARKED_ABOVE} mbytes/second burst 100 kbytes {ip} ecn set ce"
        )
    };
    let chain = "add chain netdev congestion out { type filter hook egress device v0 priority 0; }";
    for command in ["add table netdev congestion", chain, &rule("ip"), &rule("ip6")] {
        let out = net.sides[0].command("nft").arg(command).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success(),
            "this test needs nftables (tests/install netns); nft {command}: {error}"
        );
    }
}

fn open(net: &Veth, side: usize, link: &str, options: &ContextOptions) -> TestEndpoint {
    let link: LinkSpec = link.parse().unwrap();
    let links = net.sides[side].run(|| link.bind(1).unwrap_or_else(|e| panic!("{link}: {e}")));
    TestEndpoint::new(Context::open_shards(links, options).unwrap()).unwrap()
}

/// Counters of both sides, and the throughput in megabytes per second.
struct Transfer {
    sender: Counters,
    receiver: Counters,
    rate: f64,
}

/// Writes to the second side's region, checks its contents, and prints the throughput over time.
fn transfer(net: &Veth, links: [&str; 2], receiver: Personality) -> Transfer {
    let dcqcn = ContextOptions::default().congestion(CONTROL.parse().unwrap());
    let sides = [dcqcn.clone(), dcqcn.personality(receiver)];
    let [a, b] = [0, 1].map(|side| open(net, side, links[side], &sides[side]));
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
    let [from, to] = [&a, &b].map(|side| side.pd.reg_mr(LEN * DEPTH as usize, Access::ALL).unwrap());
    let data: Vec<u8> = (0..LEN * DEPTH as usize).map(|i| (i * 7 + i / 256) as u8).collect();
    from.write(0, &data).unwrap();
    let post = |n: u64| {
        let at = (n % DEPTH) as usize * LEN;
        a.qp.post_send(&SendWr::write(n, &[from.sge(at..at + LEN)], to.remote(at))).unwrap();
    };
    let start = Instant::now();
    (0..DEPTH).for_each(post);
    let mut by_time = Vec::new();
    for n in 0..COUNT {
        let done = a.cq.wait(TIMEOUT).unwrap();
        assert_eq!((done.wr_id, done.status), (n, WcStatus::Success));
        if n + DEPTH < COUNT {
            post(n + DEPTH);
        }
        let slot = (start.elapsed().as_millis() / 250) as usize;
        by_time.resize(by_time.len().max(slot + 1), 0);
        by_time[slot] += LEN;
    }
    let rate = (LEN as u64 * COUNT) as f64 / start.elapsed().as_secs_f64() / 1e6;
    let mut got = vec![0; data.len()];
    to.read(0, &mut got).unwrap();
    assert!(got == data, "{links:?}: the data differs");
    // The last CNPs may still be on their way.
    let (mut sender, mut receiver) = (a.context.counters(), b.context.counters());
    while sender.rp_cnp_handled + sender.rp_cnp_ignored != receiver.np_cnp_sent {
        let counts = (sender.rp_cnp_handled, sender.rp_cnp_ignored, receiver.np_cnp_sent);
        assert!(start.elapsed() < TIMEOUT, "{links:?}: handled, ignored and sent CNPs: {counts:?}");
        std::thread::sleep(Duration::from_millis(10));
        (sender, receiver) = (a.context.counters(), b.context.counters());
    }
    let by_time: Vec<_> = by_time.iter().map(|bytes| format!("{:.0}", *bytes as f64 * 4e-6)).collect();
    println!(
        "{links:?}: {rate:.1} MB/s; {} packets marked, {} CNPs, {} retransmissions; MB/s each 250 ms: {}",
        receiver.np_ecn_marked_roce_packets,
        receiver.np_cnp_sent,
        sender.retransmitted_pkts,
        by_time.join(" ")
    );
    Transfer { sender, receiver, rate }
}

/// Compares a transfer without marks, one with marks, and one with marks to a receiver that sends no CNPs, as
/// rxe.
fn check(links: [&str; 2]) {
    if !netns::is_available() {
        return;
    }
    let net = Veth::new(4200);
    let unmarked = transfer(&net, links, Personality::DEFAULT);
    assert_eq!((unmarked.receiver.np_ecn_marked_roce_packets, unmarked.receiver.np_cnp_sent), (0, 0));
    mark(&net);
    // On a loaded machine, the machine may limit a transfer more than the marks do: one of several
    // comparisons must do.
    let is_slower = |_| {
        let (marked, ignored) = transfers_with_marks(&net, links);
        println!("{} unmarked, {marked} marked, {ignored} MB/s with ignored marks", unmarked.rate);
        marked < unmarked.rate / 2.0 && ignored > 2.0 * marked
    };
    assert!((0..5).any(is_slower));
}

/// Returns the rates with marks to a receiver that sends CNPs, and to one that sends none.
fn transfers_with_marks(net: &Veth, links: [&str; 2]) -> (f64, f64) {
    let marked = transfer(net, links, Personality::DEFAULT);
    assert!(marked.receiver.np_cnp_sent > 0 && marked.sender.rp_cnp_handled == marked.receiver.np_cnp_sent);
    assert!(marked.receiver.np_ecn_marked_roce_packets >= marked.receiver.np_cnp_sent);
    let ignored = transfer(net, links, Personality::RXE);
    assert!(ignored.receiver.np_ecn_marked_roce_packets > 0);
    assert_eq!((ignored.receiver.np_cnp_sent, ignored.sender.rp_cnp_handled), (0, 0));
    (marked.rate, ignored.rate)
}

#[test]
fn cnps_for_packets_marked_above_a_rate_reduce_the_throughput_of_udp_links() {
    check(["udp:10.77.0.1", "udp:10.77.0.2"]);
}

#[test]
fn cnps_for_packets_marked_above_a_rate_reduce_the_throughput_of_udp_links_over_ipv6() {
    check(["udp:fd77::1", "udp:fd77::2"]);
}

#[test]
fn cnps_for_packets_marked_above_a_rate_reduce_the_throughput_of_packet_links() {
    check(["packet:v0", "packet:v1"]);
}
