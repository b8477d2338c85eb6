//! Tokio tasks: a client connects to a server by address and port, and both await completions.
//!
//! Shows `AsyncListener`, `AsyncSession`, `AsyncCq`, and a timeout with `tokio::time::timeout`. Run it with
//! `cargo run --package urxe-tokio --example tokio_tasks`.

use std::net::SocketAddr;
use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::*;
use urxe_tokio::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

const MESSAGES: u64 = 5;

async fn server(mut listener: AsyncListener) -> Result<(), Error> {
    let incoming = listener.next().await?;
    let context = incoming.context().ok_or("the connection has no device")?;
    let mut cq = AsyncCq::new(&context, 64)?;
    let qp = context.alloc_pd()?.create_qp(cq.cq(), cq.cq(), &QpOptions::default())?;
    let mut session = AsyncSession::accept(incoming, qp, &ConnParam::with_data(b"welcome")).await?;
    (0..MESSAGES).try_for_each(|wr_id| session.qp().post_recv(&RecvWr::empty(wr_id)))?;
    for expected in 0..MESSAGES {
        let message = cq.wait().await?;
        println!("server: message {:?}", message.imm);
        assert_eq!(message.imm, Some(expected as u32));
    }
    session.wait_for_disconnect().await?;
    session.disconnect().await?;
    Ok(())
}

async fn client(manager: ConnectionManager, to: SocketAddr) -> Result<(), Error> {
    let context = manager.devices()[0].clone();
    let mut cq = AsyncCq::new(&context, 64)?;
    let new_qp = |device: &Context| device.alloc_pd()?.create_qp(cq.cq(), cq.cq(), &QpOptions::default());
    let session = AsyncSession::connect(&manager, to, new_qp, &ConnParam::default()).await?;
    println!(
        "client: connected, the server says {:?}",
        String::from_utf8_lossy(&session.private_data()[..7])
    );
    for wr_id in 0..MESSAGES {
        session.qp().post_send(&SendWr::send_imm(wr_id, &[], wr_id as u32))?;
        assert_eq!(cq.wait().await?.wr_id, wr_id);
    }
    session.disconnect().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let fabric = Fabric::new();
    let (local, remote) = (Context::on_fabric(&fabric)?, Context::on_fabric(&fabric)?);
    let address = (remote.address().ok_or("no address")?, 7471).into();
    let listener = AsyncListener::bind(&ConnectionManager::new(vec![remote])?, address)?;
    let server = tokio::spawn(server(listener));
    let limit = Duration::from_secs(10);
    tokio::time::timeout(limit, client(ConnectionManager::new(vec![local])?, address)).await??;
    tokio::time::timeout(limit, server).await???;
    println!("both tasks have ended");
    Ok(())
}
