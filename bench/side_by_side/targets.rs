//! urxe's performance targets. Each is a ratio of two measurements from the same run, or an absolute value if
//! there is nothing to compare with.

use serde::Serialize;

use crate::carrier::Carrier;
use crate::clients::{CLIENTS, Client};
use crate::job::Op;
use crate::plan::{self, LOSSES, LinkKind, MANY, MESSAGE, stream_series};
use crate::table::{Key, Spread, Table};

/// A row and the name of one of its metrics.
pub type Figure = (Key, &'static str);

pub struct Target {
    pub what: String,
    pub numerator: Figure,
    /// Denominator of the ratio; `None` if the target is an absolute value.
    pub denominator: Option<Figure>,
    pub limit: Limit,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Verdict {
    Met,
    Missed,
    NotMeasured,
}

impl Target {
    pub fn value(&self, table: &Table) -> Option<Spread> {
        let (numerator, metric) = &self.numerator;
        match &self.denominator {
            None => table.spread(numerator, metric),
            Some((denominator, denominator_metric)) => {
                table.ratio((numerator, metric), (denominator, denominator_metric))
            }
        }
    }

    /// Compares the median of the ratio or value with the limit.
    pub fn verdict(&self, table: &Table) -> Verdict {
        let is_met = |v: Spread| match self.limit {
            Limit::AtLeast(limit) => v.median >= limit,
            Limit::AtMost(limit) => v.median <= limit,
        };
        match self.value(table).map(is_met) {
            None => Verdict::NotMeasured,
            Some(true) => Verdict::Met,
            Some(false) => Verdict::Missed,
        }
    }
}

/// For urxe's and a client's own transport: the lowest ratio of their throughputs, and the highest of their
/// latencies.
const CLIENT_LIMITS: [(Carrier, Carrier, f64, f64); 3] = [
    (Carrier::Sockets, Carrier::Tcp, 1.1, 1.0),
    (Carrier::SharedMemory, Carrier::Tcp, 2.0, 0.5),
    (Carrier::SharedMemory, Carrier::OwnMemory, 0.5, 2.0),
];

/// Returns the targets in the order in which they are printed.
pub fn targets() -> Vec<Target> {
    use Limit::{AtLeast, AtMost};
    let stream = |kind, op, size| Key::new(stream_series(kind, op, 4096), size);
    let gbps = |key: Key| (key, "Gb/s");
    let write = || gbps(stream(LinkKind::Udp4, Op::Write, MESSAGE));
    let raw = |name: &str, size| Key::new(name, size);
    let mut targets = Vec::new();
    let mut target = |what: &str, numerator, denominator, limit| {
        targets.push(Target { what: what.into(), numerator, denominator, limit })
    };
    let raw_udp = gbps(raw(plan::RAW_UDP, plan::DATAGRAM));
    target("udp, RC WRITE 64 KiB ÷ raw UDP with offload", write(), Some(raw_udp), AtLeast(0.60));
    let tcp = gbps(raw(plan::IPERF3, 0));
    target("udp, RC WRITE 64 KiB ÷ TCP by iperf3", write(), Some(tcp), AtLeast(1.8));
    let read = gbps(stream(LinkKind::Udp4, Op::Read, MESSAGE));
    target("udp, RC READ 64 KiB ÷ RC WRITE", read, Some(write()), AtLeast(0.85));
    let send = gbps(stream(LinkKind::Udp4, Op::Send, MESSAGE));
    target("udp, RC SEND 64 KiB ÷ RC WRITE", send, Some(write()), AtLeast(0.90));
    let veth = gbps(stream(LinkKind::Veth, Op::Write, MESSAGE));
    let raw_packet = gbps(raw(plan::RAW_PACKET, plan::DATAGRAM));
    target("packet, RC WRITE 64 KiB ÷ raw packet sockets", veth, Some(raw_packet), AtLeast(0.60));
    let small = (stream(LinkKind::Udp4, Op::Write, 8), "M/s");
    let datagrams = (raw(plan::RAW_UDP, 64), "M/s");
    target("udp, 8-byte RC WRITEs ÷ raw 64-byte datagrams", small, Some(datagrams), AtLeast(0.30));
    for (op, name) in [(Op::Write, "WRITE"), (Op::Send, "SEND")] {
        for (percentile, limit) in [("p50", 1.25), ("p99", 1.5)] {
            let ours = (plan::ping(LinkKind::Udp4, op), percentile);
            let raw = (raw(plan::RAW_UDP_PING, 8), percentile);
            let what = format!("udp, half round trip of an 8-byte {name} ÷ raw UDP, {percentile}");
            target(&what, ours, Some(raw), AtMost(limit));
        }
        let like = plan::raw_udp_ping_like(op);
        let what = format!("udp, half round trip of an 8-byte {name} ÷ raw UDP, unconnected, p50");
        target(&what, (plan::ping(LinkKind::Udp4, op), "p50"), Some((like, "p50")), AtMost(1.15));
    }
    for (size, name) in [(MESSAGE, "64 KiB"), (1 << 20, "1 MiB")] {
        let write = gbps(stream(LinkKind::SharedMemory, Op::Write, size));
        let datagrams = gbps(raw(plan::RAW_UDP, plan::DATAGRAM));
        let what = format!("shared memory, RC WRITE {name} ÷ raw UDP with offload");
        target(&what, write.clone(), Some(datagrams), AtLeast(1.5));
        let put = gbps(Client::UcxPut.key(Carrier::OwnMemory, size));
        let what = format!("shared memory, RC WRITE {name} ÷ UCX over shared memory");
        target(&what, write, Some(put.clone()), AtLeast(0.2));
        let what = format!("shared memory, RC WRITE {name} from a shareable region ÷ UCX over shared memory");
        target(&what, gbps(plan::shareable(Op::Write, size)), Some(put), AtLeast(0.6));
    }
    let small = (stream(LinkKind::SharedMemory, Op::Write, 8), "M/s");
    target("shared memory, 8-byte RC WRITEs, millions per second", small, None, AtLeast(5.0));
    let ping = (plan::ping(LinkKind::SharedMemory, Op::Write), "p50");
    let bare = (raw(plan::RAW_MEMORY_PING, 8), "p50");
    let what = "shared memory, half round trip of an 8-byte WRITE ÷ bare memory, p50";
    target(what, ping, Some(bare), AtMost(8.0));
    let [_, write_memory, send, send_events, send_memory, send_events_memory, latency] =
        plan::PERFTEST.map(plan::perftest);
    let datagrams = gbps(raw(plan::RAW_UDP, plan::DATAGRAM));
    let what = "ib_write_bw -s 65536 over shared memory ÷ raw UDP with offload";
    target(what, gbps(write_memory), Some(datagrams), AtLeast(1.2));
    target("ib_write_lat -s 2 over shared memory, ns", (latency, "p50"), None, AtMost(1000.0));
    let what = "ib_send_bw -e -s 65536 over udp ÷ the same without -e";
    target(what, gbps(send_events), Some(gbps(send)), AtLeast(0.8));
    let what = "ib_send_bw -e -s 65536 over shared memory ÷ the same without -e";
    target(what, gbps(send_events_memory), Some(gbps(send_memory)), AtLeast(0.8));
    for (client, size, carriers) in CLIENTS {
        for metric in client.metrics() {
            let is_latency = *metric == "p50";
            let figure = |carrier| (client.key(carrier, size), *metric);
            for (carrier, own, throughput, latency) in CLIENT_LIMITS {
                if carriers.contains(&own) {
                    let what = client.comparison(carrier, own, size, metric);
                    let limit = if is_latency { AtMost(latency) } else { AtLeast(throughput) };
                    target(&what, figure(carrier), Some(figure(own)), limit);
                }
            }
        }
    }
    for kind in plan::BUSY_LINKS {
        let [one, several] = plan::BUSY_PAIRS.map(|pairs| gbps(plan::busy_pairs(kind, pairs)));
        let what = format!("{}, RC WRITE 64 KiB, {} busy pairs ÷ one", kind.name(), plan::BUSY_PAIRS[1]);
        target(&what, several, Some(one), AtLeast(0.7));
    }
    let fabric = gbps(stream(LinkKind::Fabric, Op::Write, 1 << 20));
    let memcpy = gbps(raw(plan::MEMCPY, 1 << 20));
    target("fabric, RC WRITE 1 MiB ÷ memcpy", fabric, Some(memcpy), AtLeast(0.6));
    let small = (stream(LinkKind::Fabric, Op::Write, 8), "M/s");
    target("fabric, 8-byte RC WRITEs, millions per second", small, None, AtLeast(5.0));
    let many = gbps(plan::many_qps(MANY));
    target("udp, RC WRITE 64 KiB, 1,000 QPs ÷ 1 QP", many, Some(write()), AtLeast(0.85));
    for (loss, limit) in [(LOSSES[1], 0.90), (LOSSES[2], 0.60)] {
        let [lossy, none] = [loss, LOSSES[0]].map(|loss| gbps(plan::lossy(Op::Write, loss)));
        let what = format!("udp, RC WRITE 64 KiB, goodput at {} % loss ÷ none", loss * 100.0);
        target(&what, lossy, Some(none), AtLeast(limit));
    }
    let connections = |metric| (raw(plan::CONNECTIONS, 0), metric);
    let what = "an idle connected RC QP that was used once, resident bytes";
    target(what, connections("resident, used once"), None, AtMost(4096.0));
    let what = "10,000 RC QPs created, connected, used, destroyed, 8 times";
    target(what, connections("succeeded"), None, AtLeast(80_000.0));
    target("leaked heap bytes", connections("leaked bytes"), None, AtMost(0.0));
    target("leaked descriptors", connections("leaked descriptors"), None, AtMost(0.0));
    let idle = (raw(plan::IDLE, 0), "µs/s");
    target("1,000 idle connected RC QPs, µs of CPU time per second", idle, None, AtMost(100.0));
    targets
}
