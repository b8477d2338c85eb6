//! Atomics: four NICs increment one counter in the memory of a fifth without losing an update, and take a
//! lock by compare-and-swap.
//!
//! Shows fetch-and-add and compare-and-swap from several threads. Run it with `cargo run --example atomics`.

use std::time::Duration;

use urxe::verbs::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 4;
const INCREMENTS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(10);

/// Increments the counter, then acquires and releases the lock. Returns the number of attempts needed to
/// acquire the lock.
fn work(node: &MeshNode, own: usize, counter: RemoteAddr, lock: RemoteAddr) -> Result<u64> {
    let qp = node.qp(0).ok_or("node 0 is the server")?;
    let old = node.pd.reg_mr(8, Access::LOCAL_WRITE)?;
    let original = || u64::from_ne_bytes(old.to_vec().try_into().expect("the region has 8 bytes"));
    for wr_id in 0..INCREMENTS {
        qp.post_send(&SendWr::fetch_add(wr_id, &[old.sge(0..8)], counter, 1))?;
        node.cq.wait(LIMIT)?;
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        qp.post_send(&SendWr::compare_swap(1, &[old.sge(0..8)], lock, 0, own as u64))?;
        node.cq.wait(LIMIT)?;
        if original() == 0 {
            break;
        }
    }
    // The holder releases the lock, and finds its own number in it.
    qp.post_send(&SendWr::compare_swap(2, &[old.sge(0..8)], lock, own as u64, 0))?;
    node.cq.wait(LIMIT)?;
    assert_eq!(original(), own as u64, "another client took the lock meanwhile");
    Ok(attempts)
}

fn main() -> Result<()> {
    let mut nodes = Fabric::new().mesh(CLIENTS + 1)?.into_iter();
    let server = nodes.next().ok_or("no server")?;
    let memory = server.pd.reg_mr(16, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let (counter, lock) = (memory.remote(0), memory.remote(8));
    let clients: Vec<_> = (1..)
        .zip(nodes)
        .map(|(own, node)| std::thread::spawn(move || work(&node, own, counter, lock).map(|n| (own, n))))
        .collect();
    for client in clients {
        let (own, attempts) = client.join().expect("clients do not panic")?;
        println!("client {own}: {INCREMENTS} increments, the lock after {attempts} attempts");
    }
    let value = u64::from_ne_bytes(memory.read_vec(0..8)?[..].try_into()?);
    println!("the counter is {value}");
    assert_eq!(value, CLIENTS as u64 * INCREMENTS);
    Ok(())
}
