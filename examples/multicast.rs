//! UD multicast: a datagram sent to a group reaches all members, and no other NIC.
//!
//! Shows UD queue pairs, address handles, joining and leaving a group. Run it with `cargo run --example
//! multicast`.

use std::net::IpAddr;
use std::time::Duration;

use urxe::verbs::*;

const QKEY: QKey = QKey(0x1234);
const TEXT: &[u8] = b"hello, group";

/// A NIC with a UD queue pair and one posted receive of 256 bytes.
struct Member {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    buffer: Mr,
}

fn member(fabric: &Fabric) -> Result<Member, Box<dyn std::error::Error>> {
    let context = Context::on_fabric(fabric)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default().qp_type(QpType::Ud))?;
    qp.activate(QKEY)?;
    let buffer = pd.reg_mr(256, Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(1, &[buffer.sge(0..256)]))?;
    Ok(Member { context, pd, cq, qp, buffer })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::virtual_time(FabricConfig::default())?;
    let group = Gid::from("ff0e::4791".parse::<IpAddr>()?);
    let sender = member(&fabric)?;
    let members = [member(&fabric)?, member(&fabric)?, member(&fabric)?];
    // The third one does not join.
    members[..2].iter().try_for_each(|member| member.qp.attach_mcast(group))?;

    let v6 = sender.context.gids().iter().position(|gid| gid.ip().is_ipv6()).ok_or("no IPv6 address")?;
    let path = sender.pd.create_ah(&AddressVector::to(group).sgid_index(v6 as u8))?;
    let to = path.to(Qpn::MULTICAST, QKEY);
    sender.qp.post_send(&SendWr::send(2, &[]).inline(TEXT).to(to))?;
    sender.cq.wait(Duration::from_secs(1))?;

    for (index, member) in members[..2].iter().enumerate() {
        let received = member.cq.wait(Duration::from_secs(1))?;
        // A routing header of 40 bytes precedes the data of a datagram.
        let text = member.buffer.read_vec(grh::LEN..received.byte_len as usize)?;
        println!("member {index}: {:?} from {}", String::from_utf8_lossy(&text), received.src_qpn);
        assert_eq!((&text[..], received.src_qpn), (TEXT, sender.qp.qpn()));
    }
    let others = members[2].cq.drain().count();
    println!("NIC outside of the group: {others} datagrams");
    assert_eq!(others, 0);

    members[0].qp.detach_mcast(group)?;
    println!("member 0 has left the group");
    Ok(())
}
