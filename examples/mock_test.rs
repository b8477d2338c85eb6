//! Unit test of a client and a server: both run against mock NICs in one process, without network, root or
//! hardware.
//!
//! Shows `Fabric::pair`, two threads with blocking waits, and what a test asserts. Run it with
//! `cargo run --example mock_test`.

use std::time::Duration;

use urxe::verbs::*;

type Result<T> = std::result::Result<T, urxe::Error>;

const LIMIT: Duration = Duration::from_secs(5);

/// Sends a request and returns the reply. This function is part of the code under test.
fn client(node: &TestEndpoint, request: &[u8]) -> Result<Vec<u8>> {
    let buffer = node.pd.reg_mr(64, Access::LOCAL_WRITE)?;
    node.qp.post_recv(&RecvWr::new(1, &[buffer.sge(0..64)]))?;
    node.qp.post_send(&SendWr::send(2, &[]).signaled(false).inline(request))?;
    let reply = node.cq.wait(LIMIT)?;
    Ok(buffer.read_vec(0..reply.byte_len as usize)?)
}

/// Posts a receive for one request. This function is part of the code under test.
fn listen(node: &TestEndpoint) -> Result<Mr> {
    let buffer = node.pd.reg_mr(64, Access::LOCAL_WRITE)?;
    node.qp.post_recv(&RecvWr::new(1, &[buffer.sge(0..64)]))?;
    Ok(buffer)
}

/// Answers a request with its text in upper case. This function is part of the code under test.
fn serve(node: &TestEndpoint, buffer: &Mr) -> Result<()> {
    let request = node.cq.wait(LIMIT)?;
    let mut bytes = buffer.read_vec(0..request.byte_len as usize)?;
    bytes.make_ascii_uppercase();
    node.qp.post_send(&SendWr::send(2, &[]).inline(&bytes))?;
    node.cq.wait(LIMIT)?;
    Ok(())
}

/// Checks the server's reply. In a test module, this function would have the attribute `#[test]`.
fn reply_is_the_request_in_upper_case() -> Result<()> {
    let (a, b) = Fabric::new().pair()?;
    let buffer = listen(&b)?;
    let server = std::thread::spawn(move || serve(&b, &buffer));
    let reply = client(&a, b"hello, server")?;
    server.join().expect("the server does not panic")?;
    println!("request: hello, server\nreply:   {}", String::from_utf8_lossy(&reply));
    assert_eq!(reply, b"HELLO, SERVER");
    Ok(())
}

fn main() -> Result<()> {
    reply_is_the_request_in_upper_case()
}
