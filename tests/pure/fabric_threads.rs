//! Threads with blocking calls on a fabric in virtual time ([`Fabric::spawn`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(60);
const MESSAGES: u64 = 20;

/// Event: a thread's name, a number and the virtual time in nanoseconds.
type Entry = (&'static str, u64, u64);

/// Events of all threads, in order.
#[derive(Clone)]
struct Log {
    fabric: Fabric,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Log {
    fn new(fabric: &Fabric) -> Log {
        Log { fabric: fabric.clone(), entries: Arc::default() }
    }

    fn add(&self, thread: &'static str, n: u64) {
        self.entries.lock().unwrap().push((thread, n, self.fabric.now().0));
    }

    fn names(&self) -> Vec<&'static str> {
        self.entries.lock().unwrap().iter().map(|(name, ..)| *name).collect()
    }
}

fn fabric(config: FabricConfig) -> Fabric {
    Fabric::virtual_time(config.latency(Duration::from_micros(5))).unwrap()
}

fn lossy(seed: u64) -> Fabric {
    fabric(FabricConfig::default().loss(0.05).seed(seed))
}

/// Sends messages of `len` bytes, each when the one before is acknowledged.
fn send_all(node: &TestEndpoint, log: &Log, name: &'static str) {
    for n in 0..MESSAGES {
        node.qp.post_send(&SendWr::send(n, &[]).inline(b"message")).unwrap();
        assert_eq!(node.cq.wait(LIMIT).unwrap().wr_id, n);
        log.add(name, n);
    }
}

/// Receives the messages, with a single receive posted at a time.
fn receive_all(node: &TestEndpoint, log: &Log, name: &'static str) {
    let buffer = node.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    for n in 0..MESSAGES {
        node.qp.post_recv(&RecvWr::new(n, &[buffer.sge(0..64)])).unwrap();
        assert_eq!(node.cq.wait(LIMIT).unwrap().byte_len, 7);
        log.add(name, n);
    }
}

/// Runs two clients and their servers over a wire with loss. Returns the log.
fn two_conversations(seed: u64) -> Vec<Entry> {
    let fabric = lossy(seed);
    let log = Log::new(&fabric);
    let mut threads = Vec::new();
    for (client, server) in [("client 1", "server 1"), ("client 2", "server 2")] {
        let (a, b) = fabric.pair().unwrap();
        let (log_a, log_b) = (log.clone(), log.clone());
        threads.push(fabric.spawn(move || send_all(&a, &log_a, client)));
        threads.push(fabric.spawn(move || receive_all(&b, &log_b, server)));
    }
    threads.into_iter().for_each(FabricThread::join);
    let entries = log.entries.lock().unwrap();
    entries.clone()
}

#[test]
fn blocking_threads_complete_over_loss_and_a_seed_repeats_every_step() {
    let first = two_conversations(3);
    assert_eq!(first.len() as u64, 4 * MESSAGES);
    assert!(first.is_sorted_by_key(|(.., at)| *at));
    for _ in 0..5 {
        assert_eq!(two_conversations(3), first);
    }
    assert_ne!(two_conversations(4), first);
}

#[test]
fn thread_that_was_not_spawned_takes_part_while_it_waits() {
    let fabric = lossy(5);
    let log = Log::new(&fabric);
    let (a, b) = fabric.pair().unwrap();
    let server_log = log.clone();
    let server = fabric.spawn(move || receive_all(&b, &server_log, "server"));
    assert!(!server.is_finished());
    send_all(&a, &log, "client");
    server.join();
    assert_eq!(log.names().len() as u64, 2 * MESSAGES);
}

#[test]
fn threads_that_only_poll_let_others_run_and_time_pass() {
    let poll = |seed| {
        let fabric = lossy(seed);
        let (a, b) = fabric.pair().unwrap();
        let clock = fabric.clone();
        let receiver = fabric.spawn(move || {
            b.qp.post_recv(&RecvWr::empty(1)).unwrap();
            let (mut out, mut polls) = (Vec::new(), 0);
            while b.cq.poll(1, &mut out).unwrap() == 0 {
                polls += 1;
            }
            (polls, clock.now())
        });
        let sender = fabric.spawn(move || {
            a.qp.post_send(&SendWr::send(2, &[])).unwrap();
            let mut out = Vec::new();
            while a.cq.poll(1, &mut out).unwrap() == 0 {}
        });
        sender.join();
        receiver.join()
    };
    let (polls, at) = poll(1);
    assert!(polls > 0 && at.0 >= 5_000, "{polls} polls until {at:?}");
    assert_eq!(poll(1), (polls, at));
}

#[test]
fn sleeping_threads_wake_at_their_times() {
    let fabric = fabric(FabricConfig::default());
    let log = Log::new(&fabric);
    let sleepers = [("late", 30), ("early", 10), ("middle", 20)].map(|(name, ms)| {
        let log = log.clone();
        fabric.spawn(move || {
            log.fabric.sleep(Duration::from_millis(ms));
            log.add(name, ms);
        })
    });
    fabric.sleep(Duration::from_millis(15));
    log.add("main", 15);
    sleepers.into_iter().for_each(FabricThread::join);
    assert_eq!(log.names(), ["early", "main", "middle", "late"]);
    assert_eq!(fabric.now().0, 30_000_000);
}

#[test]
fn timeout_expires_at_its_virtual_time_also_if_nothing_is_pending() {
    let fabric = fabric(FabricConfig::default());
    let (a, b) = fabric.pair().unwrap();
    let clock = fabric.clone();
    let waits = fabric.spawn(move || {
        let error = b.cq.wait(Duration::from_millis(7)).unwrap_err();
        assert!(matches!(error, WaitError::TimedOut(_)), "{error}");
        clock.now().0
    });
    assert_eq!(waits.join(), 7_000_000);
    drop(a);
}

#[test]
fn waits_without_timeouts_that_nothing_can_end_report_that_the_fabric_is_idle() {
    let fabric = fabric(FabricConfig::default());
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let node = fabric.pair().unwrap().0;
            fabric.spawn(move || node.cq.wait(Duration::MAX).unwrap_err())
        })
        .collect();
    for thread in threads {
        let error = thread.join();
        assert!(matches!(error, WaitError::Idle) && error.to_string().contains("Fabric::spawn"), "{error}");
    }
}

#[test]
fn wait_until_ends_with_what_another_thread_passes_on() {
    let fabric = fabric(FabricConfig::default());
    let (sender, receiver) = mpsc::channel();
    let (clock, own) = (fabric.clone(), fabric.clone());
    let consumer = fabric.spawn(move || {
        let sum = (0..10).map(|_| clock.wait_until(LIMIT, || receiver.try_recv().ok()).unwrap()).sum::<u32>();
        (sum, clock.now().0)
    });
    let producer = fabric.spawn(move || {
        for n in 0..10 {
            sender.send(n).unwrap();
            own.sleep(Duration::from_micros(1));
        }
    });
    producer.join();
    assert_eq!(consumer.join(), (45, 9_000));
}

#[test]
fn panic_of_a_thread_reaches_the_one_that_joins_it_and_others_go_on() {
    let fabric = fabric(FabricConfig::default());
    let sleeper = {
        let fabric = fabric.clone();
        fabric.clone().spawn(move || fabric.sleep(Duration::from_millis(1)))
    };
    let panics = fabric.spawn(|| panic!("on purpose"));
    let payload = catch_unwind(AssertUnwindSafe(|| panics.join())).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    sleeper.join();
}

#[test]
fn connection_manager_with_blocking_calls_connects_over_loss() {
    let new_qp = |context: &Context| {
        let cq = context.create_cq(8)?;
        context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
    };
    let run = |seed| {
        let fabric = lossy(seed);
        let (local, remote) = (Context::on_fabric(&fabric).unwrap(), Context::on_fabric(&fabric).unwrap());
        let address = (remote.address().unwrap(), 7471).into();
        let listener = Listener::bind(&ConnectionManager::new(vec![remote]).unwrap(), address).unwrap();
        let server = fabric.spawn(move || {
            let incoming = listener.next(LIMIT).unwrap();
            let qp = new_qp(&incoming.context().unwrap()).unwrap();
            let session = incoming.accept(qp, &ConnParam::with_data(b"welcome"), LIMIT).unwrap();
            session.qp().post_recv(&RecvWr::empty(1)).unwrap();
            let imm = session.qp().recv_cq().wait(LIMIT).unwrap().imm;
            session.wait_for_disconnect(LIMIT).unwrap();
            session.disconnect(LIMIT).unwrap();
            imm
        });
        let client = ConnectionManager::new(vec![local]).unwrap();
        let session = client.connect(address, new_qp, &ConnParam::default(), LIMIT).unwrap();
        session.qp().post_send(&SendWr::send_imm(1, &[], 42)).unwrap();
        session.qp().send_cq().wait(LIMIT).unwrap();
        session.disconnect(LIMIT).unwrap();
        assert_eq!(server.join(), Some(42));
        fabric.now()
    };
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn threads_in_real_time_run_at_once() {
    let fabric = Fabric::new();
    let (a, b) = fabric.pair().unwrap();
    let (sender, receiver) = mpsc::channel();
    let server = fabric.spawn(move || {
        b.qp.post_recv(&RecvWr::empty(1)).unwrap();
        sender.send(()).unwrap();
        b.cq.wait(LIMIT).unwrap().wr_id
    });
    receiver.recv().unwrap();
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    a.cq.wait(LIMIT).unwrap();
    assert_eq!(server.join(), 1);
    let error = fabric.wait_until(Duration::from_millis(1), || None::<()>).unwrap_err();
    assert!(matches!(error, WaitError::TimedOut(_)), "{error}");
}
