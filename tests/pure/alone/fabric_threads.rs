//! Test that a thread that sends over a fabric drives the NICs at both ends while their background threads
//! stay idle; otherwise data would move from core to core. It runs alone because it measures the CPU
//! time of all threads.

use nix::time::{ClockId, clock_gettime};
use urxe::verbs::*;

/// Number of messages; at most `IN_FLIGHT` of them are in flight.
const MESSAGES: u64 = 300;
const IN_FLIGHT: u64 = 8;
const SIZE: usize = 1 << 20;
const ROUNDS: usize = 7;

#[test]
fn background_threads_stay_idle_while_sender_polls() {
    let _alone = super::alone();
    // On a loaded machine that preempts the sender for long, a background thread rightly takes over, so one
    // of several rounds must do.
    let ratios: Vec<f64> = (0..ROUNDS).map(|_| background_cpu_ratio()).collect();
    println!("CPU time of the background threads relative to the sender's: {ratios:.3?}");
    assert!(ratios.iter().any(|ratio| *ratio < 0.2), "{ratios:.3?}");
}

/// Returns the CPU time that the other threads use while this thread sends, divided by this thread's own CPU
/// time.
fn background_cpu_ratio() -> f64 {
    let (a, b) = Fabric::new().pair().unwrap();
    let [source, target] = [&a, &b].map(|node| node.pd.reg_mr(SIZE, Access::ALL).unwrap());
    let sges = [source.sge(0..SIZE)];
    let write = SendWr::write(0, &sges, target.remote(0)).flags(SendFlags::SIGNALED);
    let (before, mut posted, mut done) = (times(), 0, 0);
    let mut completions = Vec::new();
    while done < MESSAGES {
        while posted < MESSAGES.min(done + IN_FLIGHT) {
            a.qp.post_send(&write).unwrap();
            posted += 1;
        }
        completions.clear();
        a.cq.poll(64, &mut completions).unwrap();
        assert!(completions.iter().all(|c| c.status == WcStatus::Success), "{completions:?}");
        done += completions.len() as u64;
    }
    let after = times();
    let [own, others] = [after[0] - before[0], after[1] - before[1]];
    others as f64 / own as f64
}

/// Returns the CPU time in nanoseconds used so far by this thread, and by all other threads of the process.
fn times() -> [u64; 2] {
    let [own, all] = [ClockId::CLOCK_THREAD_CPUTIME_ID, ClockId::CLOCK_PROCESS_CPUTIME_ID].map(|clock| {
        let time = clock_gettime(clock).unwrap();
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    });
    [own, all - own]
}
