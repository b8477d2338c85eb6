//! Connection manager: connections by IP address and port, with private data, rejection and disconnection.
//!
//! Shows `Listener`, `ConnectionManager::connect` and `Session`. Run it with `cargo run --example
//! connection_manager`.

use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::errors::CreateError;
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(10);

fn new_qp(context: &Context) -> Result<Qp, CreateError> {
    let cq = context.create_cq(64)?;
    context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
}

/// Rejects the first connection request and accepts the second.
fn serve(listener: &Listener) -> Result<(), SessionError> {
    listener.next(LIMIT)?.reject(b"not yet")?;
    let incoming = listener.next(LIMIT)?;
    println!("server: request from {:?}", incoming.peer_addr());
    let qp = new_qp(&incoming.context().ok_or(IdError::Ended)?)?;
    let session = incoming.accept(qp, &ConnParam::with_data(b"welcome"), LIMIT)?;
    session.qp().post_recv(&RecvWr::empty(1)).expect("the queue pair accepts receives");
    let message = session.qp().recv_cq().wait(LIMIT)?;
    println!("server: message {:?}", message.imm);
    assert_eq!(message.imm, Some(42));
    session.wait_for_disconnect(LIMIT)?;
    session.disconnect(LIMIT)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::new();
    let (local, remote) = (Context::on_fabric(&fabric)?, Context::on_fabric(&fabric)?);
    let address = (remote.address().ok_or("no address")?, 7471).into();
    let listener = Listener::bind(&ConnectionManager::new(vec![remote])?, address)?;
    let server = std::thread::spawn(move || serve(&listener));

    let client = ConnectionManager::new(vec![local])?;
    match client.connect(address, new_qp, &ConnParam::default(), LIMIT) {
        Err(SessionError::Rejected { private_data, .. }) => {
            println!("client: rejected, {:?}", String::from_utf8_lossy(&private_data[..7]));
            assert_eq!(&private_data[..7], b"not yet");
        }
        other => return Err(format!("expected a rejection, got {other:?}").into()),
    }
    let session = client.connect(address, new_qp, &ConnParam::default(), LIMIT)?;
    println!("client: connected to {address}, {:?}", String::from_utf8_lossy(&session.private_data()[..7]));
    assert_eq!(&session.private_data()[..7], b"welcome");
    session.qp().post_send(&SendWr::send_imm(1, &[], 42))?;
    session.qp().send_cq().wait(LIMIT)?;
    session.disconnect(LIMIT)?;
    server.join().expect("the server does not panic")?;
    println!("client: disconnected");
    Ok(())
}
