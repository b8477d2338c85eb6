//! Costs of many connected queue pairs (time to create them, memory to hold them, CPU time while they are
//! idle), and the throughput of two threads.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use urxe::verbs::*;

use crate::Result;
use crate::heap;
use crate::job::{LinkAddrs, Metrics, Role};
use crate::nic;

/// The two NICs of this process, over UDP, and the objects that outlive the queue pairs.
struct NicPair {
    contexts: [Context; 2],
    pds: [Pd; 2],
    cqs: [Cq; 2],
    regions: [Mr; 2],
}

impl NicPair {
    fn new(ips: [IpAddr; 2], count: usize) -> Result<NicPair> {
        let link = LinkAddrs::Udp(ips);
        let options = ContextOptions::default();
        let open = |role| nic::open(&link, role, None, &options);
        let contexts = [open(Role::Active)?, open(Role::Passive)?];
        let [a, b] = &contexts;
        let pds = [a.alloc_pd()?, b.alloc_pd()?];
        let cqs = [a.create_cq(count + 64)?, b.create_cq(64)?];
        let regions = [pds[0].reg_mr(4096, Access::ALL)?, pds[1].reg_mr(8 * count, Access::ALL)?];
        // Touches all pages before memory is measured.
        regions[1].write(0, &vec![0; 8 * count])?;
        Ok(NicPair { contexts, pds, cqs, regions })
    }

    /// Creates `count` queue pairs in each NIC, with the capabilities that verbs programs usually request:
    /// 128 work requests in each queue.
    fn create(&self, count: usize) -> Result<[Vec<Qp>; 2]> {
        let mut qps = [Vec::with_capacity(count), Vec::with_capacity(count)];
        for _ in 0..count {
            for (i, qps) in qps.iter_mut().enumerate() {
                qps.push(self.pds[i].create_qp(&self.cqs[i], &self.cqs[i], &QpOptions::default())?);
            }
        }
        Ok(qps)
    }

    fn connect(&self, qps: &[Vec<Qp>; 2]) -> Result<()> {
        let options = ConnectOptions::default();
        for (a, b) in qps[0].iter().zip(&qps[1]) {
            a.connect(&b.endpoint(), &options)?;
            b.connect(&a.endpoint(), &options)?;
        }
        Ok(())
    }

    /// Performs one 8-byte WRITE on each queue pair, each to its own address, and checks that all arrive.
    fn write(&self, qps: &[Vec<Qp>; 2], number: u64) -> Result<()> {
        let [active, passive] = &self.regions;
        active.buffer().store_u64(0, number)?;
        for (i, qp) in qps[0].iter().enumerate() {
            qp.post_send(&SendWr::write(i as u64, &[active.sge(0..8)], passive.remote(8 * i)))?;
        }
        let (mut outstanding, mut out, start) = (qps[0].len(), Vec::with_capacity(64), Instant::now());
        while outstanding > 0 {
            out.clear();
            outstanding -= self.cqs[0].poll(64, &mut out)?;
            if let Some(failed) = out.iter().find(|c| c.status != WcStatus::Success) {
                return Err(format!("a WRITE failed: {}", failed.status).into());
            }
            if start.elapsed() > Duration::from_secs(60) {
                return Err(format!(
                    "{outstanding} WRITEs did not complete within 60 s: {:?}",
                    self.contexts[0].counters()
                )
                .into());
            }
        }
        for i in 0..qps[0].len() {
            if passive.buffer().load_u64(8 * i)? != number {
                return Err(format!(
                    "the WRITE of queue pair {i} has completed, but its data are not in memory"
                )
                .into());
            }
        }
        Ok(())
    }
}

fn resident_bytes() -> Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 =
        statm.split_whitespace().nth(1).ok_or("no resident size in /proc/self/statm")?.parse()?;
    Ok(pages * 4096.0)
}

fn descriptor_count() -> Result<f64> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count() as f64)
}

/// Creates, connects, uses and destroys `count` queue pairs at each end, several times. Returns times in
/// microseconds and sizes in bytes, both per queue pair.
pub fn connections(ips: [IpAddr; 2], count: usize) -> Result<Metrics> {
    const PASSES: u64 = 8;
    let nics = NicPair::new(ips, count)?;
    let (both, mut metrics) = (2.0 * count as f64, Metrics::new());
    let mut after = Vec::new();
    for pass in 1..=PASSES {
        let (heap, memory, start) = (heap::live(), resident_bytes()?, Instant::now());
        let mut lap_start = start;
        let mut lap = || {
            let lap = lap_start.elapsed().as_secs_f64() * 1e6 / both;
            lap_start = Instant::now();
            lap
        };
        let qps = nics.create(count)?;
        let create_time = lap();
        nics.connect(&qps)?;
        let connect_time = lap();
        let (heap_idle, memory_idle) = (heap::live() - heap, resident_bytes()? - memory);
        lap();
        nics.write(&qps, pass)?;
        let write_time = lap();
        // Lets the timers of the acknowledged requests expire.
        thread::sleep(Duration::from_millis(200));
        let (heap_used, memory_used) = (heap::live() - heap, resident_bytes()? - memory);
        lap();
        drop(qps);
        let destroy_time = lap();
        after.push((heap::live() as f64, descriptor_count()?));
        if pass == 1 {
            // Later passes reuse memory that the first has returned to the allocator but not to the system.
            metrics.extend([
                ("create µs".into(), create_time),
                ("connect µs".into(), connect_time),
                ("WRITE µs".into(), write_time),
                ("destroy µs".into(), destroy_time),
                ("heap, connected".into(), heap_idle as f64 / both),
                ("heap, used once".into(), heap_used as f64 / both),
                ("resident, connected".into(), memory_idle / both),
                ("resident, used once".into(), memory_used / both),
            ]);
        }
    }
    // Tables keep their size, so a leak is what every later pass adds again. The minimum is taken, because a
    // single increase is a buffer that was fuller than before.
    let added = after[1..].windows(2).map(|pass| (pass[1].0 - pass[0].0, pass[1].1 - pass[0].1));
    let min = added.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).ok_or("too few passes")?;
    metrics.insert("leaked bytes".into(), min.0);
    metrics.insert("leaked descriptors".into(), min.1);
    metrics.insert("succeeded".into(), (count as u64 * PASSES) as f64);
    Ok(metrics)
}

/// Measures the CPU time that all threads together spend on `count` pairs of connected, idle queue pairs, in
/// microseconds per second.
pub fn idle(ips: [IpAddr; 2], count: usize, seconds: f64) -> Result<Metrics> {
    let nics = NicPair::new(ips, count)?;
    let qps = nics.create(count)?;
    nics.connect(&qps)?;
    nics.write(&qps, 1)?;
    thread::sleep(Duration::from_millis(500));
    let cpu = || -> Result<Duration> { Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into()) };
    let (start, before) = (Instant::now(), cpu()?);
    thread::sleep(Duration::from_secs_f64(seconds));
    let used = (cpu()? - before).as_secs_f64() * 1e6 / start.elapsed().as_secs_f64();
    Ok(Metrics::from([("µs/s".into(), used)]))
}

/// Measures the throughput of two threads that WRITE messages of `size` bytes from one NIC of this process to
/// another. Each queue pair has its own completion queue, at both ends; both NICs have `shards` shards.
pub fn threads(ips: [IpAddr; 2], shards: usize, size: usize, seconds: f64) -> Result<Metrics> {
    const IN_FLIGHT: u64 = 16;
    let a = nic::open_shards(ips, Role::Active, shards)?;
    let b = nic::open_shards(ips, Role::Passive, shards)?;
    let pds = [a.alloc_pd()?, b.alloc_pd()?];
    let regions = [pds[0].reg_mr(size, Access::ALL)?, pds[1].reg_mr(2 * size, Access::ALL)?];
    regions[0].write(0, &vec![0x5a; size])?;
    regions[1].write(0, &vec![1; 2 * size])?;
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (cq, passive_cq) = (a.create_cq(64)?, b.create_cq(16)?);
        let active = pds[0].create_qp(&cq, &cq, &QpOptions::default())?;
        let passive = pds[1].create_qp(&passive_cq, &passive_cq, &QpOptions::default())?;
        active.connect(&passive.endpoint(), &ConnectOptions::default())?;
        passive.connect(&active.endpoint(), &ConnectOptions::default())?;
        ends.push((cq, active, passive));
    }
    let write = |slot: usize, cq: &Cq, qp: &Qp| -> std::result::Result<u64, String> {
        let post = || {
            let (sge, to) = ([regions[0].sge(0..size)], regions[1].remote(slot * size));
            qp.post_send(&SendWr::write(0, &sge, to)).map_err(|e| e.to_string())
        };
        (0..IN_FLIGHT).try_for_each(|_| post())?;
        let (start, mut done, mut outstanding, mut out) =
            (Instant::now(), 0, IN_FLIGHT, Vec::with_capacity(64));
        while outstanding > 0 {
            out.clear();
            let n = cq.poll(64, &mut out).map_err(|e| e.to_string())? as u64;
            if let Some(failed) = out.iter().find(|c| c.status != WcStatus::Success) {
                return Err(format!("a WRITE failed: {}", failed.status));
            }
            let elapsed = start.elapsed().as_secs_f64();
            if elapsed < seconds {
                done += n;
                (0..n).try_for_each(|_| post())?;
            } else {
                outstanding -= n;
            }
            if elapsed > seconds + 10.0 {
                return Err(format!("{outstanding} WRITEs did not complete within 10 s"));
            }
            if n == 0 {
                thread::yield_now();
            }
        }
        Ok(done)
    };
    let done = thread::scope(|s| {
        let write = &write;
        let running: Vec<_> =
            ends.iter().enumerate().map(|(i, (cq, qp, _))| s.spawn(move || write(i, cq, qp))).collect();
        running.into_iter().map(|t| t.join().map_err(|_| "a thread panicked".to_owned())?).sum()
    });
    let done: std::result::Result<u64, String> = done;
    let mut metrics = Metrics::from([("Gb/s".into(), done? as f64 * size as f64 * 8.0 / 1e9 / seconds)]);
    let handed_over = a.counters().rx_handed_over + b.counters().rx_handed_over;
    if handed_over > 0 {
        metrics.insert("handed over".into(), handed_over as f64);
    }
    Ok(metrics)
}
