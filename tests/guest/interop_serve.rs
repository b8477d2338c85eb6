//! Tests of `urxe serve` with peers on the kernel's rxe: the stock `ibv_rc_pingpong`, whose messages `serve`
//! echoes, and a manually connected queue pair that also accesses the server's memory region.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use urxe_test_support::guest::{Guest, GuestConfig, Net, pattern};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const S10: Duration = Duration::from_secs(10);
const S60: Duration = Duration::from_secs(60);

/// A running `urxe serve`, which exchanges Ethernet frames with the guest.
struct Serve {
    child: Child,
    out: BufReader<ChildStdout>,
    output: String,
}

impl Serve {
    fn start(dir: &Path, more: &[&str]) -> Serve {
        let dir = dir.display();
        let link = format!("frames:dgram:{dir}/urxe,{dir}/guest,ip=10.77.0.2/24,ip=fd77::2/64");
        let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
        command.args(["serve", "--port", "0", "--link", &link]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut output = String::new();
        while !output.contains("waiting for peers") {
            assert_ne!(out.read_line(&mut output).unwrap(), 0, "urxe serve exited: {output}");
        }
        Serve { child, out, output }
    }

    /// Returns the word that follows `after` in the output.
    fn word_after(&self, after: &str) -> &str {
        let at = self
            .output
            .find(after)
            .unwrap_or_else(|| panic!("the output does not contain {after:?}:\n{}", self.output));
        self.output[at + after.len()..].split([' ', ',', '\n']).next().unwrap()
    }

    /// Sends SIGINT, and returns the remaining output. The process must exit with status 0.
    fn stop(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
        let mut output = String::new();
        self.out.read_to_string(&mut output).unwrap();
        assert!(self.child.wait().unwrap().success(), "{output}");
        output
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill(); // fails if the process has exited already
        let _ = self.child.wait();
    }
}

#[test]
fn serve_echoes_and_grants_region_access_to_rxe() {
    let dir = tempfile::Builder::new().prefix("urxe-serve-").tempdir().unwrap();
    let (local, remote) = (dir.path().join("guest"), dir.path().join("urxe"));
    let guest = Guest::start(GuestConfig::new(Net::Dgram { local, remote }, 1)).unwrap();

    // The stock client, over both IP versions, one after the other.
    let serve = Serve::start(dir.path(), &[]);
    let port = serve.word_after("TCP      port ");
    for (ip, size, n) in [("10.77.0.1", 4096, 100), ("fd77::1", 1, 100), ("10.77.0.1", 100_000, 5)] {
        let gid = guest.gid_index(ip).unwrap();
        let stock = format!("ibv_rc_pingpong -d rxe0 -g {gid} -s {size} -n {n} -c -p {port} 10.0.2.2");
        let output = guest.check(&stock, S60).unwrap().stdout;
        assert!(output.contains("iters in") && !output.contains("invalid data"), "{output}");
    }
    let output = serve.stop();
    assert!(output.contains("3 peers; 205 SENDs echoed, 909700 bytes"), "{output}");

    // A queue pair of the verbs shell, with the parameters exchanged by hand.
    let mut vsh = guest.vsh().unwrap();
    let qpn = vsh.cmd("qp q rc").unwrap().num("qpn");
    let serve = Serve::start(dir.path(), &["--peer", &format!("10.77.0.1,{qpn:#x},100")]);
    let (local, _) = serve.output[serve.output.find("local: ").unwrap()..].split_once('\n').unwrap();
    let words: Vec<&str> = local.split(' ').collect();
    let ["local:", "10.77.0.2", "qp", qpn, "psn", psn] = words[..] else { panic!("{local}") };
    let gid = guest.gid_index("10.77.0.1").unwrap();
    vsh.cmd(&format!("connect q qpn={qpn} gid=::ffff:10.77.0.2 sgid={gid} rq_psn={psn} sq_psn=100")).unwrap();
    vsh.cmd("mr m 65536").unwrap();
    vsh.cmd("pattern m 0 5000 7").unwrap();
    let va = u64::from_str_radix(&serve.word_after("va ")[2..], 16).unwrap();
    let rkey = serve.word_after("rkey ");
    for (line, op) in [
        (format!("write q m 0 5000 addr={va} rkey={rkey}"), "RDMA_WRITE"),
        (format!("read q m 8000 5000 addr={va} rkey={rkey}"), "RDMA_READ"),
        (format!("write q m 60000 8 addr={} rkey={rkey}", va + 8192), "RDMA_WRITE"),
        (format!("fadd q m 20000 addr={} rkey={rkey} add=7", va + 8192), "FETCH_ADD"),
        (format!("cswap q m 20008 addr={} rkey={rkey} cmp=7 swap=9", va + 8192), "COMP_SWAP"),
        (format!("read q m 20016 8 addr={} rkey={rkey}", va + 8192), "RDMA_READ"),
    ] {
        vsh.cmd(&line).unwrap();
        let wc = &vsh.poll(1, S10).unwrap()[0];
        assert_eq!((wc.status.as_str(), wc.op.as_str()), ("SUCCESS", op), "{line}");
    }
    assert_eq!(vsh.get("m", 8000, 5000).unwrap(), pattern(5000, 7));
    let words = [0u64, 7, 9].map(u64::to_le_bytes).concat();
    assert_eq!(vsh.get("m", 20_000, 24).unwrap(), words);
    vsh.cmd("recv q m 30000 5000").unwrap();
    vsh.cmd("send q m 0 5000 imm=0x12345678").unwrap();
    let wcs = vsh.poll(2, S10).unwrap();
    let echo = wcs.iter().find(|wc| wc.op == "RECV").unwrap();
    assert_eq!((wcs.len(), echo.len, echo.imm), (2, 5000, Some(0x1234_5678)));
    assert_eq!(vsh.get("m", 30_000, 5000).unwrap(), pattern(5000, 7));
    let output = serve.stop();
    assert!(output.contains("1 peers; 1 SENDs echoed, 5000 bytes"), "{output}");
}
