//! The NICs' counters in the text format of Prometheus. Ports have the metrics of node_exporter's collector `infiniband`,
//! with the process as a further label, and queue pairs have `urxe_qp_*`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use urxe::verbs::live::{NicSnapshot, QpSnapshot};
use urxe::verbs::port_counter_files;

use super::View;
use crate::CliError;

/// Metrics of node_exporter: name after `node_infiniband_`, counter in sysfs, and what to multiply it by. Counters of data have
/// units of 4 bytes.
const PORT: [(&str, &str, u64); 14] = [
    ("link_downed_total", "link_downed", 1),
    ("link_error_recovery_total", "link_error_recovery", 1),
    ("multicast_packets_received_total", "multicast_rcv_packets", 1),
    ("multicast_packets_transmitted_total", "multicast_xmit_packets", 1),
    ("port_constraint_errors_received_total", "port_rcv_constraint_errors", 1),
    ("port_constraint_errors_transmitted_total", "port_xmit_constraint_errors", 1),
    ("port_data_received_bytes_total", "port_rcv_data", 4),
    ("port_data_transmitted_bytes_total", "port_xmit_data", 4),
    ("port_discards_transmitted_total", "port_xmit_discards", 1),
    ("port_errors_received_total", "port_rcv_errors", 1),
    ("port_packets_received_total", "port_rcv_packets", 1),
    ("port_packets_transmitted_total", "port_xmit_packets", 1),
    ("unicast_packets_received_total", "unicast_rcv_packets", 1),
    ("unicast_packets_transmitted_total", "unicast_xmit_packets", 1),
];

/// Samples by metric: its type, and labels with values.
#[derive(Default)]
struct Metrics(BTreeMap<String, (&'static str, Vec<String>)>);

impl Metrics {
    fn add(&mut self, name: &str, labels: &str, value: impl Display) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let (_, samples) = self.0.entry(name.to_owned()).or_insert_with(|| (kind, Vec::new()));
        samples.push(format!("{name}{{{labels}}} {value}"));
    }

    fn add_nic(&mut self, pid: u32, nic: &NicSnapshot) {
        let device = label(&nic.device);
        let labels =
            format!("device=\"{device}\",port=\"1\",pid=\"{pid}\",command=\"{}\"", label(&nic.command));
        let files: BTreeMap<String, u64> = port_counter_files(|name| nic.counter(name)).into_iter().collect();
        for (metric, counter, unit) in PORT {
            let value = files.get(&format!("counters/{counter}")).copied().unwrap_or(0);
            self.add(&format!("node_infiniband_{metric}"), &labels, value * unit);
        }
        self.add("node_infiniband_rate_bytes_per_second", &labels, nic.speed / 8);
        // As in `ibv_port_attr`.
        self.add("node_infiniband_state_id", &labels, if nic.is_up { 4 } else { 1 });
        self.add("node_infiniband_physical_state_id", &labels, if nic.is_up { 5 } else { 3 });
        for fault in &nic.faults {
            let labels = format!("{labels},rule=\"{}\"", label(&fault.rule));
            self.add("urxe_fault_matched_total", &labels, fault.matched);
            self.add("urxe_fault_affected_total", &labels, fault.struck);
        }
    }

    fn add_qp(&mut self, pid: u32, nic: &NicSnapshot, qp: &QpSnapshot) {
        let peer = qp.peer.as_ref();
        let labels = format!(
            "device=\"{}\",port=\"1\",pid=\"{pid}\",qpn=\"{:#08x}\",service=\"{}\",peer=\"{}\"",
            label(&nic.device),
            qp.qpn,
            qp.service,
            peer.map_or(String::new(), |peer| format!("{} {:#08x}", peer.address, peer.qpn)),
        );
        self.add("urxe_qp_info", &format!("{labels},state=\"{}\"", label(&qp.state)), 1);
        self.add("urxe_qp_posted_sends", &labels, qp.posted_sends);
        self.add("urxe_qp_outstanding_requests", &labels, qp.outstanding);
        self.add("urxe_qp_outstanding_bytes", &labels, qp.outstanding_bytes);
        self.add("urxe_qp_posted_receives", &labels, qp.posted_receives);
        for (name, time) in [("sent", qp.last_sent), ("received", qp.last_received)] {
            if let Some(time) = time {
                self.add(
                    &format!("urxe_qp_last_{name}_seconds"),
                    &labels,
                    Duration::from_nanos(time).as_secs_f64(),
                );
            }
        }
        if let Ok(Value::Object(counters)) = serde_json::to_value(qp.counters) {
            counters
                .iter()
                .for_each(|(name, value)| self.add(&format!("urxe_qp_{name}_total"), &labels, value));
        }
    }
}

/// Returns the text of a label's value.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the metrics of all NICs.
pub fn text(view: &View) -> String {
    let mut metrics = Metrics::default();
    for nic in &view.nics {
        let pid = nic.found.pid;
        metrics.add("urxe_up", &format!("pid=\"{pid}\""), u8::from(nic.found.state.is_ok()));
        if let Ok(state) = &nic.found.state {
            metrics.add_nic(pid, state);
            state.qps.iter().for_each(|qp| metrics.add_qp(pid, state, qp));
        }
    }
    let mut out = String::new();
    for (name, (kind, samples)) in metrics.0 {
        let _ = writeln!(out, "# TYPE {name} {kind}");
        for sample in samples {
            let _ = writeln!(out, "{sample}");
        }
    }
    out
}

/// Parses `ADDRESS:PORT` or `PORT`, which stands for the loopback address.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let on_loopback = || text.parse().ok().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    text.parse()
        .ok()
        .or_else(on_loopback)
        .ok_or_else(|| format!("'{text}' is not ADDRESS:PORT, such as 127.0.0.1:9515"))
}

/// Longest request that is read, in bytes.
const MAX_REQUEST: usize = 8 << 10;

/// Time for a request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves metrics until the process is interrupted.
///
/// # Errors
/// [`CliError::Io`] if the address cannot be bound.
pub fn serve(address: SocketAddr, take: impl Fn() -> View) -> Result<(), CliError> {
    let listener = TcpListener::bind(address).map_err(CliError::io(format!("--metrics {address}")))?;
    let bound = listener.local_addr().map_err(CliError::io("--metrics"))?;
    writeln!(io::stdout(), "metrics: http://{bound}/metrics")?;
    for connection in listener.incoming() {
        // A client that has gone, or that is too slow, is its own problem.
        let _ = connection.and_then(|connection| answer(connection, &take));
    }
    Ok(())
}

/// Answers one request with the metrics.
fn answer(mut connection: TcpStream, take: impl Fn() -> View) -> io::Result<()> {
    connection.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    connection.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST {
        match connection.read(&mut part)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
    let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let (status, body) = match (request.starts_with(b"GET "), target) {
        (true, b"/metrics" | b"/") => ("200 OK", text(&take())),
        (true, _) => ("404 Not Found", "the metrics are at /metrics\n".into()),
        (false, _) => ("405 Method Not Allowed", "only GET is possible\n".into()),
    };
    let length = body.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
