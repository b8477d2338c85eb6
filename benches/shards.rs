//! Measures the gain from several shards: WRITEs over UDP sockets of the loopback interface, by 1, 2 and 4
//! threads with 4 queue pairs and a completion queue each, between two NICs of this process with 1, 2 and 4
//! shards. The numbers of shards alternate, because the machine's performance changes from one second to the
//! next. docs/PERFORMANCE.md has results.
//!
//! `cargo bench --profile dist --bench shards [-- --quick]`: 5 rounds of half a second, or 1 of 50 ms.

use std::net::IpAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

/// Queue pairs of a thread, and WRITEs in flight on each.
const QPS: usize = 4;
const DEPTH: usize = 16;

const SHARDS: [usize; 3] = [1, 2, 4];

fn open(ip: &str, shards: usize) -> Result<Context, urxe::Error> {
    let links = UdpLink::bind_shards(ip.parse::<IpAddr>()?, &UdpOptions::default(), shards)?;
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    Ok(Context::open_shards(links, &ContextOptions::default())?)
}

/// Connected queue pairs of a thread.
struct Worker {
    cq: Cq,
    qps: Vec<Qp<Rc>>,
    _peers: Vec<Qp<Rc>>,
    source: Mr,
    target: Mr,
}

impl Worker {
    fn new(from: &Pd, to: &Pd, len: usize) -> Result<Worker, urxe::Error> {
        let cq = from.context().create_cq(QPS * DEPTH)?;
        let peer_cq = to.context().create_cq(1)?;
        let options = QpOptions::default();
        let (mut qps, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..QPS {
            let qp = from.create_typed_qp::<Rc>(&cq, &cq, &options)?;
            let peer = to.create_typed_qp::<Rc>(&peer_cq, &peer_cq, &options)?;
            qp.connect(&peer.endpoint(), &ConnectOptions::default())?;
            peer.connect(&qp.endpoint(), &ConnectOptions::default())?;
            qps.push(qp);
            peers.push(peer);
        }
        let (source, target) = (from.reg_mr(len, Access::LOCAL_WRITE)?, to.reg_mr(len, Access::ALL)?);
        Ok(Worker { cq, qps, _peers: peers, source, target })
    }

    /// Writes for `duration`, and returns the number of messages in a second.
    fn run(&self, duration: Duration) -> Result<f64, urxe::Error> {
        let source = [self.source.sge(0..self.source.len())];
        let post =
            |qp: usize| self.qps[qp].post_send(&SendWr::write(qp as u64, &source, self.target.remote(0)));
        for qp in (0..QPS * DEPTH).map(|i| i % QPS) {
            post(qp)?;
        }
        let (start, mut completed, mut in_flight) = (Instant::now(), 0u64, QPS * DEPTH);
        let mut rate = None;
        while in_flight > 0 {
            for completion in self.cq.drain().take(QPS * DEPTH) {
                let completion = completion?;
                assert_eq!(completion.status, WcStatus::Success);
                completed += 1;
                match rate {
                    None => post(completion.wr_id as usize)?,
                    Some(_) => in_flight -= 1,
                }
            }
            let elapsed = start.elapsed();
            if elapsed >= duration {
                rate.get_or_insert(completed as f64 / elapsed.as_secs_f64());
            }
        }
        Ok(rate.unwrap_or_default())
    }
}

/// Returns the number of messages in a second, of all threads.
fn measure(shards: usize, threads: usize, len: usize, duration: Duration) -> Result<f64, urxe::Error> {
    let (a, b) = (open("127.78.0.1", shards)?.alloc_pd()?, open("127.78.0.2", shards)?.alloc_pd()?);
    let workers = (0..threads).map(|_| Worker::new(&a, &b, len)).collect::<Result<Vec<_>, _>>()?;
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let run = |worker| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                Worker::run(worker, duration)
            })
        };
        let threads: Vec<_> = workers.iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).sum()
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), urxe::Error> {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (rounds, duration) =
        if quick { (1, Duration::from_millis(50)) } else { (5, Duration::from_millis(500)) };
    println!("| message | threads | 1 shard, messages/s | 2 shards | 4 shards |");
    println!("| --- | --- | --- | --- | --- |");
    for len in [8, 4096, 64 << 10] {
        for threads in [1, 2, 4] {
            let mut rates = SHARDS.map(|_| Vec::new());
            for _ in 0..rounds {
                for (rates, shards) in rates.iter_mut().zip(SHARDS) {
                    rates.push(measure(shards, threads, len, duration)?);
                }
            }
            let [one, two, four] = rates.map(|mut rates| median(&mut rates));
            println!(
                "| {len} B | {threads} | {one:.0} | {two:.0} ({:.2}) | {four:.0} ({:.2}) |",
                two / one,
                four / one
            );
        }
    }
    Ok(())
}
