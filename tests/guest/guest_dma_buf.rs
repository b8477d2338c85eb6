//! Test of `ibv_reg_dmabuf_mr` with a `udmabuf` of the guest's kernel: the drop-in library runs in the guest,
//! because containers and CI machines rarely have `/dev/udmabuf`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urxe_test_support::guest::{Guest, GuestConfig, Net, Suite};
use urxe_test_support::programs::{built, library, preload, text};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn udmabuf_is_written_and_read_by_rdma_from_its_offset_on() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("dma_buf");
    let source = concat!(env!("URXE_REPOSITORY"), "/tests/c/dma_buf.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).args([source, "-libverbs"]);
    let out = cc.output().expect("this test needs a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install libibverbs-dev)", text(&out));

    // The other end of the wire is not connected.
    let [local, remote] = ["a", "b"].map(|name| dir.path().join(name));
    let net = Net::Dgram { local, remote };
    // Debian 12 has no udmabuf.
    let guest = Guest::start(GuestConfig { suite: Suite::Trixie, ..GuestConfig::new(net, 1) }).unwrap();
    let urxe = built("urxe").expect("urxe is not built: run cargo build --workspace");
    let files: [(&Path, &str); 4] = [
        (&urxe, "urxe"),
        (&library(), "libibverbs.so"),
        (&preload(), "liburxe_preload.so"),
        (&program, "dma_buf"),
    ];
    for (file, name) in files {
        guest.install(file, &format!("/opt/urxe/{name}")).unwrap();
    }
    let run = "URXE_LIBRARY=/opt/urxe/libibverbs.so URXE_PRELOAD=/opt/urxe/liburxe_preload.so \
               /opt/urxe/urxe run --ip 127.0.0.1 --dma-buf -- /opt/urxe/dma_buf udmabuf";
    // Port 4791 of all addresses belongs to rxe.
    let out = guest.check(&format!("unshare -n sh -c 'ip link set lo up && {run}'"), LIMIT).unwrap();
    assert_eq!(out.stdout, "ok\n", "{}", out.stderr);
}
