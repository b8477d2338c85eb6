//! A fault at the n-th packet: exactly the third packet of a message is lost, and the message arrives anyway.
//!
//! Shows fault rules, a filter on decoded packets, and the counters of rules. Run it with
//! `cargo run --example nth_packet`.

use std::time::Duration;

use urxe::link::faults::{Action, Direction, Faults, Rule, When};
use urxe::verbs::*;
use urxe::wire::Operation;

const LEN: usize = 10 * 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(10)))?;
    // As on the command line: `--fault drop=3,opcode=...`; a closure sees the whole packet.
    let third = Rule::new(Direction::Tx, Action::Drop, When::Nth(3))
        .only(|packet| packet.row().operation == Operation::Write);
    let port = fabric.port(&fabric.auto_address())?;
    let mut counters = None;
    let context = Context::on_port(port, &ContextOptions::default(), |port| {
        let link = Faults::new(port, vec![third], 0);
        counters = Some(link.fault_counters());
        Box::new(link)
    })?;
    let (a, b) = (TestEndpoint::new(context)?, TestEndpoint::new(Context::on_fabric(&fabric)?)?);
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;

    let (source, target) = (a.pd.reg_mr(LEN, Access::LOCAL_WRITE)?, b.pd.reg_mr(LEN, Access::ALL)?);
    let data: Vec<u8> = (0..LEN).map(|i| (i / 4096) as u8).collect();
    source.write(0, &data)?;
    a.qp.post_send(&SendWr::write(1, &[source.sge(0..LEN)], target.remote(0)))?;
    a.cq.wait(Duration::from_secs(5))?;

    let dropped = counters.ok_or("the link was not created")?.get(Direction::Tx).dropped;
    let (sent, received) = (a.context.counters(), b.context.counters());
    println!("{dropped} packet was dropped");
    println!("the peer got {} packets behind the missing one, and sent a NAK", received.out_of_seq_request);
    println!("the requester went back {} time, and {LEN} bytes arrived", sent.requester_retry);
    assert_eq!((dropped, sent.requester_retry), (1, 1));
    assert_eq!(target.to_vec(), data);
    Ok(())
}
