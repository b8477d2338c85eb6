//! Who sends on a fabric runs both ends: the NICs' background threads keep off, or data would move from core to core.
//! Alone in its process: it adds up the time of all threads.

use std::fs;

use urxe::verbs::*;

/// Messages, and how many of them are in flight.
const MESSAGES: u64 = 400;
const IN_FLIGHT: u64 = 8;
const SIZE: usize = 1 << 20;

#[test]
fn background_threads_leave_a_stream_to_who_sends_it() {
    let fabric = Fabric::new();
    let [a, b] = [0, 1].map(|_| End::new(&fabric));
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
    let sges = [a.mr.sge(0..SIZE)];
    let write = SendWr { flags: SendFlags::SIGNALED, ..SendWr::write(0, &sges, b.mr.remote(0)) };
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
    let [ours, theirs] = [after[0] - before[0], after[1] - before[1]];
    println!("processor time: the sender {ours} ns, background threads {theirs} ns");
    assert!(theirs < ours / 20, "background threads took {theirs} ns, the sender {ours} ns");
}

struct End {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(fabric: &Fabric) -> End {
        let context = Context::on_fabric(fabric).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        let mr = pd.reg_mr(SIZE, Access::ALL).unwrap();
        End { cq, qp, mr }
    }
}

/// Nanoseconds that this thread and all background threads of NICs have had of processors so far.
fn times() -> [u64; 2] {
    let run = |dir: &str| -> u64 {
        let text = fs::read_to_string(format!("{dir}/schedstat")).unwrap();
        text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap()
    };
    let tasks =
        fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().display().to_string());
    let named = |dir: &String| fs::read_to_string(format!("{dir}/comm")).unwrap().starts_with("urxe");
    [run("/proc/thread-self"), tasks.filter(named).map(|dir| run(&dir)).sum()]
}
