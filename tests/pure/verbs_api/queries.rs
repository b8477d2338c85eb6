//! Tests of device and port queries.

use super::*;
use urxe::verbs::errors::CreateError;

fn with_limits(fabric: &Fabric, change: fn(&mut Limits)) -> Context {
    let mut options = ContextOptions::default();
    change(&mut options.personality.limits);
    fabric.open(&options).unwrap()
}

#[test]
fn device_query_returns_identity_and_limits() {
    let fabric = slow_fabric();
    let (a, b) = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap()).into();
    let (device, other) = (a.query_device(), b.query_device());
    assert_eq!((device.limits, device.personality), (Personality::DEFAULT.limits, "default"));
    assert_ne!(device.node_guid, other.node_guid);
    assert_eq!((device.sys_image_guid, device.phys_port_cnt), (device.node_guid, 1));
    assert_eq!((device.hca_core_clock_khz, device.completion_timestamp_mask), (1_000_000, u64::MAX));
    assert_eq!((device.atomic_cap, device.atomic_cap as u32), (AtomicCap::Global, 2));
    assert_eq!(device.max_res_rd_atom, 65_536 * 128);
    assert!(device.page_size_cap & 4096 != 0 && device.page_size_cap & 2048 == 0);
    let caps = DeviceCaps::RC_RNR_NAK_GEN | DeviceCaps::PORT_ACTIVE_EVENT;
    assert!(device.caps.contains(caps) && !device.caps.contains(caps | DeviceCaps::from_bits_retain(1)));
    assert_eq!(caps.bits(), 0x1400);
}

#[test]
fn reported_limits_are_enforced() {
    let fabric = slow_fabric();
    let context = with_limits(&fabric, |l| {
        (l.max_pd, l.max_cq, l.max_sge, l.max_srq_sge) = (2, 3, 7, 5);
        l.num_comp_vectors = 2;
    });
    let device = context.query_device();
    assert_eq!((device.max_sge_rd, device.limits.max_srq_sge), (7, 5));

    let pds = [(); 2].map(|()| context.alloc_pd().unwrap());
    assert_eq!(context.alloc_pd().unwrap_err(), CreateError::Exhausted { kind: "PDs", max: 2 });
    let [pd, unused] = pds;
    drop(unused);
    context.alloc_pd().unwrap();

    let mut cqs = vec![context.create_cq(1).unwrap(), context.create_cq(1).unwrap()];
    let on_vector = |comp_vector| CqOptions::new(1).comp_vector(comp_vector);
    context.create_cq(on_vector(2)).unwrap_err();
    cqs.push(context.create_cq(on_vector(1)).unwrap());
    assert_eq!(context.create_cq(1).unwrap_err(), CreateError::Exhausted { kind: "CQs", max: 3 });
    cqs.pop();
    context.create_cq(1).unwrap();

    pd.create_srq(RecvCaps { max_wr: 1, max_sge: 5 }).unwrap();
    pd.create_srq(RecvCaps { max_wr: 1, max_sge: 6 }).unwrap_err();
}

#[test]
fn port_query_returns_state_and_attributes() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let port = b.context.query_port();
    assert_eq!((port.state(), port.state() as u32), (PortState::Active, 4));
    assert_eq!((port.gid_table_len, port.pkey_table_len, port.bad_pkey_cntr), (2, 1, 0));
    a.context.set_pkeys(&[PKey(0x8001), PKey(0x8002)]).unwrap();
    assert_eq!(a.context.query_port().pkey_table_len, 2);
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    fabric.advance(Duration::from_micros(20));
    assert_eq!(b.context.query_port().bad_pkey_cntr, 1);
    fabric.set_port_up(b.context.query_gid(0).unwrap().ip(), false).unwrap();
    assert_eq!(b.context.query_port().state() as u32, 1);
}

#[test]
fn context_address_is_routable_if_possible_and_follows_the_gid_table() {
    let fabric = Fabric::new();
    let [link_local, routable, other] = ["fe80::7", "fd00::7", "192.0.2.7"].map(|ip| ip.parse().unwrap());
    let port = fabric.port(&[link_local, routable]).unwrap();
    let context = Context::on_port(port, &ContextOptions::default(), |port| Box::new(port)).unwrap();
    assert_eq!(context.address(), Some(routable));
    fabric.set_addresses(routable, &[link_local]).unwrap();
    assert_eq!(context.address(), Some(link_local));
    fabric.set_addresses(link_local, &[other]).unwrap();
    assert_eq!(context.address(), Some(other));
}
