//! Memory windows: a server gives a client access to part of its memory, until the client revokes it by a
//! SEND with Invalidate.
//!
//! Shows how to bind a type 2 window, a WRITE through it, SEND with Invalidate, and the failure of a later
//! WRITE. Run it with `cargo run --example memory_windows`.

use std::time::Duration;

use urxe::verbs::memory::WindowKind;
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(5);

fn main() -> Result<(), urxe::Error> {
    let fabric = Fabric::virtual_time(FabricConfig::default())?;
    let (client, server) = fabric.pair()?;
    // Peers get no right to the region itself.
    let region = server.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    let window = server.pd.alloc_mw(WindowKind::Type2B)?;
    let bind = window.bind(&region, 1024..1536, Access::REMOTE_WRITE);
    server.qp.post_send(&SendWr::bind_mw(1, bind))?;
    server.cq.wait(LIMIT)?;
    println!("the server has opened 512 of its 4096 bytes under key {:?}", bind.rkey);

    let through = RemoteAddr { va: bind.addr, rkey: bind.rkey };
    client.qp.post_send(&SendWr::write(2, &[], through).inline(b"through the window"))?;
    client.cq.wait(LIMIT)?;
    let written = region.read_vec(1024..1042)?;
    assert_eq!(written, b"through the window");
    println!("the client has written {:?}", String::from_utf8_lossy(&written));

    server.qp.post_recv(&RecvWr::empty(3))?;
    client.qp.post_send(&SendWr::send_inval(4, &[], bind.rkey))?;
    client.cq.wait(LIMIT)?;
    let done = server.cq.wait(LIMIT)?;
    println!("the client is done, and has closed {:?}", done.invalidated);
    assert_eq!(done.invalidated, Some(bind.rkey));

    client.qp.post_send(&SendWr::write(5, &[], through).inline(b"again"))?;
    let refused = client.cq.wait_any(LIMIT)?;
    println!("another WRITE ends with {}", refused.status);
    assert_eq!(refused.status, WcStatus::RemAccessErr);
    assert_eq!(region.read_vec(1024..1029)?, b"throu");
    Ok(())
}
