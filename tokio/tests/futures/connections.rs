//! Tests of the asynchronous connection API, which connects by address and port.

use std::net::SocketAddr;

use urxe::verbs::cm::*;

use super::*;
use urxe::verbs::errors::{CreateError, WaitError};

fn new_qp(context: &Context) -> Result<Qp, CreateError> {
    let cq = context.create_cq(64)?;
    context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
}

fn address(context: &Context, port: u16) -> SocketAddr {
    (context.query_gid(0).unwrap().ip(), port).into()
}

/// Connects, exchanges private data, and lets the client disconnect.
async fn connects_and_disconnects([local, remote]: [Context; 2]) {
    let address = address(&remote, 7471);
    let server = ConnectionManager::new(vec![remote]).unwrap();
    let mut listener = AsyncListener::bind(&server, address).unwrap();
    assert_eq!(listener.local_addr(), Some(address));
    let serve = async {
        let incoming = listener.next().await.unwrap();
        assert_eq!(&incoming.private_data()[..5], b"hello");
        let qp = new_qp(&incoming.context().unwrap()).unwrap();
        let mut session =
            AsyncSession::accept(incoming, qp, &ConnParam::with_data(b"welcome")).await.unwrap();
        session.wait_for_disconnect().await.unwrap();
        session.disconnect().await.unwrap();
    };
    let client = ConnectionManager::new(vec![local]).unwrap();
    let connect = async {
        let param = ConnParam::with_data(b"hello");
        let session = AsyncSession::connect(&client, address, new_qp, &param).await.unwrap();
        assert_eq!(&session.private_data()[..7], b"welcome");
        assert_eq!(session.qp().state(), QpState::Rts);
        session.disconnect().await.unwrap();
    };
    tokio::join!(serve, connect);
    assert_eq!((client.ids(), server.ids()), (0, 1));
}

#[test]
fn session_is_established_and_ended_on_a_fabric() {
    run(connects_and_disconnects(on_fabric()));
}

#[test]
fn session_is_established_and_ended_over_udp() {
    run(connects_and_disconnects(over_udp(["127.61.0.7", "127.61.0.8"])));
}

#[test]
fn session_is_established_and_ended_in_virtual_time() {
    let latency = Duration::from_micros(10);
    let config = FabricConfig::default().seed(3).latency(latency).loss(0.1);
    let fabric = Fabric::virtual_time(config).unwrap();
    run(connects_and_disconnects([(); 2].map(|()| Context::on_fabric(&fabric).unwrap())));
}

#[test]
fn rejected_connect_returns_the_private_data_of_the_rejection() {
    run(async {
        let [local, remote] = on_fabric();
        let address = address(&remote, 7471);
        let server = ConnectionManager::new(vec![remote]).unwrap();
        let mut listener = AsyncListener::bind(&server, address).unwrap();
        let client = ConnectionManager::new(vec![local]).unwrap();
        let param = ConnParam::default();
        let (refused, ()) = tokio::join!(AsyncSession::connect(&client, address, new_qp, &param), async {
            listener.next().await.unwrap().reject(b"busy").unwrap();
        });
        let Err(SessionError::Rejected { private_data, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(&private_data[..4], b"busy");
    });
}

#[test]
fn dropped_wait_loses_no_connection_request() {
    run(async {
        let [local, remote] = on_fabric();
        let address = address(&remote, 7471);
        let server = ConnectionManager::new(vec![remote]).unwrap();
        let mut listener = AsyncListener::bind(&server, address).unwrap();
        let client = ConnectionManager::new(vec![local]).unwrap();
        for round in 0..10_u8 {
            let param = ConnParam::with_data(&[round]);
            let connect = AsyncSession::connect(&client, address, new_qp, &param);
            let accept = async {
                {
                    let mut next = pin!(listener.next());
                    let mut task = TaskContext::from_waker(Waker::noop());
                    assert!(next.as_mut().poll(&mut task).is_pending());
                    // The request has arrived as soon as it has an id beside that of the listener.
                    while server.ids() == 1 {
                        tokio::task::yield_now().await;
                    }
                }
                let incoming = listener.next().await.unwrap();
                assert_eq!(incoming.private_data()[0], round);
                let qp = new_qp(&incoming.context().unwrap()).unwrap();
                let mut session = AsyncSession::accept(incoming, qp, &ConnParam::default()).await.unwrap();
                session.wait_for_disconnect().await.unwrap();
                session.disconnect().await.unwrap();
            };
            let connect = async { connect.await.unwrap().disconnect().await.unwrap() };
            tokio::join!(biased; accept, connect);
            assert!(is_pending_and_dropped(listener.next()), "delivered twice in round {round}");
        }
    });
}

#[test]
fn dropping_the_connect_future_abandons_the_attempt() {
    run(async {
        let [local, remote] = on_fabric();
        let address = address(&remote, 7471);
        let server = ConnectionManager::new(vec![remote]).unwrap();
        let _listener = AsyncListener::bind(&server, address).unwrap();
        let client = ConnectionManager::new(vec![local]).unwrap();
        assert!(is_pending_and_dropped(AsyncSession::connect(
            &client,
            address,
            new_qp,
            &ConnParam::default()
        )));
        assert_eq!(client.ids(), 0);
    });
}

#[test]
fn removal_of_the_device_ends_the_wait_of_a_listener() {
    run(async {
        let fabric = Fabric::new();
        let context = Context::on_fabric(&fabric).unwrap();
        let address = address(&context, 7471);
        let server = ConnectionManager::new(vec![context]).unwrap();
        let mut listener = AsyncListener::bind(&server, address).unwrap();
        assert!(is_pending_and_dropped(listener.next()));
        fabric.remove_device(address.ip()).unwrap();
        for _ in 0..2 {
            assert_eq!(listener.next().await.unwrap_err(), WaitError::DeviceRemoved);
        }
    });
}

#[test]
fn address_change_does_not_end_the_wait_of_a_listener() {
    run(async {
        let fabric = Fabric::new();
        let [local, remote] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
        let (address, other) = (address(&remote, 7471), "10.9.9.8".parse().unwrap());
        let server = ConnectionManager::new(vec![remote]).unwrap();
        let mut listener = AsyncListener::bind(&server, address).unwrap();
        for (from, to) in [(address.ip(), other), (other, address.ip())] {
            fabric.set_addresses(from, &[to]).unwrap();
            // A call lets the manager handle the change before the next one.
            assert_eq!(server.ids(), 1);
        }
        assert!(is_pending_and_dropped(listener.next()));
        let client = ConnectionManager::new(vec![local]).unwrap();
        let param = ConnParam::default();
        let (refused, ()) = tokio::join!(AsyncSession::connect(&client, address, new_qp, &param), async {
            listener.next().await.unwrap().reject(b"").unwrap();
        });
        assert!(matches!(refused, Err(SessionError::Rejected { .. })), "{refused:?}");
    });
}

#[test]
fn event_channel_delivers_events_in_order_after_dropped_waits() {
    run(async {
        let [local, remote] = on_fabric();
        let address = address(&remote, 7471);
        let client = ConnectionManager::new(vec![local]).unwrap();
        let mut channel = AsyncEventChannel::new(EventChannel::new().unwrap());
        let id = client.create_id(channel.channel(), PortSpace::Tcp).unwrap();
        assert!(is_pending_and_dropped(channel.get_event()));
        id.resolve_addr(None, address, LIMIT).unwrap();
        id.resolve_route(LIMIT).unwrap();
        assert_eq!(channel.get_event().await.unwrap().kind, CmEventKind::AddrResolved);
        assert_eq!(channel.get_event().await.unwrap().kind, CmEventKind::RouteResolved);
        assert!(is_pending_and_dropped(channel.get_event()));
    });
}
