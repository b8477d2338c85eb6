//! Long flows on a simulated network, and measures of them.

use std::time::Duration;

use urxe::verbs::*;
use urxe_netsim::stats::mean;
use urxe_netsim::{Node, Pfc, Red, Simulation, SwitchConfig};

use crate::Result;

/// Priority of all data: the highest three bits of DSCP 26.
pub const PRIORITY: u8 = 3;
const TRAFFIC_CLASS: u8 = 26 << 2 | 2;
/// Length of a message of a long flow, and messages in flight.
const MESSAGE: usize = 1 << 20;
const DEPTH: usize = 4;
/// Time between two looks at the completion queues, and between two points of a plot.
pub const STEP: Duration = Duration::from_micros(100);

/// Returns a switch with flow control, and marking if `marks`. Thresholds are proportional to the bandwidth
/// in bits per second: at 100 Gb/s, marking from 40 kB to 200 kB, pauses from 400 kB of one input.
pub fn switch(bandwidth: u64, marks: bool) -> SwitchConfig {
    let scaled = |bytes: u64| (bytes * bandwidth / 100_000_000_000) as usize;
    let switch = SwitchConfig::default().pfc(Pfc::default().xoff(scaled(400_000)).xon(scaled(390_000)));
    if marks { switch.ecn(k_range(bandwidth)) } else { switch }
}

/// Returns the thresholds of marking for a bandwidth in bits per second.
pub fn k_range(bandwidth: u64) -> Red {
    let scaled = |bytes: u64| (bytes * bandwidth / 100_000_000_000) as usize;
    Red::new(scaled(40_000), scaled(200_000), 0.3)
}

/// Opens a device on each of the first `hosts` hosts.
pub fn contexts(simulation: &Simulation, hosts: usize, congestion: Congestion) -> Result<Vec<Context>> {
    let options = ContextOptions::default().congestion(congestion);
    let open = |host| {
        let port = simulation.port(host, &simulation.fabric().auto_address())?;
        Ok(Context::on_port(port, &options, |port| Box::new(port))?)
    };
    (0..hosts).map(open).collect()
}

/// A connection that sends messages in one direction.
pub struct Flow {
    /// Sender.
    pub from: TestEndpoint,
    _to: TestEndpoint,
    source: Mr,
    target: Mr,
}

impl Flow {
    /// Connects a queue pair of `from` with one of `to`; messages have at most `len` bytes.
    pub fn new(from: &Context, to: &Context, len: usize) -> Result<Flow> {
        let (from, to) = (TestEndpoint::new(from.clone())?, TestEndpoint::new(to.clone())?);
        from.connect(&to, &ConnectOptions::default().traffic_class(TRAFFIC_CLASS))?;
        let (source, target) = (from.pd.reg_mr(len, Access::ALL)?, to.pd.reg_mr(len, Access::ALL)?);
        Ok(Flow { from, _to: to, source, target })
    }

    /// Posts a WRITE of `len` bytes.
    pub fn post(&self, id: u64, len: usize) -> Result<()> {
        Ok(self.from.qp.post_send(&SendWr::write(id, &[self.source.sge(0..len)], self.target.remote(0)))?)
    }
}

/// Long flows, each from a host of its own, and the bytes that they sent in each [`STEP`].
pub struct LongFlows<'a> {
    simulation: &'a Simulation,
    flows: Vec<(Flow, Node, Node)>,
    /// Bytes on the wire up to the last step.
    sent: Vec<u64>,
    /// Rates in Gb/s, by flow and step.
    pub rates: Vec<Vec<f64>>,
}

impl<'a> LongFlows<'a> {
    /// Starts flows between the given pairs of hosts. `switch_of` returns the switch of a host.
    pub fn start(
        simulation: &'a Simulation,
        contexts: &[Context],
        pairs: &[(usize, usize)],
        switch_of: impl Fn(usize) -> usize,
    ) -> Result<LongFlows<'a>> {
        let mut flows = Vec::new();
        for (from, to) in pairs {
            let flow = Flow::new(&contexts[*from], &contexts[*to], MESSAGE)?;
            (0..DEPTH).try_for_each(|id| flow.post(id as u64, MESSAGE))?;
            flows.push((flow, Node::Host(*from), Node::Switch(switch_of(*from))));
        }
        let count = flows.len();
        Ok(LongFlows { simulation, flows, sent: vec![0; count], rates: vec![Vec::new(); count] })
    }

    /// Lets the flows send for the given time.
    pub fn run(&mut self, time: Duration) -> Result<()> {
        let end = self.simulation.fabric().now() + time;
        let mut completions = Vec::new();
        while self.simulation.fabric().now() < end {
            self.simulation.fabric().advance(STEP);
            for (i, (flow, host, switch)) in self.flows.iter().enumerate() {
                completions.clear();
                flow.from.cq.poll(DEPTH, &mut completions)?;
                for completion in &completions {
                    if completion.status != WcStatus::Success {
                        return Err(format!("flow {i}: {}", completion.status).into());
                    }
                    flow.post(completion.wr_id, MESSAGE)?;
                }
                let bytes = self.simulation.queue(*host, *switch, PRIORITY)?.bytes;
                self.rates[i].push((bytes - self.sent[i]) as f64 * 8.0 / STEP.as_secs_f64() / 1e9);
                self.sent[i] = bytes;
            }
        }
        Ok(())
    }

    /// Returns the mean rate of each flow in Gb/s since step `first`.
    pub fn means(&self, first: usize) -> Vec<f64> {
        self.rates.iter().map(|rates| mean(&rates[first..])).collect()
    }
}
