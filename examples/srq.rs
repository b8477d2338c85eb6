//! Shared receive queue: the queue pairs for three peers share one pool of receives, which raises an event
//! when few are left.
//!
//! Shows `Pd::create_srq`, `QpOptions::srq`, and the limit event. Run it with `cargo run --example srq`.

use std::time::Duration;

use urxe::verbs::*;

const PEERS: usize = 3;
const SLOT: usize = 64;
const LIMIT: Duration = Duration::from_secs(5);

fn main() -> Result<(), urxe::Error> {
    let fabric = Fabric::virtual_time(FabricConfig::default())?;
    let context = Context::on_fabric(&fabric)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
    let srq = pd.create_srq(RecvCaps { max_wr: 16, max_sge: 1 })?;
    let pool = pd.reg_mr(4 * SLOT, Access::LOCAL_WRITE)?;
    for slot in 0..4 {
        srq.post_recv(&RecvWr::new(slot as u64, &[pool.sge(slot * SLOT..(slot + 1) * SLOT)]))?;
    }
    srq.arm_limit(2);

    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let peer = TestEndpoint::new(Context::on_fabric(&fabric)?)?;
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default().srq(&srq))?;
        qp.connect(&peer.qp.endpoint(), &ConnectOptions::default())?;
        peer.qp.connect(&qp.endpoint(), &ConnectOptions::default())?;
        peers.push((peer, qp));
    }
    for (index, (peer, qp)) in peers.iter().enumerate() {
        let text = format!("message of peer {index}");
        peer.qp.post_send(&SendWr::send(9, &[]).inline(text.as_bytes()))?;
        peer.cq.wait(LIMIT)?;
        let received = cq.wait(LIMIT)?;
        let (slot, len) = (received.wr_id as usize, received.byte_len as usize);
        let bytes = pool.read_vec(slot * SLOT..slot * SLOT + len)?;
        println!("slot {slot}, on {}: {:?}", received.qpn, String::from_utf8_lossy(&bytes));
        assert_eq!((&bytes[..], received.qpn), (text.as_bytes(), qp.qpn()));
    }
    let event = context.wait_event(LIMIT)?;
    println!("event {event:?}: one of four receives is left");
    assert_eq!(event, AsyncEvent::SrqLimit(srq.id()));
    Ok(())
}
