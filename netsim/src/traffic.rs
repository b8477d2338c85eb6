//! Flows: what is sent between which hosts, and the simulation of it.

use std::time::Duration;

use urxe::verbs::*;

use crate::network::{Node, Simulation, Topology, TopologyError};
use crate::plot::PlotError;
use crate::report::{FlowReport, QueueReport, Report};

/// Messages of a flow that are posted at a time.
const DEPTH: u64 = 32;

/// Reason why traffic could not be simulated or its report not be written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum TrafficError {
    /// The topology cannot be simulated, or has no such host.
    Topology(#[from] TopologyError),
    /// A call failed: an object of a NIC could not be created or connected, a work request not be posted, or
    /// the report not be written.
    Call(urxe::Error),
    /// A flow has failed.
    #[error("the flow from host {from} to host {to} failed: {status}")]
    Failed {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Status of the completion.
        status: WcStatus,
    },
    /// The plot could not be drawn.
    Plot(#[from] PlotError),
}

impl<E: Into<urxe::Error>> From<E> for TrafficError {
    fn from(error: E) -> TrafficError {
        TrafficError::Call(error.into())
    }
}

/// Traffic from one host to another, as WRITEs of a queue pair of its own. Unless a length is set, it goes on
/// to the end.
#[derive(Clone, Debug)]
pub struct Flow {
    from: usize,
    to: usize,
    start: Duration,
    bytes: Option<u64>,
    rate: Option<u64>,
    message: usize,
    traffic_class: u8,
}

impl Flow {
    /// Sets the number of bytes to send.
    pub fn bytes(&mut self, bytes: u64) -> &mut Flow {
        self.bytes = Some(bytes);
        self
    }

    /// Limits the rate, in bits of payload per second. Congestion control may reduce it.
    pub fn rate(&mut self, rate: u64) -> &mut Flow {
        self.rate = Some(rate);
        self
    }

    /// Sets the time at which the flow begins; 0 by default.
    pub fn start(&mut self, start: Duration) -> &mut Flow {
        self.start = start;
        self
    }

    /// Sets the length of messages in bytes; 16 KiB by default.
    pub fn message(&mut self, bytes: usize) -> &mut Flow {
        self.message = bytes.max(1);
        self
    }

    /// Sets the traffic class: DSCP and ECN. By default DSCP 26, whose priority is 3, ECN-capable.
    pub fn traffic_class(&mut self, traffic_class: u8) -> &mut Flow {
        self.traffic_class = traffic_class;
        self
    }

    /// Returns the priority, 0 to 7, in which switches queue the packets.
    pub fn priority(&self) -> u8 {
        self.traffic_class >> 5
    }
}

/// Flows on a simulated network.
#[derive(Debug)]
pub struct Traffic {
    topology: Topology,
    seed: u64,
    options: ContextOptions,
    interval: Duration,
    flows: Vec<Flow>,
    queues: Vec<(Node, Node, u8)>,
}

impl Traffic {
    /// Prepares traffic on a network, with NICs that use DCQCN with the defaults of ConnectX adapters.
    ///
    /// # Errors
    /// [`TrafficError::Topology`] if the network cannot be simulated.
    pub fn new(topology: &Topology, seed: u64) -> Result<Traffic, TrafficError> {
        topology.check()?;
        Ok(Traffic {
            topology: topology.clone(),
            seed,
            options: ContextOptions::default().congestion(Congestion::DCQCN_CONNECTX),
            interval: Duration::from_micros(100),
            flows: Vec::new(),
            queues: Vec::new(),
        })
    }

    /// Sets the options of all NICs.
    pub fn options(&mut self, options: ContextOptions) -> &mut Traffic {
        self.options = options;
        self
    }

    /// Sets the time between two points of the rates; 100 µs by default.
    pub fn interval(&mut self, interval: Duration) -> &mut Traffic {
        self.interval = interval.max(Duration::from_nanos(1));
        self
    }

    /// Adds a flow between two hosts.
    pub fn flow(&mut self, from: usize, to: usize) -> &mut Flow {
        let (start, bytes, rate) = (Duration::ZERO, None, None);
        self.flows.push(Flow { from, to, start, bytes, rate, message: 16 << 10, traffic_class: 26 << 2 | 2 });
        let last = self.flows.len() - 1;
        &mut self.flows[last]
    }

    /// Records the length of the queue of a priority in which packets wait at `from` for the wire to `to`.
    /// Without a call, the queues in front of the receivers are recorded.
    pub fn queue(&mut self, from: Node, to: Node, priority: u8) -> &mut Traffic {
        self.queues.push((from, to, priority));
        self
    }

    /// Simulates the traffic until all flows are complete, at most for `limit`.
    ///
    /// # Errors
    /// [`TrafficError`], also if a flow fails.
    pub fn run(&self, limit: Duration) -> Result<Report, TrafficError> {
        let simulation = Simulation::new(&self.topology, self.seed)?;
        let mut contexts: Vec<Option<Context>> = vec![None; self.topology.host_count()];
        let mut running = Vec::new();
        for flow in &self.flows {
            let [from, to] =
                [flow.from, flow.to].map(|host| context(&simulation, &mut contexts, host, &self.options));
            running.push(Running::new(flow, from?, to?)?);
        }
        let queues = self.queues();
        for (from, to, priority) in &queues {
            simulation.sample(*from, *to, *priority, self.interval)?;
        }
        let fabric = simulation.fabric();
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); running.len()];
        while fabric.now().0 < limit.as_nanos() as u64
            && running.iter().any(|flow| flow.completed_at.is_none())
        {
            for (flow, rates) in running.iter_mut().zip(&mut rates) {
                let before = flow.acknowledged;
                flow.advance(fabric.now().0)?;
                if fabric.now().0 > 0 {
                    rates.push((flow.acknowledged - before) as f64 * 8.0 / self.interval.as_secs_f64());
                }
            }
            fabric.advance(self.interval);
        }
        let contexts = contexts.into_iter().flatten();
        let mut report = Report {
            interval: self.interval,
            duration: Duration::from_nanos(fabric.now().0),
            flows: running.iter().zip(rates).map(|(flow, rates)| flow.report(rates)).collect(),
            queues: Vec::new(),
            network: simulation.counters(),
            retransmitted: contexts.map(|context| context.counters().retransmitted_pkts).sum(),
        };
        for (from, to, priority) in queues {
            let lengths = simulation.take_samples(from, to, priority)?;
            let counters = simulation.queue(from, to, priority)?;
            report.queues.push(QueueReport { from, to, priority, lengths, counters });
        }
        Ok(report)
    }

    /// Returns the queues to record.
    fn queues(&self) -> Vec<(Node, Node, u8)> {
        if !self.queues.is_empty() {
            return self.queues.clone();
        }
        let mut queues = Vec::new();
        for flow in &self.flows {
            let to = Node::Host(flow.to);
            if let Some(from) = self.topology.neighbour(flow.to)
                && !queues.contains(&(from, to, flow.priority()))
            {
                queues.push((from, to, flow.priority()));
            }
        }
        queues
    }
}

/// Returns the NIC of a host, which it opens if it is the first time.
fn context(
    simulation: &Simulation,
    contexts: &mut [Option<Context>],
    host: usize,
    options: &ContextOptions,
) -> Result<Context, TrafficError> {
    let slot = contexts.get_mut(host).ok_or(TopologyError::NoSuchNode(Node::Host(host)))?;
    if let Some(context) = slot {
        return Ok(context.clone());
    }
    let port = simulation.port(host, &simulation.fabric().auto_address())?;
    let context = Context::on_port(port, options, |port| Box::new(port))?;
    *slot = Some(context.clone());
    Ok(context)
}

/// A flow in progress.
struct Running<'a> {
    flow: &'a Flow,
    from: TestEndpoint,
    _to: TestEndpoint,
    source: Mr,
    target: Mr,
    posted: u64,
    acknowledged: u64,
    /// Time of the last completion, in nanoseconds.
    completed_at: Option<u64>,
}

impl<'a> Running<'a> {
    fn new(flow: &'a Flow, from: Context, to: Context) -> Result<Running<'a>, TrafficError> {
        let (from, to) = (TestEndpoint::new(from)?, TestEndpoint::new(to)?);
        from.connect(&to, &ConnectOptions::default().traffic_class(flow.traffic_class))?;
        if let Some(rate) = flow.rate {
            let kilobits = u32::try_from(rate / 1000).unwrap_or(u32::MAX).max(1);
            from.qp.modify(&QpAttr::default().rate_limit(kilobits))?;
        }
        let source = from.pd.reg_mr(flow.message, Access::LOCAL_WRITE)?;
        let target = to.pd.reg_mr(flow.message, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Running { flow, from, _to: to, source, target, posted: 0, acknowledged: 0, completed_at: None })
    }

    /// Takes completions, and posts further messages once the flow has begun.
    fn advance(&mut self, now: u64) -> Result<(), TrafficError> {
        let Flow { from, to, message, .. } = *self.flow;
        let mut batch = self.from.cq.start_poll();
        while let Some(completion) = batch.next_poll()? {
            if completion.status != WcStatus::Success {
                return Err(TrafficError::Failed { from, to, status: completion.status });
            }
            // The work request's ID is its length.
            self.acknowledged += completion.wr_id;
            if self.flow.bytes == Some(self.acknowledged) {
                self.completed_at = Some(completion.completion_timestamp());
            }
        }
        drop(batch);
        let end = self.flow.bytes.unwrap_or(u64::MAX);
        while u128::from(now) >= self.flow.start.as_nanos()
            && self.posted < end
            && self.posted - self.acknowledged < DEPTH * message as u64
        {
            let len = (end - self.posted).min(message as u64);
            let source = [self.source.sge(0..len as usize)];
            self.from.qp.post_send(&SendWr::write(len, &source, self.target.remote(0)))?;
            self.posted += len;
        }
        Ok(())
    }

    fn report(&self, rates: Vec<f64>) -> FlowReport {
        let Flow { from, to, start, .. } = *self.flow;
        let completed_at = self.completed_at.map(Duration::from_nanos);
        FlowReport { from, to, start, bytes: self.acknowledged, completed_at, rates }
    }
}
