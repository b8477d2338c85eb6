//! Programs that share an address: each has ports of its own, and they reach each other by it.

use std::net::IpAddr;

use urxe::link::udp::{Sharing, UdpLink, UdpOptions};
use urxe::verbs::cm::*;
use urxe::verbs::*;

use super::stage::*;

fn sharer(ip: &str) -> Side {
    let sharing = Sharing { program: env!("CARGO_BIN_EXE_urxe").into(), any_user: false };
    let ip: IpAddr = ip.parse().unwrap();
    let links = UdpLink::bind_shared(ip, &UdpOptions::default(), 1, &sharing).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as _).collect();
    Side::new(Context::open_shards(links, &ContextOptions::default()).unwrap())
}

#[test]
fn each_has_its_ports_and_all_have_the_same() {
    let (a, b, outsider) = (sharer("127.101.4.1"), sharer("127.101.4.1"), Side::on_udp("127.101.4.2"));
    let (at_a, at_b) = (a.addr(7001), b.addr(7002));
    let of_a = a.listen(PortSpace::Tcp, at_a);
    let _of_b = b.listen(PortSpace::Tcp, at_b);
    let taken = b.id(PortSpace::Tcp).bind_addr(at_a).unwrap_err();
    assert_eq!(taken.errno(), libc::EADDRINUSE, "{taken}");
    // A port of no choice is one that no other has.
    let any = |side: &Side| {
        let id = side.id(PortSpace::Udp);
        id.bind_addr(side.addr(0)).unwrap();
        id
    };
    let port = |id: &CmId| id.local_addr().unwrap().port();
    let first = any(&a);
    let behind = |n| 49152 + (port(&first) - 49152 + n) % 16384;
    let _others: Vec<CmId> = (1..4)
        .map(|n| {
            let id = b.id(PortSpace::Udp);
            id.bind_addr(b.addr(behind(n))).unwrap();
            id
        })
        .collect();
    assert_eq!(port(&any(&a)), behind(4));
    // From one to the other, and from outside to both.
    for (client, server, at) in [(&b, &a, at_a), (&a, &b, at_b), (&outsider, &a, at_a), (&outsider, &b, at_b)]
    {
        let (mine, theirs) = connected(client, server, at);
        talk((client, &mine), (server, &theirs));
        theirs.id.disconnect().unwrap();
        client.event(CmEventKind::Disconnected);
        mine.id.disconnect().unwrap();
        server.event(CmEventKind::Disconnected);
    }
    // Nobody has this one, and then somebody else has that one.
    let _lost = outsider.connecting(a.addr(7003), b"");
    assert_eq!(outsider.event(CmEventKind::Rejected).status, 8);
    of_a.destroy();
    let _of_b = b.listen(PortSpace::Tcp, at_a);
    let (mine, theirs) = connected(&outsider, &b, at_a);
    talk((&b, &theirs), (&outsider, &mine));
}
