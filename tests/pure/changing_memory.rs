//! Test of memory that changes while it is sent, such as flags and counters that a peer READs: every sent
//! packet must have a matching ICRC.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

const LEN: usize = 64 << 10;
const MESSAGES: u64 = 300;

fn endpoint(ip: &str) -> TestEndpoint {
    let link = UdpLink::bind(ip.parse::<IpAddr>().unwrap(), &UdpOptions::default()).unwrap();
    TestEndpoint::new(Context::open(Box::new(link), &ContextOptions::default()).unwrap()).unwrap()
}

#[test]
fn memory_changing_during_transfer_causes_no_icrc_errors() {
    let (a, b) = (endpoint("127.91.0.1"), endpoint("127.91.0.2"));
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
    let [local, remote] = [&a, &b].map(|n| n.pd.reg_mr(LEN, Access::ALL).unwrap());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1.. {
                for at in (0..LEN).step_by(512) {
                    local.buffer().store_u64(at, n).unwrap();
                    remote.buffer().store_u64(at, n).unwrap();
                }
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let sges = [local.sge(0..LEN)];
        for id in 0..MESSAGES {
            let to = remote.remote(0);
            let wr = if id % 2 == 0 { SendWr::read(id, &sges, to) } else { SendWr::write(id, &sges, to) };
            let wr = wr.flags(SendFlags::SIGNALED);
            let posted = a.qp.post_send(&wr).map_err(|e| e.to_string());
            let result = posted.and_then(|()| a.cq.wait(Duration::from_secs(20)).map_err(|e| e.to_string()));
            if let Err(e) = result {
                is_done.store(true, Ordering::Relaxed);
                panic!("message {id}: {e}");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    for (name, endpoint) in [("requester", &a), ("responder", &b)] {
        let counters = endpoint.context.counters();
        assert!(counters.rcvd_pkts > 1000, "{name}: {counters:?}");
        assert_eq!(counters.rx_icrc_err, 0, "{name}");
    }
}
