//! Device removal: an adapter is unplugged, its owner and a sending peer notice, and a new device takes over
//! its address.
//!
//! Shows `Fabric::remove_device`, asynchronous events, and the errors that programs must handle. Run it with
//! `cargo run --example device_removal`.

use std::time::Duration;

use urxe::verbs::errors::CreateError;
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::virtual_time(FabricConfig::default())?;
    let (a, b) = fabric.pair()?;
    let address = b.context.address().ok_or("no address")?;
    b.qp.post_recv(&RecvWr::empty(1))?;
    fabric.remove_device(address)?;

    println!("owner of the device: event {:?}", b.context.wait_event(LIMIT)?);
    let flushed = b.cq.wait_any(LIMIT)?;
    println!("owner of the device: receive {} ends with {}", flushed.wr_id, flushed.status);
    assert_eq!(flushed.status, WcStatus::WrFlushErr);
    let refused = b.pd.reg_mr(4096, Access::LOCAL_WRITE).map(drop);
    println!("owner of the device: registering memory fails: {}", refused.as_ref().expect_err("no device"));
    assert_eq!(refused, Err(CreateError::DeviceFatal));

    a.qp.post_send(&SendWr::send(2, &[]))?;
    let failed = a.cq.wait_any(LIMIT)?;
    println!("peer: SEND {} ends with {}", failed.wr_id, failed.status);
    assert_eq!(failed.status, WcStatus::RetryExcErr);

    // The address is free again, so the replacement may use it.
    let replacement =
        Context::on_port(fabric.port(&[address])?, &ContextOptions::default(), |port| Box::new(port))?;
    let (a, b) = (TestEndpoint::new(a.context)?, TestEndpoint::new(replacement)?);
    a.connect(&b, &ConnectOptions::default())?;
    b.qp.post_recv(&RecvWr::empty(3))?;
    a.qp.post_send(&SendWr::send(4, &[]))?;
    assert_eq!((a.cq.wait(LIMIT)?.wr_id, b.cq.wait(LIMIT)?.wr_id), (4, 3));
    println!("a new device at the same address works");
    Ok(())
}
