//! Tests that a warmed-up NIC does not allocate: no thread allocates for a message of any kind and size, over
//! the fabric or over UDP sockets.
//!
//! There is only one test, because the counter covers the whole process and would count the allocations of a
//! concurrent test too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every method forwards its arguments unchanged to the system allocator, which fulfils the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees the same contract for `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees the same contract for `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees that `ptr` is from this allocator, hence from the system's, with
        // `layout`.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `ptr` is from this allocator, hence from the system's, with
        // `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LARGEST: usize = 1 << 20;
/// Length of the longest list of work requests.
const LONGEST: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    Read,
    /// Half WRITEs and half inline SENDs, posted in one batch (wr_start, wr_complete) and polled one by one.
    Session,
}

struct Ends {
    a: TestEndpoint,
    b: TestEndpoint,
    ours: Mr,
    theirs: Mr,
    completions: Vec<Completion>,
}

impl Ends {
    fn new(a: TestEndpoint, b: TestEndpoint) -> Ends {
        let ours = a.pd.reg_mr(LARGEST, Access::ALL).unwrap();
        let theirs = b.pd.reg_mr(LARGEST, Access::ALL).unwrap();
        Ends { a, b, ours, theirs, completions: Vec::with_capacity(64) }
    }

    /// Exchanges messages, `depth` at a time, each lot complete before the next: posted one by one, each with
    /// a completion, or as a list with one completion at its end. The application of the passive side takes
    /// no part in WRITEs and READs: its NIC's background thread responds.
    fn exchange(&mut self, kind: Kind, listed: bool, len: usize, depth: usize, lots: usize) {
        let (ours, theirs) = ([self.ours.sge(0..len)], [self.theirs.sge(0..len)]);
        let remote = self.theirs.remote(0);
        for lot in 0..lots {
            if matches!(kind, Kind::Session) {
                self.session(len, depth, remote);
                continue;
            }
            if matches!(kind, Kind::Send) {
                for id in 0..depth as u64 {
                    self.b.qp.post_recv(&RecvWr { wr_id: id, sges: &theirs }).unwrap();
                }
            }
            // The last `depth` entries form the lot; an array needs no allocation.
            let wrs: [SendWr<'_>; LONGEST] = std::array::from_fn(|i| {
                let id = (lot * LONGEST + i) as u64;
                let wr = match kind {
                    Kind::Send => SendWr::send(id, &ours),
                    Kind::Write => SendWr::write(id, &ours, remote),
                    Kind::Read => SendWr::read(id, &ours, remote),
                    Kind::Session => unreachable!("posted above"),
                };
                let signaled = !listed || i + 1 == LONGEST;
                SendWr { flags: SendFlags { signaled, ..SendFlags::default() }, ..wr }
            });
            let wrs = &wrs[LONGEST - depth..];
            let mut missing = if listed { 1 } else { depth };
            if matches!(kind, Kind::Send) {
                missing += depth;
            }
            match listed {
                true => self.a.qp.post_send_list(wrs).unwrap(),
                false => wrs.iter().for_each(|wr| self.a.qp.post_send(wr).unwrap()),
            }
            let begin = Instant::now();
            while missing > 0 {
                self.completions.clear();
                missing -= self.a.cq.poll(64, &mut self.completions).unwrap();
                if matches!(kind, Kind::Send) {
                    missing -= self.b.cq.poll(64, &mut self.completions).unwrap();
                }
                assert!(self.completions.iter().all(|c| c.status == WcStatus::Success));
                assert!(
                    begin.elapsed() < Duration::from_secs(30),
                    "{kind:?} of {len} bytes does not complete"
                );
            }
        }
    }

    fn session(&mut self, len: usize, depth: usize, remote: RemoteAddr) {
        let (ours, theirs) = (self.ours.sge(0..len), [self.theirs.sge(0..64)]);
        let sends = depth / 2;
        for id in 0..sends as u64 {
            self.b.qp.post_recv(&RecvWr { wr_id: id, sges: &theirs }).unwrap();
        }
        // An aborted batch reuses its memory as a completed one does.
        let mut given_up = self.a.qp.wr_start();
        given_up.wr_rdma_write(remote).set_sge(ours);
        given_up.abort();
        let mut wr = self.a.qp.wr_start();
        for i in 0..depth {
            wr.wr_id = i as u64;
            if i < sends {
                wr.wr_send().set_inline_data_list(&[b"in", b"line"]);
            } else {
                wr.wr_rdma_write(remote).set_sge(ours);
            }
        }
        wr.complete().unwrap();
        let mut missing = depth + sends;
        let begin = Instant::now();
        while missing > 0 {
            for cq in [&self.a.cq, &self.b.cq] {
                let mut poll = cq.start_poll();
                while let Some(wc) = poll.next_poll().unwrap() {
                    assert_eq!((wc.status(), wc.completion_timestamp() > 0), (WcStatus::Success, true));
                    missing -= 1;
                }
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "a session does not complete");
        }
    }

    /// Returns the number of allocations for a number of messages after the warm-up, as the least of several
    /// tries. A thread that was preempted at the wrong moment queues more than ever before, and buffers grow
    /// once to hold that; the cost of each message recurs in every try.
    fn count(&mut self, kind: Kind, listed: bool, len: usize, depth: usize, lots: usize) -> u64 {
        let mut least = u64::MAX;
        for _ in 0..8 {
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            self.exchange(kind, listed, len, depth, lots);
            least = least.min(ALLOCATIONS.load(Ordering::SeqCst) - before);
            if least == 0 {
                break;
            }
        }
        least
    }
}

fn measure(name: &str, mut ends: Ends) -> Vec<String> {
    let mut found = Vec::new();
    let kinds =
        [Kind::Send, Kind::Write, Kind::Read].into_iter().flat_map(|kind| [(kind, false), (kind, true)]);
    let kinds: Vec<_> = kinds.chain([(Kind::Session, false)]).collect();
    for (len, depth, lots) in
        [(8, 1, 2000), (8, 16, 500), (8, LONGEST, 200), (64 << 10, 4, 100), (LARGEST, 2, 20)]
    {
        for (kind, listed) in &kinds {
            let n = ends.count(*kind, *listed, len, depth, lots);
            let how = if *listed { "in lists" } else { "one by one" };
            let line = format!("{name}: {n} allocations for {} {kind:?} of {len} bytes, {how}", depth * lots);
            println!("{line}");
            found.extend((n > 0).then_some(line));
        }
    }
    found
}

fn on_udp(ip: &str, shards: usize) -> TestEndpoint {
    let ip = ip.parse::<IpAddr>().unwrap();
    let links = UdpLink::bind_shards(ip, &UdpOptions::default(), shards).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as _).collect();
    TestEndpoint::new(Context::open_shards(links, &ContextOptions::default()).unwrap()).unwrap()
}

#[test]
fn messages_do_not_allocate_after_warm_up() {
    let (a, b) = Fabric::new().pair().unwrap();
    let mut found = measure("fabric", Ends::new(a, b));

    for (shards, name) in [(1, "udp"), (2, "udp, two shards")] {
        let (a, b) = (on_udp("127.83.1.1", shards), on_udp("127.83.1.2", shards));
        a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
        b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
        found.extend(measure(name, Ends::new(a, b)));
    }
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > 0, "the counter counts");
    assert!(found.is_empty(), "{found:#?}");
}
