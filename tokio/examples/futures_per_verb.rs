//! A future for each verb: tasks share one queue pair, and wait for the results of READs, WRITEs, atomics and
//! messages.
//!
//! Shows `AsyncQp` with several requests in flight, more requests than the send queue has room for, and a
//! message that is awaited with a timeout. Run it with `cargo run --package urxe-tokio --example
//! futures_per_verb`.

use std::sync::Arc;
use std::time::Duration;

use urxe::verbs::*;
use urxe_tokio::AsyncQp;

const TASKS: u64 = 8;
const ROUNDS: u64 = 50;

/// Counts up in the peer's memory, and stores each number in a slot that it owns there.
async fn worker(qp: AsyncQp, table: RemoteAddr, task: u64) -> Result<u64, urxe::Error> {
    let buffer = Arc::new(qp.qp().pd().reg_mr(16, Access::LOCAL_WRITE)?);
    let slot = RemoteAddr { va: table.va + 8 * (1 + task), ..table };
    let mut last = 0;
    for _ in 0..ROUNDS {
        last = qp.fetch_add(table, 1).await?;
        buffer.write(0, &last.to_ne_bytes())?;
        qp.write(&buffer, 0..8, slot).await?;
    }
    qp.read(&buffer, 8..16, slot).await?;
    assert_eq!(buffer.buffer().load_u64(8)?, last);
    Ok(last)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::new();
    let options = QpOptions::default().send(SendCaps { max_wr: 4, max_sge: 1, max_inline: 0 });
    let open =
        || AsyncQp::<Rc>::new(&Context::on_fabric(&fabric)?.alloc_pd()?, &options).map_err(urxe::Error::from);
    let (client, server) = (open()?, open()?);
    client.qp().connect(&server.qp().endpoint(), &ConnectOptions::default())?;
    server.qp().connect(&client.qp().endpoint(), &ConnectOptions::default())?;
    let table = Arc::new(server.qp().pd().reg_mr(8 * (1 + TASKS as usize), Access::ALL)?);

    let tasks = (0..TASKS).map(|task| tokio::spawn(worker(client.clone(), table.remote(0), task)));
    for (task, worker) in tasks.collect::<Vec<_>>().into_iter().enumerate() {
        println!("task {task}: its last number is {}", worker.await??);
    }
    assert_eq!(table.buffer().load_u64(0)?, TASKS * ROUNDS);

    // The receive stays posted after the timeout, because its future still exists.
    let inbox = Arc::new(server.qp().pd().reg_mr(64, Access::LOCAL_WRITE)?);
    let mut message = std::pin::pin!(server.recv(&inbox, 0..64));
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut message).await.is_err());
    let source = Arc::new(client.qp().pd().reg_mr(4, Access::LOCAL_WRITE)?);
    source.write(0, b"done")?;
    client.execute(SendWr::send_imm(0, &[source.sge(0..4)], 42), &[&source]).await?;
    let received = message.await?;
    let text = inbox.read_vec(0..received.byte_len as usize)?;
    println!("server: message {:?} with {:?}", String::from_utf8_lossy(&text), received.imm);
    assert_eq!((text.as_slice(), received.imm), (&b"done"[..], Some(42)));
    Ok(())
}
