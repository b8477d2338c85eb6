//! Fault at the n-th packet: the third packet of a message is dropped, and the message arrives anyway.
//!
//! Shows fault rules, a filter on decoded packets, and loss recovery counters. Run it with `cargo run
//! --example nth_packet`.

use std::time::Duration;

use urxe::middleware::faults::{Action, Direction, Rule, When};
use urxe::verbs::*;
use urxe::wire::Operation;

const LEN: usize = 10 * 4096;

fn main() -> Result<(), urxe::Error> {
    let fabric = Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(10)))?;
    // A closure sees the whole packet; the command line has `--fault drop=3,opcode=write-middle`.
    let third = Rule::new(Direction::Tx, Action::Drop, When::Nth(3))
        .only(|packet| packet.row().operation == Operation::Write);
    let (a, b) = fabric.pair_builder().faults([third]).build()?;

    let (source, target) = (a.pd.reg_mr(LEN, Access::LOCAL_WRITE)?, b.pd.reg_mr(LEN, Access::ALL)?);
    let data: Vec<u8> = (0..LEN).map(|i| (i / 4096) as u8).collect();
    source.write(0, &data)?;
    a.qp.post_send(&SendWr::write(1, &[source.sge(0..LEN)], target.remote(0)))?;
    a.cq.wait(Duration::from_secs(5))?;

    let (sent, received) = (a.context.counters(), b.context.counters());
    println!("the peer got {} packets behind the missing one, and sent a NAK", received.out_of_seq_request);
    println!("the requester went back {} time, and {LEN} bytes arrived", sent.requester_retry);
    assert_eq!((sent.rcvd_seq_err, sent.requester_retry), (1, 1));
    assert_eq!(target.to_vec(), data);
    Ok(())
}
