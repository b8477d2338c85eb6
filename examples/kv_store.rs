//! Key-value store over RDMA READs: four nodes hold the values, and each reads the other nodes' values
//! without involving their CPUs.
//!
//! Shows `Fabric::mesh`, one-sided READs to several peers, and waiting for all completions. Run it with
//! `cargo run --example kv_store`.

use std::collections::HashMap;
use std::time::Duration;

use urxe::verbs::*;

const NODES: usize = 4;
const SLOTS: usize = 16;
const SLOT: usize = 32;

/// Returns the node and the slot that hold a key.
fn place(key: &str) -> (usize, usize) {
    let hash = key.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    (hash % NODES, hash / NODES % SLOTS)
}

fn main() -> Result<(), urxe::Error> {
    let nodes = Fabric::new().mesh(NODES)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let tables =
        nodes.iter().map(|node| node.pd.reg_mr(SLOTS * SLOT, access)).collect::<Result<Vec<_>, _>>()?;

    let stored =
        HashMap::from([("apple", "red"), ("banana", "yellow"), ("cherry", "dark red"), ("plum", "blue")]);
    for (key, value) in &stored {
        let (node, slot) = place(key);
        tables[node].write(slot * SLOT, value.as_bytes())?;
        println!("{key} is in slot {slot} of node {node}");
    }

    for (own, node) in nodes.iter().enumerate() {
        let results = node.pd.reg_mr(stored.len() * SLOT, Access::LOCAL_WRITE)?;
        let mut keys: Vec<&str> = stored.keys().copied().collect();
        keys.sort();
        let mut reads = 0;
        for (index, key) in keys.iter().enumerate() {
            let (owner, slot) = place(key);
            let at = index * SLOT;
            match node.qp(owner) {
                Some(qp) => {
                    let from = tables[owner].remote(slot * SLOT);
                    qp.post_send(&SendWr::read(index as u64, &[results.sge(at..at + SLOT)], from))?;
                    reads += 1;
                }
                // The node's own values need no READ.
                None => results.write(at, &tables[owner].read_vec(slot * SLOT..(slot + 1) * SLOT)?)?,
            }
        }
        for _ in 0..reads {
            node.cq.wait(Duration::from_secs(5))?;
        }
        let bytes = results.to_vec();
        for (key, value) in keys.iter().zip(bytes.chunks(SLOT)) {
            let text = String::from_utf8_lossy(value);
            assert_eq!(text.trim_end_matches('\0'), stored[key], "node {own} reads {key}");
        }
        println!("node {own} has looked up {} keys, {reads} of them at other nodes", keys.len());
    }
    Ok(())
}
