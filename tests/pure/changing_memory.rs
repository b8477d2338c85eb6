//! Tests that packets are sent with a valid ICRC even if their payload changes at the same time, as flags and
//! counters that a peer READs may.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use urxe::verbs::*;
use urxe_test_support::nic::{on_udp, pair};
use urxe_test_support::requirement;

const LEN: usize = 64 << 10;
/// Payload length of a packet: the path MTU over the loopback interface.
const PACKET: usize = 4096;
/// Distance in bytes between the changing words.
const STEP: usize = 512;
/// Number of packets in each direction that must have changed during their copy before the test ends.
const TORN: usize = 20;
const LIMIT: Duration = Duration::from_secs(120);

/// Returns how many packets of a received message changed while they were copied. The writer stores
/// increasing numbers in all words, from the lowest address to the highest, so at any instant no word is
/// larger than the one before it; an increase within a packet shows that the memory changed during the copy.
fn count_torn(received: &Mr) -> usize {
    let words: Vec<u64> = (0..LEN).step_by(STEP).map(|at| received.buffer().load_u64(at).unwrap()).collect();
    words.chunks(PACKET / STEP).filter(|packet| !packet.is_sorted_by(|a, b| a >= b)).count()
}

#[test]
fn memory_changing_during_transfer_causes_no_icrc_errors() {
    let has_two_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if !requirement::is_met(has_two_cores, "memory changes during a copy only with a second processor") {
        return;
    }
    let [a, b] = pair(["127.91.0.1", "127.91.0.2"].map(|ip| on_udp(ip, 1)));
    // For each direction, the source, which changes, and the target.
    let [a_source, a_target] = [(); 2].map(|()| a.pd.reg_mr(LEN, Access::ALL).unwrap());
    let [b_source, b_target] = [(); 2].map(|()| b.pd.reg_mr(LEN, Access::ALL).unwrap());
    let is_done = AtomicBool::new(false);
    let torn = std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1.. {
                for source in [&a_source, &b_source] {
                    (0..LEN).step_by(STEP).for_each(|at| source.buffer().store_u64(at, n).unwrap());
                }
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let transfer = |read: bool| {
            let (sges, to) = match read {
                true => ([a_target.sge(0..LEN)], b_source.remote(0)),
                false => ([a_source.sge(0..LEN)], b_target.remote(0)),
            };
            let wr = if read { SendWr::read(1, &sges, to) } else { SendWr::write(1, &sges, to) };
            let wr = wr.flags(SendFlags::SIGNALED);
            a.qp.post_send(&wr).map_err(|e| e.to_string())?;
            a.cq.wait(Duration::from_secs(20)).map_err(|e| e.to_string())?;
            Ok::<_, String>(count_torn(if read { &a_target } else { &b_target }))
        };
        let (start, mut torn) = (Instant::now(), Ok([0, 0]));
        while let Ok(counts) = &mut torn
            && counts.iter().any(|count| *count < TORN)
            && start.elapsed() < LIMIT
        {
            for (read, direction) in [false, true].into_iter().zip(0..) {
                match transfer(read) {
                    Ok(count) => counts[direction] += count,
                    Err(e) => {
                        torn = Err(e);
                        break;
                    }
                }
            }
        }
        is_done.store(true, Ordering::Relaxed);
        torn
    });
    let torn = torn.unwrap();
    for (name, endpoint) in [("requester", &a), ("responder", &b)] {
        let counters = endpoint.context.counters();
        assert!(counters.rcvd_pkts > 16, "{name}: {counters:?}");
        assert_eq!(counters.rx_icrc_err, 0, "{name}");
    }
    assert!(
        torn.iter().all(|count| *count >= TORN),
        "packets copied while memory changed: {torn:?} (WRITE, READ)"
    );
}
