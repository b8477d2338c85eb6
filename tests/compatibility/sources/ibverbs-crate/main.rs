//! Sends 16 MiB from a queue pair to itself with the crate `ibverbs`, and compares the data.
use std::time::{Duration, Instant};

const SIZE: usize = 1 << 20;

fn main() {
    let devices = ibverbs::devices().expect("devices");
    let context = devices.get(0).expect("a device").open().expect("open");
    let cq = context.create_cq(16, 0).expect("create_cq");
    let pd = context.alloc_pd().expect("alloc_pd");
    let prepared =
        pd.create_qp(&cq, &cq, ibverbs::ibv_qp_type::IBV_QPT_RC).set_gid_index(0).build().expect("build");
    let endpoint = prepared.endpoint();
    let mut qp = prepared.handshake(endpoint).expect("handshake");
    let mut region = pd.allocate::<u8>(2 * SIZE).expect("allocate");
    let mut completions = [ibverbs::ibv_wc::default(); 4];
    for round in 0..16 {
        for (i, byte) in region[SIZE..].iter_mut().enumerate() {
            *byte = (i * 7 + i / 251 + round) as u8;
        }
        // SAFETY: the region stays allocated, and is not accessed until both work requests have completed.
        unsafe {
            qp.post_receive(&mut region, ..SIZE, 2).expect("post_receive");
            qp.post_send(&mut region, SIZE.., 1).expect("post_send");
        }
        let begin = Instant::now();
        let mut completed = 0;
        while completed < 2 {
            assert!(begin.elapsed() < Duration::from_secs(30), "no completion within 30 s");
            for completion in cq.poll(&mut completions).expect("poll") {
                assert!(completion.is_valid(), "{:?}", completion.error());
                completed += 1;
            }
        }
        let (received, sent) = region.split_at(SIZE);
        assert!(received == sent, "other data in round {round}");
    }
    println!("{} bytes verified", 16 * SIZE);
}
