//! Performance targets ("bars") of urxe, each a ratio of measurements of the same run wherever there is
//! something to compare with.

use serde::Serialize;

use crate::job::Op;
use crate::plan::{self, LOSSES, MANY, MESSAGE, Via, stream_series};
use crate::table::{Key, Spread, Table};

/// A row and the name of one of its metrics.
pub type Figure = (Key, &'static str);

pub struct Bar {
    pub what: String,
    pub over: Figure,
    /// Divisor of the ratio; `None` for an absolute value.
    pub under: Option<Figure>,
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

impl Bar {
    pub fn value(&self, table: &Table) -> Option<Spread> {
        let (over, metric) = &self.over;
        match &self.under {
            None => table.spread(over, metric),
            Some((under, other)) => table.ratio((over, metric), (under, other)),
        }
    }

    /// Compares the median with the limit.
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

/// Returns the bars in the order of printing.
pub fn bars() -> Vec<Bar> {
    use Limit::{AtLeast, AtMost};
    let stream = |via, op, size| Key::new(stream_series(via, op, 4096), size);
    let gbps = |key: Key| (key, "Gb/s");
    let write = || gbps(stream(Via::Udp4, Op::Write, MESSAGE));
    let raw = |name: &str, size| Key::new(name, size);
    let mut bars = Vec::new();
    let mut bar = |what: &str, over, under, limit| bars.push(Bar { what: what.into(), over, under, limit });
    let raw_udp = gbps(raw(plan::RAW_UDP, plan::DATAGRAM));
    bar("udp, RC WRITE 64 KiB ÷ raw UDP with offload", write(), Some(raw_udp), AtLeast(0.60));
    let tcp = gbps(raw(plan::IPERF3, 0));
    bar("udp, RC WRITE 64 KiB ÷ TCP by iperf3", write(), Some(tcp), AtLeast(1.8));
    let read = gbps(stream(Via::Udp4, Op::Read, MESSAGE));
    bar("udp, RC READ 64 KiB ÷ RC WRITE", read, Some(write()), AtLeast(0.85));
    let send = gbps(stream(Via::Udp4, Op::Send, MESSAGE));
    bar("udp, RC SEND 64 KiB ÷ RC WRITE", send, Some(write()), AtLeast(0.90));
    let veth = gbps(stream(Via::Veth, Op::Write, MESSAGE));
    let raw_packet = gbps(raw(plan::RAW_PACKET, plan::DATAGRAM));
    bar("packet, RC WRITE 64 KiB ÷ raw packet sockets", veth, Some(raw_packet), AtLeast(0.60));
    let small = (stream(Via::Udp4, Op::Write, 8), "M/s");
    let datagrams = (raw(plan::RAW_UDP, 64), "M/s");
    bar("udp, 8-byte RC WRITEs ÷ raw 64-byte datagrams", small, Some(datagrams), AtLeast(0.30));
    for (op, name) in [(Op::Write, "WRITE"), (Op::Send, "SEND")] {
        for (percentile, limit) in [("p50", 1.25), ("p99", 1.5)] {
            let ours = (plan::ping(Via::Udp4, op), percentile);
            let raw = (raw(plan::RAW_UDP_PING, 8), percentile);
            let what = format!("udp, half round trip of an 8-byte {name} ÷ raw UDP, {percentile}");
            bar(&what, ours, Some(raw), AtMost(limit));
        }
    }
    let fabric = gbps(stream(Via::Fabric, Op::Write, 1 << 20));
    let memcpy = gbps(raw(plan::MEMCPY, 1 << 20));
    bar("fabric, RC WRITE 1 MiB ÷ memcpy", fabric, Some(memcpy), AtLeast(0.45));
    let small = (stream(Via::Fabric, Op::Write, 8), "M/s");
    bar("fabric, 8-byte RC WRITEs, million a second", small, None, AtLeast(5.0));
    let many = gbps(plan::many(MANY));
    bar("udp, RC WRITE 64 KiB, 1,000 QPs ÷ 1 QP", many, Some(write()), AtLeast(0.85));
    for (loss, limit) in [(LOSSES[1], 0.90), (LOSSES[2], 0.60)] {
        let [lossy, none] = [loss, LOSSES[0]].map(|loss| gbps(plan::lossy(Op::Write, loss)));
        let what = format!("udp, RC WRITE 64 KiB, goodput at {} % loss ÷ none", loss * 100.0);
        bar(&what, lossy, Some(none), AtLeast(limit));
    }
    let connections = |metric| (raw(plan::CONNECTIONS, 0), metric);
    let what = "an idle connected RC QP that was used once, resident bytes";
    bar(what, connections("resident, used once"), None, AtMost(4096.0));
    let what = "10,000 RC QPs made, connected, used, destroyed, eight times";
    bar(what, connections("succeeded"), None, AtLeast(80_000.0));
    bar("bytes of heap that they leave behind", connections("leaked bytes"), None, AtMost(0.0));
    bar("descriptors that they leave behind", connections("leaked descriptors"), None, AtMost(0.0));
    let idle = (raw(plan::IDLE, 0), "µs/s");
    bar("1,000 idle connected RC QPs, µs of CPU time a second", idle, None, AtMost(100.0));
    bars
}
