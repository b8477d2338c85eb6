//! Tests that a warmed-up NIC does not allocate memory: no thread allocates for a message, whatever its
//! operation and size, over the fabric, with congestion control, and over UDP sockets.
//!
//! The counter covers the whole process, and would count the allocations of a concurrent test too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use urxe::verbs::*;
use urxe_test_support::cnp::{CnpLink, Cnps};
use urxe_test_support::nic::{on_udp, pair};

struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every method forwards its arguments unchanged to the system allocator, which fulfils the contract.
unsafe impl GlobalAlloc for CountingAllocator {
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
static ALLOCATOR: CountingAllocator = CountingAllocator;

const LARGEST: usize = 1 << 20;
/// Length of the longest list of work requests.
const MAX_LIST: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    Read,
    /// Half inline SENDs and half WRITEs, posted in one batch (`ListPolicy::AllOrNone`) and polled one by
    /// one.
    Batch,
}

struct Endpoints {
    a: TestEndpoint,
    b: TestEndpoint,
    requester_mr: Mr,
    responder_mr: Mr,
    completions: Vec<Completion>,
    /// CNPs for the requester: one for each batch.
    cnps: Option<Cnps>,
}

impl Endpoints {
    fn new(a: TestEndpoint, b: TestEndpoint) -> Endpoints {
        let requester_mr = a.pd.reg_mr(LARGEST, Access::ALL).unwrap();
        let responder_mr = b.pd.reg_mr(LARGEST, Access::ALL).unwrap();
        Endpoints { a, b, requester_mr, responder_mr, completions: Vec::with_capacity(64), cnps: None }
    }

    /// Exchanges `batches` batches of `depth` messages, each batch after the previous one has completed. The
    /// messages are posted one by one, each with a completion, or with `in_list` as a list whose last message
    /// has a completion. During WRITEs and READs the responder's application is idle, so the background
    /// thread of its NIC responds.
    fn exchange(&mut self, kind: Kind, in_list: bool, len: usize, depth: usize, batches: usize) {
        let (local_sges, recv_sges) = ([self.requester_mr.sge(0..len)], [self.responder_mr.sge(0..len)]);
        let remote = self.responder_mr.remote(0);
        for batch in 0..batches {
            if let Some(cnps) = &self.cnps {
                cnps.add(self.a.qp.endpoint().qpn);
            }
            if matches!(kind, Kind::Batch) {
                self.batch(len, depth, remote);
                continue;
            }
            if matches!(kind, Kind::Send) {
                for id in 0..depth as u64 {
                    self.b.qp.post_recv(&RecvWr::new(id, &recv_sges)).unwrap();
                }
            }
            // The last `depth` entries are posted; an array needs no allocation.
            let wrs: [SendWr<'_>; MAX_LIST] = std::array::from_fn(|i| {
                let id = (batch * MAX_LIST + i) as u64;
                let wr = match kind {
                    Kind::Send => SendWr::send(id, &local_sges),
                    Kind::Write => SendWr::write(id, &local_sges, remote),
                    Kind::Read => SendWr::read(id, &local_sges, remote),
                    Kind::Batch => unreachable!("handled above"),
                };
                let signaled = !in_list || i + 1 == MAX_LIST;
                wr.flags(SendFlags { signaled, ..SendFlags::default() })
            });
            let wrs = &wrs[MAX_LIST - depth..];
            let mut pending = if in_list { 1 } else { depth };
            if matches!(kind, Kind::Send) {
                pending += depth;
            }
            match in_list {
                true => self.a.qp.post_send_list(wrs, ListPolicy::UntilRejected).unwrap(),
                false => wrs.iter().for_each(|wr| self.a.qp.post_send(wr).unwrap()),
            }
            let begin = Instant::now();
            while pending > 0 {
                self.completions.clear();
                pending -= self.a.cq.poll(64, &mut self.completions).unwrap();
                if matches!(kind, Kind::Send) {
                    pending -= self.b.cq.poll(64, &mut self.completions).unwrap();
                }
                assert!(self.completions.iter().all(|c| c.status == WcStatus::Success));
                assert!(
                    begin.elapsed() < Duration::from_secs(30),
                    "{kind:?} of {len} bytes did not complete within 30 s"
                );
            }
        }
    }

    fn batch(&mut self, len: usize, depth: usize, remote: RemoteAddr) {
        let (sges, recv_sges) = ([self.requester_mr.sge(0..len)], [self.responder_mr.sge(0..64)]);
        let sends = depth / 2;
        for id in 0..sends as u64 {
            self.b.qp.post_recv(&RecvWr::new(id, &recv_sges)).unwrap();
        }
        let wr = |i| match i < sends {
            true => SendWr::send(i as u64, &[]).inline_list(&[b"in", b"line"]),
            false => SendWr::write(i as u64, &sges, remote),
        };
        self.a
            .qp
            .post_send_list(&std::array::from_fn::<_, MAX_LIST, _>(wr)[..depth], ListPolicy::AllOrNone)
            .unwrap();
        let mut pending = depth + sends;
        let begin = Instant::now();
        while pending > 0 {
            for cq in [&self.a.cq, &self.b.cq] {
                let mut poll = cq.start_poll();
                while let Some(wc) = poll.next_poll().unwrap() {
                    assert_eq!((wc.status, wc.completion_timestamp() > 0), (WcStatus::Success, true));
                    pending -= 1;
                }
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "a batch did not complete within 30 s");
        }
    }

    /// Returns the number of allocations during an exchange after the warm-up, the minimum of up to eight
    /// attempts. While a thread is preempted, queues may get longer than before, so that a buffer grows once;
    /// an allocation per message would occur in every attempt.
    fn count(&mut self, kind: Kind, in_list: bool, len: usize, depth: usize, batches: usize) -> u64 {
        let mut min = u64::MAX;
        for _ in 0..8 {
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            self.exchange(kind, in_list, len, depth, batches);
            min = min.min(ALLOCATIONS.load(Ordering::SeqCst) - before);
            if min == 0 {
                break;
            }
        }
        min
    }
}

fn measure(name: &str, mut endpoints: Endpoints) -> Vec<String> {
    let mut found = Vec::new();
    let kinds =
        [Kind::Send, Kind::Write, Kind::Read].into_iter().flat_map(|kind| [(kind, false), (kind, true)]);
    let kinds: Vec<_> = kinds.chain([(Kind::Batch, false)]).collect();
    for (len, depth, batches) in
        [(8, 1, 2000), (8, 16, 500), (8, MAX_LIST, 200), (64 << 10, 4, 100), (LARGEST, 2, 20)]
    {
        for (kind, in_list) in &kinds {
            let n = endpoints.count(*kind, *in_list, len, depth, batches);
            let mode = if *in_list { "in lists" } else { "one by one" };
            let line =
                format!("{name}: {n} allocations for {} {kind:?} of {len} bytes, {mode}", depth * batches);
            println!("{line}");
            found.extend((n > 0).then_some(line));
        }
    }
    found
}

/// Returns two connected NICs with DCQCN, the first of which gets CNPs.
fn with_cnps() -> Endpoints {
    let fabric = Fabric::new();
    // Limits how long the test takes.
    let congestion = "dcqcn:connectx,rpg_min_rate=10000".parse().unwrap();
    let options = ContextOptions::default().congestion(congestion);
    let b = fabric.open(&options).unwrap();
    let (cnps, peer) = (Cnps::default(), b.gids()[0].ip());
    let wrap = |inner| Box::new(CnpLink { inner, cnps: cnps.clone(), peer }) as Box<_>;
    let port = fabric.port(&fabric.auto_address()).unwrap();
    let [a, b] = pair([Context::on_port(port, &options, wrap).unwrap(), b]);
    Endpoints { cnps: Some(cnps), ..Endpoints::new(a, b) }
}

#[test]
fn no_memory_is_allocated_for_messages_after_warm_up() {
    let _alone = super::alone();
    let (a, b) = Fabric::new().pair().unwrap();
    let mut found = measure("fabric", Endpoints::new(a, b));

    let paced = with_cnps();
    let context = paced.a.context.clone();
    found.extend(measure("fabric with DCQCN", paced));
    assert!(context.counters().rp_cnp_handled > 1000, "{:?}", context.counters());

    for (shards, name) in [(1, "udp"), (2, "udp, two shards")] {
        let [a, b] = pair(["127.83.1.1", "127.83.1.2"].map(|ip| on_udp(ip, shards)));
        found.extend(measure(name, Endpoints::new(a, b)));
    }
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > 0, "the allocator counts no allocations");
    assert!(found.is_empty(), "{found:#?}");
}
