//! Tests of the blocking connection API: `Listener` and `Session`.

use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;

use urxe_test_support::connections::*;

#[test]
fn session_over_udp_succeeds_at_second_attempt_after_a_rejection() {
    let (client, server) = (Side::on_udp("127.101.5.1"), Side::on_udp("127.101.5.2"));
    let listener = Listener::bind(&server.manager, (server.ip(true), 0).into()).unwrap();
    let at = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let first = listener.next(TIMEOUT).unwrap();
        assert_eq!(first.peer_addr().unwrap().ip(), "127.101.5.1".parse::<std::net::IpAddr>().unwrap());
        first.reject(b"later").unwrap();
        let second = listener.next(TIMEOUT).unwrap();
        let session = second.accept(server.qp(QpType::Rc), &ConnParam::default(), TIMEOUT).unwrap();
        session.qp().post_recv(&RecvWr::new(1, &[])).unwrap();
        assert_eq!(server.cq.wait(TIMEOUT).unwrap().wr_id, 1);
        session.wait_for_disconnect(TIMEOUT).unwrap();
        session.disconnect(TIMEOUT).unwrap();
        server.manager.ids()
    });
    let connect =
        || client.manager.connect(at, |_| Ok(client.qp(QpType::Rc)), &ConnParam::default(), TIMEOUT);
    let Err(SessionError::Rejected { reason, private_data }) = connect() else { panic!("accepted") };
    assert_eq!((reason, &private_data[..5]), (RejReason::Consumer, &b"later"[..]));
    let session = connect().unwrap();
    session.qp().post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(client.cq.wait(TIMEOUT).unwrap().wr_id, 2);
    session.disconnect(TIMEOUT).unwrap();
    assert_eq!((serving.join().unwrap(), client.manager.ids()), (1, 0), "only the listener's id remains");
}

#[test]
fn connect_to_unreachable_peer_times_out() {
    let fabric = virtual_fabric(slow());
    let client = Side::on(&fabric);
    let at = "198.18.77.77:5".parse().unwrap();
    let connected = client.manager.connect(at, |_| Ok(client.qp(QpType::Rc)), &ConnParam::default(), TIMEOUT);
    assert!(matches!(connected, Err(SessionError::Wait(WaitError::TimedOut(_)))), "{connected:?}");
    assert_eq!(client.manager.ids(), 0);
    let connected =
        client.manager.connect(at, |_| Ok(client.qp(QpType::Rc)), &ConnParam::default(), LONG_TIMEOUT);
    let Err(SessionError::Failed { kind, status }) = connected else { panic!("{connected:?}") };
    assert_eq!((kind, status), (CmEventKind::Unreachable, -libc::ETIMEDOUT));
}

#[test]
fn address_change_does_not_end_the_wait_of_a_listener() {
    for fabric in [virtual_fabric(slow()), Fabric::new()] {
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let [v4, v6] = [true, false].map(|v4| server.ip(v4));
        let other = "10.9.9.8".parse().unwrap();
        let listener = Listener::bind(&server.manager, (v4, 7).into()).unwrap();
        for (from, to) in [(v4, other), (other, v4)] {
            fabric.set_addresses(from, &[to, v6]).unwrap();
            // A call lets the manager handle the change before the next one.
            assert_eq!(server.manager.ids(), 1);
        }
        let ended = listener.next(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(ended, WaitError::TimedOut(_) | WaitError::Idle), "{ended:?}");
        let pending = client.connecting((v4, 7).into(), b"hello");
        listener.next(TIMEOUT).unwrap().reject(b"").unwrap();
        assert_eq!(client.event(CmEventKind::Rejected).id, pending.id);
    }
}

#[test]
fn device_removal_ends_every_wait_of_a_listener_after_the_earlier_requests() {
    for fabric in [virtual_fabric(slow()), Fabric::new()] {
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let listener = Listener::bind(&server.manager, server.addr(7)).unwrap();
        let _pending = client.connecting(server.addr(7), b"hello");
        if server.manager.ids() < 2 {
            fabric.run_until_idle(Duration::from_millis(1));
        }
        while server.manager.ids() < 2 {
            std::thread::yield_now();
        }
        fabric.remove_device(server.ip(true)).unwrap();
        assert_eq!(listener.next(TIMEOUT).unwrap().private_data()[..5], *b"hello");
        for _ in 0..2 {
            assert_eq!(listener.next(TIMEOUT).unwrap_err(), WaitError::DeviceRemoved);
        }
    }
}
