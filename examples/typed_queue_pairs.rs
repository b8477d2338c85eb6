//! Typed queue pairs: the service is in the type, so that a call that the service does not have is a compile
//! error.
//!
//! Shows `Qp<Rc>`, `Qp<Uc>` and `Qp<Ud>`, a function over all connected services, and conversions. Run it
//! with `cargo run --example typed_queue_pairs`.

use std::time::Duration;

use urxe::verbs::service::{Connected, Service};
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(10);
const QKEY: QKey = QKey(0x1234);

/// Creates a queue pair of any service, on a NIC of its own.
fn create<S: Service>(fabric: &Fabric) -> Result<Qp<S>, urxe::Error> {
    let context = Context::on_fabric(fabric)?;
    let cq = context.create_cq(16)?;
    Ok(context.alloc_pd()?.create_typed_qp(&cq, &cq, &QpOptions::default())?)
}

/// Creates two connected queue pairs: `connected::<Ud>` does not compile.
fn connected<S: Service + Connected>(fabric: &Fabric) -> Result<(Qp<S>, Qp<S>), urxe::Error> {
    let (a, b) = (create::<S>(fabric)?, create::<S>(fabric)?);
    a.connect(&b.endpoint(), &ConnectOptions::default())?;
    b.connect(&a.endpoint(), &ConnectOptions::default())?;
    Ok((a, b))
}

/// WRITEs `text` from `a` to a new region at `b`, over any connected service.
fn write<S: Service + Connected>(a: &Qp<S>, b: &Qp<S>, text: &[u8]) -> Result<Mr, urxe::Error> {
    let target = b.pd().reg_mr(64, Access::ALL)?;
    b.post_recv(&RecvWr::empty(1))?;
    a.post_send(&SendWr::write_imm(2, &[], target.remote(0), text.len() as u32).inline(text))?;
    a.send_cq().wait(LIMIT)?;
    b.recv_cq().wait(LIMIT)?;
    assert_eq!(target.read_vec(0..text.len())?, text);
    Ok(target)
}

/// Sends `text` in a datagram, whose destination is an argument: without one, the call does not compile.
fn send(fabric: &Fabric, text: &[u8]) -> Result<(), urxe::Error> {
    let (a, b) = (create::<Ud>(fabric)?, create::<Ud>(fabric)?);
    a.activate(QKEY)?;
    b.activate(QKEY)?;
    let buffer = b.pd().reg_mr(256, Access::LOCAL_WRITE)?;
    b.post_recv(&RecvWr::new(1, &[buffer.sge(0..256)]))?;
    let path = a.pd().create_ah(&AddressVector::to(b.endpoint().gid))?;
    a.post_send(&SendWr::send_to(2, &[], path.to(b.qpn(), QKEY)).inline(text))?;
    let received = b.recv_cq().wait(LIMIT)?;
    // A routing header of 40 bytes precedes the data of a datagram.
    assert_eq!(buffer.read_vec(grh::LEN..received.byte_len as usize)?, text);
    Ok(())
}

fn main() -> Result<(), urxe::Error> {
    let fabric = Fabric::new();
    let (a, b) = connected::<Uc>(&fabric)?;
    write(&a, &b, b"over UC")?;
    send(&fabric, b"over UD")?;

    // RC also has READs: `SendWr::read` on a `Qp<Uc>` does not compile. A list holds different operations.
    let (a, b) = connected::<Rc>(&fabric)?;
    let target = write(&a, &b, b"over RC")?;
    let copy = a.pd().reg_mr(7, Access::LOCAL_WRITE)?;
    let sges = [copy.sge(0..7)];
    let list = [
        SendWr::write(3, &[], target.remote(0)).inline(b"OVER").signaled(false),
        SendWr::read(4, &sges, target.remote(0)),
    ];
    a.post_send_list(&list, ListPolicy::AllOrNone)?;
    a.send_cq().wait(LIMIT)?;
    assert_eq!(copy.to_vec(), b"OVER RC");

    // `Qp` alone is a queue pair of any service, as mock NICs have. A conversion checks the service.
    let (a, _b) = fabric.pair()?;
    let wrong = a.qp.typed::<Ud>().expect_err("the queue pair is of RC");
    println!("{wrong}");
    let qp = a.qp.typed::<Rc>()?;
    assert_eq!(qp.untyped().qpn(), a.qp.qpn());
    Ok(())
}
