//! Test that connections established and released one after the other all succeed and release their
//! resources. It runs alone because it counts open file descriptors.

use urxe::verbs::Fabric;
use urxe::verbs::cm::*;
use urxe_test_support::connections::*;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_sequential_connections_release_their_resources() {
    let _alone = super::alone();
    let (count, fabric) = (10_000, Fabric::new());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let before = open_descriptors();
    let serving = std::thread::spawn(move || {
        serve(&server, count);
        server
    });
    for _ in 0..count {
        let end = client.connecting(at, b"");
        client.event(CmEventKind::Established);
        end.id.disconnect().unwrap();
        client.event(CmEventKind::Disconnected);
    }
    let server = serving.join().unwrap();
    assert_eq!((client.manager.ids(), server.manager.ids()), (0, 1));
    assert_eq!((client.manager.connections(), server.manager.connections()), (0, 0));
    assert_eq!(open_descriptors(), before);
    // Queue pairs can still be created, and the last connection works as the first one did.
    let (client_end, server_end) = connected(&client, &server, at);
    check_transfer((&client, &client_end), (&server, &server_end));
}
