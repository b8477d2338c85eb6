//! UDP endpoint: a NIC on a UDP socket, which interoperates with the kernel's rxe, with hardware adapters and
//! with other urxe NICs.
//!
//! Shows `UdpLink` and the exchange of endpoints by hand. Without arguments, two NICs at 127.62.0.1 and
//! 127.62.0.2 talk to each other. With a peer, it prints its endpoint, reads the peer's endpoint from
//! standard input, and sends it a message:
//!
//! ```text
//! cargo run --example udp_endpoint
//! cargo run --example udp_endpoint -- --local 192.0.2.1 --peer 192.0.2.2
//! ```

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const LIMIT: Duration = Duration::from_secs(10);

fn open(ip: IpAddr) -> Result<TestEndpoint> {
    let link = UdpLink::bind(ip, &UdpOptions::default())?;
    Ok(TestEndpoint::new(Context::open(Box::new(link), &ContextOptions::default())?)?)
}

/// Sends a message to a peer, after reading the peer's QPN and PSN from standard input.
fn with_peer(local: IpAddr, peer: IpAddr) -> Result<()> {
    let node = open(local)?;
    let own = node.qp.endpoint();
    println!("this side: address {}, QPN {}, PSN {}", own.gid.ip(), own.qpn.get(), own.psn.get());
    println!("enter QPN and PSN of the peer:");
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let (qpn, psn) = line.trim().split_once(' ').ok_or("expected two numbers: QPN PSN")?;
    let psn = Psn::new(psn.trim().parse()?);
    let endpoint = Endpoint { gid: Gid::from(peer), qpn: Qpn::new(qpn.parse()?), psn };
    node.qp.connect(&endpoint, &ConnectOptions::default().mtu(Mtu::Mtu1024))?;
    node.qp.post_send(&SendWr::send(1, &[]).inline(b"hello from urxe"))?;
    println!("the peer has acknowledged {} bytes", node.cq.wait(LIMIT)?.byte_len);
    Ok(())
}

fn on_loopback() -> Result<()> {
    let (a, b) = (open([127, 62, 0, 1].into())?, open([127, 62, 0, 2].into())?);
    a.connect(&b, &ConnectOptions::default())?;
    let buffer = b.pd.reg_mr(64, Access::LOCAL_WRITE)?;
    b.qp.post_recv(&RecvWr::new(1, &[buffer.sge(0..64)]))?;
    a.qp.post_send(&SendWr::send(2, &[]).inline(b"hello over UDP"))?;
    let received = b.cq.wait(LIMIT)?;
    let bytes = buffer.read_vec(0..received.byte_len as usize)?;
    println!("127.62.0.2 has received {:?} over UDP port 4791", String::from_utf8_lossy(&bytes));
    assert_eq!(bytes, b"hello over UDP");
    a.cq.wait(LIMIT)?;
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => on_loopback(),
        ["--local", local, "--peer", peer] => with_peer(local.parse()?, peer.parse()?),
        _ => Err("usage: udp_endpoint [--local ADDRESS --peer ADDRESS]".into()),
    }
}
